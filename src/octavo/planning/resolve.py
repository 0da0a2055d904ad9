"""Plan × ranges × weights → scale and zero point for every key.

An int32 bias must fit: where ``|bias| > 2**30 · x_scale · w_scale`` the weight's scale is raised until it
does, which costs a channel whose weights are tiny beside its bias nothing that would show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.weights.blocks import Inputs
from octavo.algorithms.weights.registry import algorithm
from octavo.core import affine, kernels
from octavo.core.blocks import BlockMatrix, BlockScheme
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor, moved, parameter_shape
from octavo.core.plan import Bounded, Constant, Derived, Dynamic, Entry, Fixed, Key, Measured, Plan, Shared
from octavo.core.qparams import QParams
from octavo.core.scheme import Scheme
from octavo.core.stats import Range
from octavo.errors import DataError, ModelError, RecipeError, TableError
from octavo.model.fake_quant.forms import linear_parameters
from octavo.model.graph import query
from octavo.ops import MATMUL_NBITS
from octavo.ops.hooks import clamp_bounds
from octavo.planning import clamps
from octavo.planning.weights import weight_of

Array = npt.NDArray[Any]
Params = dict[Key, QParams]


def resolve(
    model: ir.Model,
    plan: Plan,
    ranges: Mapping[str, Range],
    inputs: Mapping[Key, Array] | None = None,
    known: Params | None = None,
) -> Params:
    """Return the parameters of every entry of the plan but the dynamic ones.

    ``inputs`` are the statistics that weight algorithms want of what a layer reads, by the weight's key.
    ``known`` are parameters of weights that algorithms have quantized already.
    """
    values, bounds = query.values(model), _clamps(model, plan)
    ranges = {**ranges, **{name: clamps.cut(ranges[name], bounds[name]) for name in bounds if name in ranges}}
    params = _alike(plan, ranges, values)
    params |= known if known is not None else chosen_by_algorithms(plan, values, inputs or {})
    for key, entry in plan.entries.items():
        if not isinstance(entry, Shared | Derived | Dynamic):
            if key not in params:
                params[key] = _own(key, entry, values, ranges)
            if key.consumer is None and key.tensor in bounds:
                params[key] = _clamping(key, params[key], bounds[key.tensor])
    _make_room_for_biases(plan, params, values)
    for key, entry in plan.entries.items():
        if isinstance(entry, Derived) and not _runs(plan, entry):
            found = affine.bias_params(*(_factor(plan, params, values, one) for one in (entry.x, entry.w)))
            params[key] = _on_last_axis(found, values[key.tensor])
    for key, entry in plan.entries.items():
        if isinstance(entry, Shared):
            root = plan.root(key)
            params[key] = _of(params, root, key)
    for name, weight in plan.compressed.items():
        params[Key(name)] = _constant(Key(name), weight.scheme, None, values)
    return params


def _runs(plan: Plan, entry: Derived) -> bool:
    """Whether the scale of a bias is only known while the model runs."""
    return isinstance(plan.entries.get(plan.root(Key(*entry.x))), Dynamic)


def _alike(plan: Plan, ranges: Mapping[str, Range], values: Mapping[str, ir.Value]) -> Params:
    """Return the parameters of measured tensors and of weights with one scale, all of a scheme at once."""
    groups: dict[Scheme, dict[Key, tuple[float, float]]] = {}
    for key, entry in plan.entries.items():
        if isinstance(entry, Measured) and not entry.scheme.qtype.is_float:
            limits = _range(key, entry, ranges)
            groups.setdefault(entry.scheme, {})[key] = limits.low, limits.high
        elif isinstance(entry, Constant) and _has_one_scale(entry):
            low, high = _extremes(key, entry.scheme, values)
            groups.setdefault(entry.scheme, {})[key] = float(low), float(high)
    found: Params = {}
    for scheme, tensors in groups.items():
        lows, highs = zip(*tensors.values(), strict=True)
        found.update(zip(tensors, affine.from_ranges(lows, highs, scheme), strict=True))
    return found


def _has_one_scale(entry: Constant) -> bool:
    scheme = entry.scheme
    plain = entry.algorithm is None and entry.range is None and entry.channel_ranges is None
    return plain and isinstance(scheme.granularity, PerTensor) and not scheme.qtype.is_float


def chosen_by_algorithms(plan: Plan, values: Mapping[str, ir.Value], inputs: Mapping[Key, Array]) -> Params:
    """Return the parameters of weights that an algorithm quantizes; one that several read alike is one."""
    found: Params = {}
    known: dict[Slot, QParams] = {}
    for key, slot in algorithm_slots(plan, values).items():
        if slot not in known:
            known[slot] = by_algorithm(key, slot, values, inputs.get(key))
        found[key] = known[slot]
    return found


@dataclass(frozen=True)
class Slot:
    """A weight that an algorithm quantizes once: the initializer, how it is read, and the plan's entry."""

    source: tuple[ir.Value, tuple[int, ...] | None] | None
    entry: Constant
    fractions: bool  # zero points may be fractions, in MatMulNBits of few bits


def algorithm_slots(plan: Plan, values: Mapping[str, ir.Value]) -> dict[Key, Slot]:
    """Return the weights that algorithms quantize; keys that read a weight alike have equal slots.

    Blocks of MatMulNBits for which the plan names no algorithm are rounded to nearest.
    """
    found: dict[Key, Slot] = {}
    tied = {plan.root(key) for key, entry in plan.entries.items() if isinstance(entry, Shared)}
    for key, entry in plan.entries.items():
        node = plan.nodes.get(key.consumer or "")
        nbits = node is not None and node.lowering == MATMUL_NBITS.op_type
        if isinstance(entry, Constant) and (entry.algorithm is not None or nbits):
            found[key] = Slot(weight_of(_named(key, values)), entry, nbits and key not in tied)
    return found


def by_algorithm(key: Key, slot: Slot, values: Mapping[str, ir.Value], inputs: Array | None) -> QParams:
    """Quantize a weight by its algorithm."""
    entry = slot.entry
    scheme, chosen = entry.scheme, algorithm(entry.algorithm or "rtn")
    grain = scheme.granularity
    if not isinstance(grain, PerBlock) or grain.axis is None:
        raise RecipeError(
            f"{key}: the weight algorithm {entry.algorithm!r} works on blocks; write block:SIZE."
        )
    if chosen.wants is not Inputs.NONE and inputs is None:
        raise DataError(
            f"The weight algorithm {entry.algorithm!r} needs calibration data for {key}: give some, or choose"
            " k-quant, which needs none."
        )
    axis, content = grain.axis, _content(_named(key, values))
    dims = content().shape
    others = tuple(d for i, d in enumerate(dims) if i != axis)
    shape = (math.prod(others), dims[axis])
    whole = not (slot.fractions and scheme.qtype.bits < 8)
    blocks = BlockScheme(scheme.qtype.bits, grain.size, scheme.symmetric, whole)

    def rows() -> Array:
        return np.moveaxis(content(), axis, -1).reshape(shape)

    try:
        matrix = BlockMatrix(shape, lambda: chosen.blocks(rows(), blocks, inputs), quick=chosen.quick)
    except DataError as error:
        raise DataError(f"{key}: {error}") from error

    def laid_out(numbers: Array) -> Array:
        return np.moveaxis(numbers.reshape(*others, -1), -1, axis)

    zero = matrix.zero_point
    if zero is None:
        middle = 0 if scheme.qtype.signed else blocks.middle
        zero = np.full(matrix.scale.shape, middle, scheme.qtype.dtype)
    elif zero.dtype == np.uint8:
        zero = zero.astype(scheme.qtype.dtype)
    return QParams(laid_out(matrix.scale), laid_out(zero), scheme.qtype, grain, matrix)


def _range(key: Key, entry: Measured, ranges: Mapping[str, Range]) -> Range:
    source = entry.of if entry.of is not None else key.tensor
    found = ranges.get(source)
    if found is None:
        raise DataError(
            f"Tensor {source!r} has no value in the calibration data; give data that reaches it, or exclude"
            " the node that reads it."
        )
    return found


def _factor(
    plan: Plan, params: Params, values: Mapping[str, ir.Value], source: tuple[str, str | None]
) -> QParams:
    """Return the parameters that the scale of a bias follows from; the model itself may have them."""
    root = plan.root(Key(*source))
    if root not in params and root not in plan.entries and root.tensor in values:
        producer = values[root.tensor].producer()
        found = linear_parameters(producer) if producer is not None else None
        if found is not None:
            return found
    return _of(params, root, Key(*source))


def _of(params: Params, source: Key, key: Key) -> QParams:
    if source not in params:
        raise TableError(
            f"The plan takes the parameters of {key} from {source}, which has none; add an entry for it."
        )
    return params[source]


def _clamps(model: ir.Model, plan: Plan) -> dict[str, clamps.Bounds]:
    """Return the bounds of the clamps that the plan fuses into ranges, by the names of their outputs."""
    if not plan.fused:
        return {}
    fused = (node for node in query.nodes(model) if node.name in plan.fused)
    return {node.outputs[0].name or "": clamp_bounds(node) or (0.0, math.inf) for node in fused}


def _clamping(key: Key, params: QParams, bounds: clamps.Bounds) -> QParams:
    found = clamps.settled(params, bounds)
    if found is None:
        raise TableError(
            f"The plan fuses the clamp before {key.tensor!r} into its quantized range, which goes beyond its"
            f" bounds {bounds[0]:g} … {bounds[1]:g}; remove the node from 'fused', or give a range that does"
            " not."
        )
    return found


def _on_last_axis(params: QParams, bias: ir.Value) -> QParams:
    """Return the same with channels on the last axis of the bias, which may be a row [1, N]."""
    if isinstance(params.granularity, PerTensor):
        return params
    axis = len(weight_array(bias).shape) - 1
    return QParams(params.scale, params.zero_point, params.qtype, PerChannel(axis))


def _own(key: Key, entry: Entry, values: Mapping[str, ir.Value], ranges: Mapping[str, Range]) -> QParams:
    match entry:
        case Measured(scheme):
            found = _range(key, entry, ranges)
            std = found.std if found.std is not None else max(-found.low, found.high) / 3.0
            return affine.from_std(std, scheme)
        case Bounded(scheme, low, high):
            return affine.from_range(low, high, scheme)
        case Fixed(scheme, scale, zero_point):
            return _fixed(key, scheme, scale, zero_point, values)
        case Constant(scheme, range=bounds, channel_ranges=by_channel):
            if by_channel is not None:
                return _by_channel(key, scheme, by_channel, values)
            return _constant(key, scheme, bounds, values)
        case _:
            raise TableError(f"The entry of {key} has no parameters of its own.")


def _fixed(
    key: Key, scheme: Scheme, scale: tuple[float, ...], zero: tuple[int, ...], values: Mapping[str, ir.Value]
) -> QParams:
    grain: Granularity = scheme.granularity
    if len(scale) == 1 and isinstance(grain, PerChannel):
        grain = PerTensor()
    if len(scale) > 1 and isinstance(grain, PerTensor):
        raise RecipeError(
            f"{key}: {len(scale)} scales were given for one tensor; add granularity channel:AXIS."
        )
    if any(s <= 0 for s in scale) or len(scale) != len(zero):
        raise RecipeError(f"{key}: scales must be positive, and as many as zero points.")
    with np.errstate(over="ignore"):
        scales = np.asarray(scale, np.float32)
    for given, kept in zip(scale, scales, strict=True):
        if not 0 < kept < np.inf:
            raise RecipeError(f"{key}: a scale of {given:g} is none in float32; give another one.")
    info = scheme.qtype
    low, high = (0, 0) if info.is_float else (info.qmin, info.qmax)
    if not all(low <= one <= high for one in zero):
        raise RecipeError(f"{key}: the zero point does not fit {info} ({low}…{high}).")
    zeros = np.asarray(zero, np.int64)
    if isinstance(grain, PerTensor):
        scales, zeros = scales.reshape(()), zeros.reshape(())
    elif isinstance(grain, PerBlock):
        shape = parameter_shape(weight_array(values[key.tensor]).shape, grain)
        scales, zeros = scales.reshape(shape), zeros.reshape(shape)
    return QParams(scales, zeros.astype(info.dtype), info, grain)


def weight_array(value: ir.Value) -> npt.NDArray[np.generic]:
    """Return the content of a weight as its consumer sees it (a memory map, or a transposed view of one)."""
    return _content(value)()


def _content(value: ir.Value) -> Callable[[], npt.NDArray[np.generic]]:
    """Return what reads a weight, now or when the graph has changed."""
    source = weight_of(value)
    tensor = source[0].const_value if source is not None else None
    if source is None or tensor is None:
        raise ModelError(f"Weight {value.name!r} is not constant; exclude the node that reads it.")
    perm = source[1]

    def read() -> npt.NDArray[np.generic]:
        content = np.asarray(tensor.numpy())
        return content if perm is None else content.transpose(perm)

    return read


def _constant(
    key: Key, scheme: Scheme, bounds: tuple[float, float] | None, values: Mapping[str, ir.Value]
) -> QParams:
    grain = scheme.granularity
    if bounds is not None:
        shape = parameter_shape(weight_array(_named(key, values)).shape, grain)
        return affine.from_range(np.full(shape, bounds[0]), np.full(shape, bounds[1]), scheme)
    if scheme.qtype.is_float:
        return affine.from_std(_std(weight_array(_named(key, values)), grain), scheme)
    return affine.from_range(*_extremes(key, scheme, values), scheme)


def _extremes(key: Key, scheme: Scheme, values: Mapping[str, ir.Value]) -> tuple[Array, Array]:
    """Return the smallest and largest weight for each scale."""
    weight = weight_array(_named(key, values))
    if weight.dtype.kind not in "fV":
        held = "texts" if weight.dtype.kind in "SOU" else weight.dtype.name
        raise TableError(f"The plan quantizes {key.tensor!r}, which holds {held} in this model.")
    low, high = kernels.extremes(weight, scheme.granularity)
    if not (_is_finite(low) and _is_finite(high)):
        raise ModelError(
            f"Weight {key.tensor!r} holds NaN or infinity; repair the model, or exclude the node"
            f" {key.consumer!r}."
        )
    return low, high


def _is_finite(numbers: Array) -> bool:
    """Whether all numbers are finite; numpy is slow for a single one."""
    return bool(np.isfinite(numbers).all()) if numbers.ndim else math.isfinite(numbers)


def _named(key: Key, values: Mapping[str, ir.Value]) -> ir.Value:
    if key.tensor not in values:
        raise TableError(f"The plan names a tensor {key.tensor!r} that this model does not have.")
    return values[key.tensor]


def _by_channel(
    key: Key, scheme: Scheme, ranges: tuple[tuple[float, float], ...], values: Mapping[str, ir.Value]
) -> QParams:
    """Return parameters from a range given for each channel, or one for all."""
    (count,) = parameter_shape(weight_array(values[key.tensor]).shape, scheme.granularity) or (1,)
    if len(ranges) not in (1, count):
        raise RecipeError(f"{key}: {len(ranges)} ranges were given for {count} channels; give one for each.")
    low, high = np.broadcast_to(np.asarray(ranges, np.float64), (count, 2)).T
    return affine.from_range(low, high, scheme)


def _std(content: npt.NDArray[np.generic], grain: Granularity) -> npt.NDArray[np.float64]:
    wide = content.astype(np.float64)
    match grain:
        case PerTensor():
            return np.asarray(wide.std())
        case PerChannel(axis):
            others = tuple(i for i in range(wide.ndim) if i != (axis or 0) % wide.ndim)
            return np.asarray(wide.std(axis=others))
        case PerBlock(size, axis):
            return np.asarray(kernels.blocked(wide, size, axis or 0).std(axis=(axis or 0) + 1))


def _make_room_for_biases(plan: Plan, params: Params, values: Mapping[str, ir.Value]) -> None:
    for key, entry in plan.entries.items():
        if not isinstance(entry, Derived):
            continue
        if not entry.make_room or _runs(plan, entry):
            continue
        x, w_key = _factor(plan, params, values, entry.x), plan.root(Key(*entry.w))
        w = _of(params, w_key, key)
        bias = weight_array(values[key.tensor]).reshape(-1)
        if not np.all(np.isfinite(bias.astype(np.float32))):
            raise ModelError(
                f"Bias {key.tensor!r} holds NaN or infinity; repair the model, or exclude the node"
                f" {key.consumer!r}."
            )
        least = affine.least_weight_scale(bias, x.scale)
        if w.scale.ndim == 0:
            least = np.asarray(least.max(initial=0.0))
        elif least.shape != w.scale.shape:
            least = np.broadcast_to(least.max(initial=0.0), w.scale.shape)
        if np.any(least > w.scale):
            raised = np.maximum(w.scale.astype(np.float64), least).astype(w.scale.dtype)
            params[w_key] = QParams(raised, w.zero_point, w.qtype, w.granularity)


def stored_granularity(params: QParams, perm: tuple[int, ...] | None) -> Granularity:
    """Return the granularity of the initializer behind a weight that is read through a Transpose."""
    if perm is None:
        return params.granularity
    inverse = tuple(int(i) for i in np.argsort(perm))
    return moved(params.granularity, inverse)
