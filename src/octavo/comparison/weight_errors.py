"""What quantization did to the weights: read off the arrays, without running anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from octavo.comparison import constant_values, distances
from octavo.comparison.constant_values import Array
from octavo.comparison.distances import Errors
from octavo.comparison.lowered_operators import Unit, channel_axis, scale_of, weight
from octavo.comparison.match import Matching, Pair, aligned, weight_pairs
from octavo.core.qtypes import QType, from_onnx, qtype
from octavo.model.graph import query
from octavo.model.graph.operators import BLOCKWISE

StoredType: TypeAlias = QType | ir.DataType  # a quantized type, or a 16-bit float
_HALF, _ROUGHLY = 0.51, 0.9  # steps: what is further off was cut


@dataclass(frozen=True)
class WeightError:
    """A constant and its quantized twin."""

    name: str
    node: str
    op_type: str
    place: int
    qtype: str
    errors: Errors
    scales: int  # how many there are
    axis: int | None  # of the channels
    clipped: float | None  # share of values further off than half a step
    used: float | None  # share of the integers between the smallest and the largest used
    low: float
    high: float
    spread: float  # the largest channel maximum over the median one
    crest: float  # the largest magnitude over the root mean square
    excess: float = 0.0  # dB by which the scales are worse than as many that just hold the values

    @property
    def rounding(self) -> float | None:
        """Return the share of values that are rounded only."""
        return None if self.clipped is None else 1.0 - self.clipped


def weight_errors(found: Matching) -> dict[tuple[Pair, int], WeightError]:
    """Return all quantized weights that were matched, with the errors they have."""
    made: dict[tuple[Pair, int], WeightError] = {}
    for pair, place in weight_pairs(found):
        kind = _stored_type(pair.unit, place)
        if kind is None:
            continue
        plain, mine = weight(pair.float_unit, place), weight(pair.unit, place)
        if plain is None or mine is None or not plain.size:
            continue
        turned = aligned(plain, mine)
        errors = distances.between(plain, turned) if turned is not None else None
        if errors is not None:
            off = _ROUGHLY if found.is_rough else _HALF
            made[pair, place] = _describe(pair, place, kind, plain, mine, errors, off)
    return made


def _describe(
    pair: Pair, place: int, kind: StoredType, plain: Array, mine: Array, errors: Errors, off: float
) -> WeightError:
    step = _step(pair.unit, place, mine)
    clipped = used = None
    if step is not None and isinstance(kind, QType):
        other = aligned(mine, plain)
        integers = np.rint(mine / np.maximum(step, 1e-38))
        used = float(integers.max() - integers.min()) / float(2**kind.bits - 1) if kind.bits < 32 else None
        if other is not None:
            clipped = float(np.mean(np.abs(other - mine) > off * step + 1e-12))
    if not isinstance(kind, QType):
        clipped = float(np.mean(~np.isfinite(mine)))
    scale = scale_of(pair.unit, place)
    operand = pair.float_unit.operands[place]
    return WeightError(
        name=(operand.value.name or "") if operand is not None else "",
        node=pair.float_unit.name,
        op_type=pair.float_unit.node.op_type,
        place=place,
        qtype=kind.name.lower(),
        errors=errors,
        scales=int(scale.size) if scale is not None else 0,
        axis=_axis(pair.float_unit, place, plain.ndim),
        clipped=clipped,
        used=used,
        low=float(plain.min()),
        high=float(plain.max()),
        spread=_channel_spread(pair.float_unit, place, plain),
        excess=_excess(plain, errors, kind, _axis(pair.float_unit, place, plain.ndim), scale),
        crest=float(np.abs(plain).max()) / max(float(np.linalg.norm(plain)) / plain.size**0.5, 1e-38),
    )


def _excess(plain: Array, errors: Errors, kind: StoredType, axis: int | None, scale: Array | None) -> float:
    if not isinstance(kind, QType) or kind.bits > 8 or kind.is_float:
        return 0.0
    each = axis is not None and scale is not None and scale.size == plain.shape[axis]
    over = tuple(i for i in range(plain.ndim) if i != axis) if each else None
    step = 2 * np.abs(plain).max(axis=over).astype(np.float64) / (2**kind.bits - 1)
    energy = float(np.square(plain, dtype=np.float64).sum())
    least = float(np.mean(step**2)) / 12 * plain.size
    return max(0.0, distances.sqnr(energy, least) - errors.sqnr) if least > 0 else 0.0


def _channel_spread(unit: Unit, place: int, plain: Array) -> float:
    if plain.ndim < 2:
        return 1.0
    axis = _axis(unit, place, plain.ndim)
    tops = np.abs(plain).max(axis=tuple(i for i in range(plain.ndim) if i != axis))
    return float(tops.max() / max(float(np.median(tops)), 1e-38))


def _axis(unit: Unit, place: int, rank: int) -> int | None:
    """Return the axis of the output channels in the float model."""
    if rank < 2:
        return None
    return 0 if query.attribute(unit.node, "transB", 0) else channel_axis(unit, place) % rank


def _step(unit: Unit, place: int, mine: Array) -> Array | None:
    """Return the size of a step at each value, laid out to broadcast; None where it is not known."""
    operand = unit.operands[place]
    maker = operand.value.producer() if operand is not None else None
    block = 0
    if maker is not None and maker.op_type == "DequantizeLinear":
        scale = constant_values.numbers(maker.inputs[1])
        axis, block = (int(query.attribute(maker, n, d)) for n, d in (("axis", 1), ("block_size", 0)))
    elif unit.is_integer and unit.kind not in ("Gather", "LSTM") and unit.node.op_type != "MatMulNBits":
        scale, axis = scale_of(unit, place), channel_axis(unit, place)
    else:
        return None
    return constant_values.spread(scale, mine.shape, axis, block) if scale is not None else None


def _stored_type(unit: Unit, place: int) -> StoredType | None:
    """Return the type that a weight is stored in, if that is a quantized one or a 16-bit float."""
    operand = unit.operands[place]
    kind = query.element_type(constant_values.stored_value(operand.value)) if operand is not None else None
    if kind is None or kind in query.HALF_FLOATS:
        return kind
    if kind is ir.DataType.UINT8 and unit.node.op_type in BLOCKWISE:  # bytes may hold several integers
        return qtype(f"uint{int(query.attribute(unit.node, 'bits', 4))}")
    return from_onnx(int(kind))
