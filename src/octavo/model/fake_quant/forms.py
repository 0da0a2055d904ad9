"""Fake quantization as frameworks write it: one operator, or QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core import qtypes
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT4, INT8, INT16, UINT4, UINT8, UINT16, QType
from octavo.model.graph import query

# ---- The parameters of fake quantization, in whatever form it is written

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class FakeQuant:
    """Nodes that round a value to what a quantized type can hold, and give it back as float."""

    source: ir.Value
    results: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]  # the first reads the source; each before those that read it
    params: QParams
    limits: tuple[int, int] | None = None  # the integers used, where they are fewer than the type has
    stored: bool = False  # the source holds the integers already

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal where two do the same to a value."""
        return (*self.params.identity, self.limits, self.stored)


def usable(scale: Array) -> bool:
    """Whether these can be scales: positive and finite."""
    return bool(scale.size) and bool(np.all(np.isfinite(scale)) and np.all(scale > 0))


def grain_of(scale: Array, axis: int | None) -> Granularity:
    """Return one scale for the tensor, or one for each index along an axis."""
    return PerTensor() if scale.size == 1 or axis is None else PerChannel(axis)


def parameters(scale: Array, zero: Array, qtype: QType, grain: Granularity) -> QParams:
    """Return parameters in the shapes that ONNX stores."""
    scale, zero = np.asarray(scale, np.float32), np.asarray(zero)
    if isinstance(grain, PerTensor):
        return QParams(scale.reshape(()), zero.reshape(()).astype(qtype.dtype), qtype, grain)
    if isinstance(grain, PerChannel):
        scale = scale.reshape(-1)
        zero = np.broadcast_to(zero.reshape(-1), scale.shape)
    return QParams(scale, zero.astype(qtype.dtype), qtype, grain)


def typed(
    scale: Array, zero: Array, low: Array, high: Array, axis: int | None
) -> tuple[QParams, tuple[int, int] | None] | None:
    """Return parameters in the smallest type that holds the integers from ``low`` to ``high``.

    Where no type does, or channels use different integers, all of them are moved to start at zero.
    """
    low, high, zero = (np.asarray(a, np.int64) for a in (low, high, zero))
    if not usable(np.asarray(scale)) or np.any(high <= low) or np.unique(high - low).size != 1:
        return None
    kind = _holding(low, high)
    if kind is None:
        zero, high, low = zero - low, high - low, np.zeros_like(low)
        kind = _holding(low, high)
    if kind is None or np.any(zero < kind.qmin) or np.any(zero > kind.qmax):
        return None
    limits = (int(low.reshape(-1)[0]), int(high.reshape(-1)[0]))
    params = parameters(np.asarray(scale), zero, kind, grain_of(np.asarray(scale), axis))
    return params, None if limits == (kind.qmin, kind.qmax) else limits


def _holding(low: Array, high: Array) -> QType | None:
    """Return the type of the fewest bits for so many integers, if it holds these very ones."""
    if np.unique(low).size != 1 or np.unique(high).size != 1:
        return None
    count = int((high - low).max()) + 1
    bits = next((b for b in (4, 8, 16) if count <= 1 << b), None)
    kinds = (kind for kind in (UINT4, INT4, UINT8, INT8, UINT16, INT16) if kind.bits == bits)
    return next((kind for kind in kinds if kind.qmin <= low.min() and high.max() <= kind.qmax), None)


# ---- Operators that fake-quantize in one piece, under the names that frameworks gave them
#
# =====================================  =========================================================
# FakeQuant, FakeQuantize                scale and zero point as inputs or attributes, or min and max
# fake_quantize_per_tensor_affine        x, scale, zero point, quant_min, quant_max (also as ATen)
# fake_quantize_per_channel_affine       x, scale, zero point, axis, quant_min, quant_max
# FakeQuantWithMinMaxVars and similar    x, min, max; ``num_bits``, ``narrow_range``; zero nudged to the grid
# FakeQuantize with ``levels``           x, input low, input high, output low, output high
# =====================================  =========================================================


def operator(node: ir.Node) -> FakeQuant | None:
    """Return the fake quantization that this node is, if its parameters are constants that can be read."""
    name = re.sub(r"[^a-z]", "", _name(node).lower()).removeprefix("aten")
    if not name.startswith("fakequant") or not node.inputs or node.inputs[0] is None:
        return None
    if any(v.name and (v.uses() or v.is_graph_output()) for v in node.outputs[1:]):
        return None
    if "minmax" in name:
        found = _between(node, name)
    elif "levels" in node.attributes:
        found = _levels(node)
    elif "affine" in name:
        found = _affine(node, by_channel="channel" in name)
    else:
        found = _scaled(node)
        found = found if found is not None else _between(node, name)
    if found is None:
        return None
    made = typed(*found)
    if made is None:
        return None
    return FakeQuant(node.inputs[0], (node.outputs[0],), (node,), *made)


def _name(node: ir.Node) -> str:
    return str(query.attribute(node, "operator", "")) if node.op_type == "ATen" else node.op_type


_Found = tuple[Array, Array, Array, Array, int | None]


def _affine(node: ir.Node, *, by_channel: bool) -> _Found | None:
    scale, zero = _given(node, 1, "scale"), _given(node, 2, "zero_point")
    axis = _given(node, 3, "axis") if by_channel else None
    at = 4 if by_channel else 3
    low, high = _given(node, at, "quant_min"), _given(node, at + 1, "quant_max")
    if scale is None or zero is None or low is None or high is None:
        return None
    return scale, np.rint(zero), low, high, _axis(node, axis)


def _scaled(node: ir.Node) -> _Found | None:
    scale, zero = _given(node, 1, "scale"), _given(node, 2, "zero_point")
    if scale is None or ("scale" not in node.attributes and len(node.inputs) < 2):
        return None
    zero = np.zeros_like(scale) if zero is None else np.rint(zero)
    low, high = _integers(node)
    axis = _given(node, 99, "axis")
    return scale, zero, low, high, _axis(node, axis if axis is not None else np.asarray(0))


def _integers(node: ir.Node) -> tuple[Array, Array]:
    """Return the integers that are used: said, or those of a type of so many bits."""
    low, high = _given(node, 99, "quant_min"), _given(node, 99, "quant_max")
    if low is not None and high is not None:
        return low, high
    bits = int(query.attribute(node, "num_bits", query.attribute(node, "bits", 8)))
    narrow = int(query.attribute(node, "narrow_range", 0))
    if query.attribute(node, "signed", 0):
        return np.asarray(-(1 << (bits - 1)) + narrow), np.asarray((1 << (bits - 1)) - 1)
    return np.asarray(narrow), np.asarray((1 << bits) - 1)


def _between(node: ir.Node, name: str) -> _Found | None:
    """Return a range; its ends are moved until zero is one of the steps."""
    low, high = _given(node, 1, "min"), _given(node, 2, "max")
    if low is None or high is None or np.any(high <= low):
        return None
    qmin, qmax = _integers(node)
    low, high = low.astype(np.float64), high.astype(np.float64)
    scale = (high - low) / (qmax - qmin)
    zero = np.clip(np.floor(qmin - low / scale + 0.5), qmin, qmax)
    rank = query.rank(node.inputs[0])
    axis = np.asarray(rank - 1) if "channel" in name and rank else _given(node, 99, "axis")
    return scale.astype(np.float32), zero, qmin, qmax, _axis(node, axis)


def _levels(node: ir.Node) -> _Found | None:
    ends = [_given(node, i, "") for i in range(1, 5)]
    levels = int(query.attribute(node, "levels"))
    if any(end is None for end in ends):
        return None
    low, high, out_low, out_high = (np.asarray(end, np.float64) for end in ends)
    if not (np.array_equal(low, out_low) and np.array_equal(high, out_high)) or np.any(high <= low):
        return None
    scale = (high - low) / (levels - 1)
    zero = -low / scale
    if np.any(np.abs(zero - np.rint(zero)) > 1e-2):
        return None
    long = [i for i, n in enumerate(scale.shape) if n > 1]
    if len(long) > 1:
        return None
    rank = query.rank(node.inputs[0]) or scale.ndim
    axis = long[0] + rank - scale.ndim if long else None
    return (
        scale.reshape(-1).astype(np.float32),
        np.rint(zero).reshape(-1),
        np.asarray(0),
        np.asarray(levels - 1),
        axis,
    )


def _axis(node: ir.Node, axis: Array | None) -> int | None:
    if axis is None:
        return None
    number, rank = int(np.asarray(axis).reshape(-1)[0]), query.rank(node.inputs[0])
    return number % rank if rank else number


def _given(node: ir.Node, index: int, name: str) -> Array | None:
    """Return an input or an attribute, as numbers."""
    if index < len(node.inputs) and node.inputs[index] is not None:
        return query.array(node.inputs[index])
    value: Any = query.attribute(node, name) if name in node.attributes else None
    if value is None:
        return None
    return np.asarray(value.numpy() if isinstance(value, ir.TensorProtocol) else value)


# ---- QuantizeLinear and DequantizeLinear: of both domains, with a Clip on the integers, of any granularity

_DOMAINS = ("", "com.microsoft")
_MAX_SCALES = 1 << 28  # scales of a weight in blocks are many


def is_linear(node: ir.Node | None, op_type: str) -> bool:
    """Whether a node is QuantizeLinear or DequantizeLinear of either domain."""
    return node is not None and node.op_type == op_type and node.domain in _DOMAINS


def pair(node: ir.Node) -> FakeQuant | None:
    """Return the pair that starts at this QuantizeLinear, if all that read its integers dequantize them."""
    if not is_linear(node, "QuantizeLinear"):
        return None
    params, integers = linear_parameters(node), node.outputs[0]
    if params is None or node.inputs[0] is None or integers.is_graph_output():
        return None
    nodes, results, limits = [node], [], None
    clip = query.only_reader(integers)
    if clip is not None and clip.op_type == "Clip" and not clip.domain:
        limits = _limits(clip, params)
        if limits is None or clip.outputs[0].is_graph_output():
            return None
        nodes.append(clip)
        integers = clip.outputs[0]
    for reader in query.readers(integers):
        back = linear_parameters(reader) if is_linear(reader, "DequantizeLinear") else None
        if back is None or not back.same_as(params):
            return None
        nodes.append(reader)
        results.append(reader.outputs[0])
    if not results:
        return None
    whole = limits == (params.qtype.qmin, params.qtype.qmax)
    return FakeQuant(node.inputs[0], tuple(results), tuple(nodes), params, None if whole else limits)


def stored(node: ir.Node) -> FakeQuant | None:
    """Integers in the file, and the DequantizeLinear that makes floats of them."""
    if not is_linear(node, "DequantizeLinear") or query.constant(node.inputs[0]) is None:
        return None
    params = linear_parameters(node)
    if params is None or node.inputs[0] is None:
        return None
    return FakeQuant(node.inputs[0], (node.outputs[0],), (node,), params, stored=True)


def _limits(clip: ir.Node, params: QParams) -> tuple[int, int] | None:
    found = [params.qtype.qmin, params.qtype.qmax]
    for index in (1, 2):
        bound = query.operand(clip, index)
        if bound is not None:
            number = query.scalar(bound)
            if number is None:
                return None
            found[index - 1] = int(number)
    return found[0], found[1]


def linear_parameters(node: ir.Node) -> QParams | None:
    """Return the parameters of a QuantizeLinear or DequantizeLinear where they are constants."""
    scale = query.array(node.inputs[1], limit=_MAX_SCALES) if len(node.inputs) > 1 else None
    if scale is None or not usable(scale):
        return None
    given = query.operand(node, 2)
    zero: Array | None = np.zeros(scale.shape, np.uint8)
    kind = qtypes.from_onnx(int(_type_without_zero(node)))
    if given is not None:
        tensor = query.constant(given)
        if tensor is None:
            return None
        zero, kind = np.asarray(tensor.numpy()), qtypes.from_onnx(int(tensor.dtype))
    grain = _grain(node, scale)
    if kind is None or grain is None or zero is None or zero.size not in (1, scale.size):
        return None
    if zero.size != scale.size or isinstance(grain, PerBlock):
        zero = np.broadcast_to(zero, scale.shape)
    return parameters(scale, zero, kind, grain)


def _type_without_zero(node: ir.Node) -> ir.DataType:
    asked = query.attribute(node, "output_dtype", 0)
    if asked:
        return ir.DataType(asked)
    if node.op_type == "DequantizeLinear":
        made = query.element_type(node.inputs[0])
        return made if made is not None else ir.DataType.UINT8
    return ir.DataType.UINT8


def _grain(node: ir.Node, scale: Array) -> Granularity | None:
    axis = int(query.attribute(node, "axis", 1))
    rank = query.rank(node.inputs[0])
    if rank:
        axis %= rank
    size = int(query.attribute(node, "block_size", 0))
    if size:
        return PerBlock(size, axis)
    if scale.size == 1:
        return PerTensor()
    return PerChannel(axis) if scale.ndim == 1 and axis >= 0 else None
