"""Which operators compute in 16-bit floats, and why the others stay in float32.

An operator computes in 16 bits unless

- its type, or the types of its tensors, do not allow it;
- a constant that it reads would overflow or lose too much, such as the 10⁻¹² under a root. Constants of
  masks are raised to :data:`MASK_VALUE` instead;
- with calibration data: a value that it reads or gives came within a factor of :data:`RANGE_MARGIN` of the
  type's range, or stayed where all numbers are subnormal. Without data: it can make large results of small
  values, or is part of a normalization that is written out;
- it computes from integers alone, such as positions: float16 has all integers up to 2048 and few beyond;
- its result is turned into integers: sizes and indices have to be exact;
- it leads to an angle of more than :data:`LARGEST_ANGLE`. Rounding makes an error of up to ``2⁻¹¹·a`` in an
  angle ``a``, and sine and cosine have that error whole;
- it leads to the logarithm of numbers that may be subnormal. Their rounding error is not small beside them,
  and the logarithm has it whole;
- it leads to a difference of numbers that are large beside it. The difference of numbers ``d`` times as
  large as itself has ``20 · log10(d)`` dB less than they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core.plan import HalfCompute, Plan
from octavo.core.recipe import HALF, FloatType, Pattern
from octavo.core.stats import Range
from octavo.errors import RecipeError
from octavo.model.graph import meta, query
from octavo.ops import GATHER_BLOCKS, MATMUL_NBITS, Out, rule_of
from octavo.ops.half_precision import (
    ANGLES,
    DIFFERENCES,
    KEEPS_ANGLES,
    KEEPS_SMALL,
    NORMALIZES_BY,
    TYPED_BY_ATTRIBUTE,
    WIDE_RESULTS,
    HalfSlots,
    half_slots,
)
from octavo.planning.half_precision import DATA_TYPES, FLOAT, MIN_SQNR_DB, lossy, reaches_softmax
from octavo.planning.selection import Selection

LARGEST: Mapping[FloatType, float] = {FloatType.FLOAT16: 65504.0, FloatType.BFLOAT16: 3.3895e38}
SMALLEST: Mapping[FloatType, float] = {FloatType.FLOAT16: 2.0**-14, FloatType.BFLOAT16: 2.0**-126}
BITS: Mapping[FloatType, int] = {FloatType.FLOAT16: 11, FloatType.BFLOAT16: 8}
RANGE_MARGIN = 2.0  # data seen later may go beyond what calibration has seen
MASK_VALUE = -3.0e4  # exp of it is 0, and it stays finite in float16 when scores are added to it
MASK_LIMIT = -1.0e4  # constants at or below this that reach a Softmax are masks
LARGEST_ANGLE: Mapping[FloatType, float] = {
    # The rounding error of a, 2⁻ᵇ·a/√3, is as far below a sine (1/√2) as MIN_SQNR_DB says.
    kind: float(np.sqrt(1.5) * 2.0**bits * 10 ** (-MIN_SQNR_DB[kind] / 20))
    for kind, bits in BITS.items()
}
LARGEST_RATIO: Mapping[FloatType, float] = {
    # Of an operand to the difference: rounding, 6.02·b + 7.8 dB below the operand, is MIN_SQNR_DB below it.
    kind: float(10 ** ((6.02 * bits + 7.8 - MIN_SQNR_DB[kind]) / 20))
    for kind, bits in BITS.items()
}
_NORMALIZATION_DEPTH = 6  # Pow, ReduceMean, Add, Sqrt, Reciprocal or Div, Mul


def with_half_compute(
    plan: Plan,
    model: ir.Model,
    float_type: FloatType,
    ranges: Mapping[str, Range] | None,
    *,
    exclude: tuple[Pattern, ...] = (),
    io: bool = False,
) -> Plan:
    """Return the plan with float operators computed in 16 bits; ``ranges`` are those of calibration."""
    nodes = list(query.nodes(model))
    selection = Selection(nodes, HALF.but(exclude=exclude), meta.of(model).op_types)
    excluded = frozenset(node.name or "" for node in nodes if selection.is_excluded(node))
    compute = _Compute(plan, model, float_type, ranges, excluded)
    if io:
        compute.refuse_wide_outputs()
    return replace(plan, half=compute.decide(io=io))


def measured_tensors(model: ir.Model) -> list[str]:
    """The tensors whose ranges decide: the float results of all nodes of the main graph."""
    return [
        value.name
        for node in model.graph
        for value in node.outputs
        if value.name and query.element_type(value) is FLOAT
    ]


class _Compute:
    """Decides node by node what is computed in 16 bits."""

    def __init__(
        self,
        plan: Plan,
        model: ir.Model,
        float_type: FloatType,
        ranges: Mapping[str, Range] | None,
        excluded: frozenset[str],
    ) -> None:
        self.plan, self.model, self.float_type, self.ranges = plan, model, float_type, ranges
        self.excluded = excluded
        self.dtype, self.opset = DATA_TYPES[float_type], query.opset(model)
        self.limit = LARGEST[float_type] / RANGE_MARGIN
        self.kept: dict[str, str] = {}
        self.masks: dict[str, None] = {}

    def decide(self, *, io: bool) -> HalfCompute:
        nodes = [n for n in query.nodes(self.model) if self._has_floats(n) and not query.is_op(n, "Constant")]
        for node in nodes:
            reason = self._refusal(node)
            if reason is not None:
                self.kept[node.name or ""] = reason
        self._keep_integers_exact(nodes)
        self._keep_angles(nodes)
        self._keep_logarithms(nodes)
        self._keep_differences(nodes)
        self._keep_sizes_exact(nodes)
        computed = tuple(node.name or "" for node in nodes if node.name not in self.kept)
        return HalfCompute(self.float_type, computed, self.kept, tuple(self.masks), io)

    def refuse_wide_outputs(self) -> None:
        """Raise where an output of the model would become infinite in the type."""
        for value in self.model.graph.outputs:
            reached = self._reached(value)
            if reached is not None and not reached <= LARGEST[self.float_type]:
                raise RecipeError(
                    f"The output {value.name} reached {reached:.3g} in calibration, beyond the range of"
                    f" {self.float_type.value}; leave --io out, so that it stays float32."
                )

    @staticmethod
    def _has_floats(node: ir.Node) -> bool:
        return any(query.element_type(value) is FLOAT for value in (*node.inputs, *node.outputs))

    def _refusal(self, node: ir.Node) -> str | None:
        if node.name in self.excluded:
            return "excluded"
        if query.is_op(node, "ConstantOfShape"):
            content = query.attribute(node, "value")
            return None if content is None else lossy(np.asarray(content.numpy()), self.float_type)
        if query.subgraphs(node):
            return "control flow passes its values on in float32"
        if node.op_type in TYPED_BY_ATTRIBUTE:
            return "its type is set by an attribute"
        slots = half_slots(node, self.opset, self.dtype)
        if slots is None:
            return f"nothing is known about {node.op_type} in {self.float_type.value}"
        if node.name in self.plan.nodes and not _stays_float_kernel(self.plan.nodes[node.name].lowering):
            return "it is quantized"
        return self._types(node, slots) or self._constants(node, slots) or self._range(node)

    def _types(self, node: ir.Node, slots: HalfSlots) -> str | None:
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.name and query.element_type(value) is None:
                return f"{value.name} is not a tensor, or its type is not known"
        for index, value in enumerate(node.outputs):
            if query.element_type(value) is FLOAT and not slots.gives(index):
                return f"{node.op_type} gives no {self.float_type.value} at opset {self.opset}"
        if query.is_op(node, "Cast") and not _is_safe_cast(node):
            return _FROM_INTEGERS
        floats = [i for i, value in enumerate(node.inputs) if query.element_type(value) is FLOAT]
        if floats and not any(slots.takes(i) for i in floats):
            return f"{node.op_type} takes no {self.float_type.value} at opset {self.opset}"
        return None

    def _constants(self, node: ir.Node, slots: HalfSlots) -> str | None:
        for index, value in enumerate(node.inputs):
            tensor = query.constant(value)
            if value is None or tensor is None or query.element_type(value) is not FLOAT:
                continue
            if not slots.takes(index):
                continue
            content = np.asarray(tensor.numpy())
            reason = lossy(content, self.float_type)
            if reason is None:
                continue
            if _is_mask(content) and reaches_softmax(node):
                self.masks[value.name or ""] = None
            else:
                return f"constant {value.name}: {reason}"
        return None

    def _range(self, node: ir.Node) -> str | None:
        if self.ranges is None or node.graph is not self.model.graph:
            if self.float_type is FloatType.BFLOAT16:
                return None
            if node.op_type in WIDE_RESULTS or _normalizes(node):
                return "its results may leave the range of float16, and there is no data that says otherwise"
            return None
        for value in (*node.inputs, *node.outputs):
            reached = self._reached(value)
            if value is None or reached is None or _masks_reach(self.ranges[value.name or ""], node):
                continue
            if not reached <= self.limit:
                return f"{value.name} reached {reached:.3g} in calibration"
            if 0 < reached < SMALLEST[self.float_type]:
                return f"{value.name} only reached {reached:.3g} in calibration, where numbers lose bits"
        return None

    def _reached(self, value: ir.Value | None) -> float | None:
        """The largest magnitude of a tensor in calibration, where it was measured."""
        found = self.ranges.get(value.name or "") if value is not None and self.ranges is not None else None
        return max(abs(found.low), abs(found.high)) if found is not None else None

    def _keep(self, node: ir.Node, reason: str) -> None:
        self.kept.setdefault(node.name or "", reason)

    def _keep_integers_exact(self, nodes: list[ir.Node]) -> None:
        """Keep in float32 what reads floats that were integers, and what is computed from such alone."""
        from_integers: set[ir.Value] = set()
        for node in nodes:  # what is read comes before its reader
            if self.kept.get(node.name or "") == _FROM_INTEGERS:
                from_integers.update(node.outputs)
                continue
            floats = _float_inputs(node)
            hits = [value for value in floats if value in from_integers]
            if not hits or reaches_softmax(node):
                continue
            alone = len(hits) == len(floats)
            if alone or any(self._may_be_inexact(value) for value in hits):
                self._keep(node, _FROM_INTEGERS)
            if alone and not _is_bounded(node):
                from_integers.update(node.outputs)

    def _may_be_inexact(self, value: ir.Value) -> bool:
        """Whether a Cast gives integers that the type may not have."""
        reached = self._reached(value)
        largest = 2.0 ** BITS[self.float_type] / RANGE_MARGIN
        return query.is_op(value.producer(), "Cast") and (reached is None or reached > largest)

    def _keep_angles(self, nodes: list[ir.Node]) -> None:
        """Keep in float32 the sine and cosine of large angles, and what the angles are computed by."""
        for node in nodes:
            reached = self._reached(node.inputs[0]) if node.op_type in ANGLES and not node.domain else 0.0
            if reached is None or reached > LARGEST_ANGLE[self.float_type]:
                self._keep(node, _ANGLE)
                self._keep_behind(node.inputs, _ANGLE, _keeps_angles)

    def _keep_logarithms(self, nodes: list[ir.Node]) -> None:
        """Keep in float32 the logarithm of numbers that may be small, and what computes these."""
        for node in nodes:
            if query.is_op(node, "Log") and self._may_be_small(node.inputs[0]):
                self._keep(node, _LOGARITHM)
                self._keep_behind(node.inputs, _LOGARITHM, self._stays_small)

    def _stays_small(self, value: ir.Value) -> bool:
        """Whether a value may be small, and what it is computed from too."""
        producer = value.producer()
        known = producer is not None and not producer.domain
        keeps = known and producer is not None and producer.op_type in KEEPS_SMALL
        measured = self._reached(value) is not None and known
        return (keeps or measured) and self._may_be_small(value)

    def _may_be_small(self, value: ir.Value | None) -> bool:
        """Whether a tensor of positive numbers holds some that lose bits, or may, as it was not measured."""
        found = self.ranges.get(value.name or "") if value is not None and self.ranges is not None else None
        return found is None or 0 <= found.low < SMALLEST[self.float_type]

    def _keep_differences(self, nodes: list[ir.Node]) -> None:
        """Keep in float32 differences of numbers that are large beside them, and what gives those numbers."""
        for node in nodes:
            result = self._reached(node.outputs[0]) if node.op_type in DIFFERENCES else None
            if not result or reaches_softmax(node):
                continue
            is_large = partial(self._is_beyond, result * LARGEST_RATIO[self.float_type])
            if large := [value for value in node.inputs if is_large(value)]:
                reason = f"{node.outputs[0].name} is a small difference of large numbers"
                self._keep(node, reason)
                self._keep_behind(large, reason, is_large)

    def _is_beyond(self, limit: float, value: ir.Value | None) -> bool:
        return (self._reached(value) or 0.0) > limit

    def _keep_behind(
        self, values: Iterable[ir.Value | None], reason: str, holds: Callable[[ir.Value], bool]
    ) -> None:
        """Keep what computes some values in float32, as far back as a condition on values holds."""
        todo, seen = list(values), set()
        while todo:
            value = todo.pop()
            producer = value.producer() if value is not None and holds(value) else None
            if producer is not None and producer not in seen:
                seen.add(producer)
                self._keep(producer, reason)
                todo.extend(producer.inputs)

    def _keep_sizes_exact(self, nodes: list[ir.Node]) -> None:
        """Keep in float32 what only leads to integers."""
        for node in reversed(nodes):
            readers = [reader for value in node.outputs for reader in query.readers(value)]
            if not readers or any(value.is_graph_output() for value in node.outputs):
                continue
            if all(
                _gives_integers(reader) or self.kept.get(reader.name or "") == _EXACT for reader in readers
            ):
                self.kept[node.name or ""] = _EXACT


_FROM_INTEGERS = "it computes from integers, which may be beyond those that the type has"
_ANGLE = "it leads to the sine of an angle, whose rounding error grows with the angle"
_LOGARITHM = "it leads to the logarithm of numbers that are so small that they lose bits"
_EXACT = "its result becomes sizes or indices, which have to be exact"


def _stays_float_kernel(lowering: str) -> bool:
    """Whether a quantized node still computes with float activations, of either type."""
    return lowering in (MATMUL_NBITS.op_type, GATHER_BLOCKS.op_type)


def _float_inputs(node: ir.Node) -> list[ir.Value]:
    """The computed float32 tensors that a node reads."""
    return [
        value
        for value in node.inputs
        if value is not None and query.element_type(value) is FLOAT and query.constant(value) is None
    ]


def _keeps_angles(value: ir.Value) -> bool:
    """Whether a value is computed by an operator that stands between positions and angles."""
    producer = value.producer()
    return producer is not None and not producer.domain and producer.op_type in KEEPS_ANGLES


def _is_bounded(node: ir.Node) -> bool:
    """Whether mathematics bounds the result, whatever the operator reads."""
    rule = rule_of(node)
    known = rule is not None and isinstance(rule.outputs[0], Out) and rule.outputs[0].low is not None
    return known or node.op_type in ANGLES


def _is_safe_cast(node: ir.Node) -> bool:
    """Whether a Cast makes floats of truth values or of other floats: what integers hold may be too large."""
    safe = (ir.DataType.BOOL, FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return query.element_type(node.inputs[0]) in safe and not _gives_integers(node)


def _gives_integers(node: ir.Node) -> bool:
    """Whether a node turns floats into integers."""
    return query.is_op(node, "Cast") and all(
        value.dtype is not None and value.dtype.is_integer() for value in node.outputs
    )


def _is_mask(content: npt.NDArray[Any]) -> bool:
    """Whether all values of a constant are 0 or hide what they are added to."""
    return bool(np.all((content == 0) | (content <= MASK_LIMIT)) and np.any(content < 0))


def _masks_reach(found: Range, node: ir.Node) -> bool:
    """Whether a tensor is as low as it is because a mask is in it, and high values are ordinary."""
    return found.low <= MASK_LIMIT * 10 and found.high <= -MASK_LIMIT and reaches_softmax(node)


def _normalizes(node: ir.Node | None, depth: int = _NORMALIZATION_DEPTH) -> bool:
    """Whether a node is part of a normalization that is written out: squares, their mean, its root."""
    if node is None or not depth:
        return False
    if query.is_op(node, "Pow") or (query.is_op(node, "Mul") and node.inputs[0] is node.inputs[1]):
        return True
    if node.op_type not in NORMALIZES_BY:
        return False
    behind = node.inputs[1:] if query.is_op(node, "Div") else node.inputs
    return any(_normalizes(value.producer(), depth - 1) for value in behind if value is not None)
