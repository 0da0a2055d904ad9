"""16-bit floats for what is not quantized: what is computed in them, what is only stored, what stays float32.

A float16 has 11 significant bits between 6·10⁻⁵ and 65504 and fewer below; a bfloat16 has 8 bits and the
range of float32. A node is computed in 16 bits unless

- its operator or the types of its tensors do not allow it;
- a constant that it reads would overflow, or lose more than :data:`MIN_CONSTANT_SQNR_DB` by rounding, such as
  the 10⁻¹² under the root of a normalization. Constants of masks are raised to :data:`MASK_VALUE` instead;
- with calibration data: a value that it reads or gives came within a factor of :data:`RANGE_MARGIN` of the
  type's range. Without data: its operator can make large results of small ones;
- its result is turned into integers: sizes and indices have to be exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core.plan import HalfCompute, HalfStorage, Plan
from octavo.core.recipe import HALF, FloatType, Pattern
from octavo.core.stats import Range
from octavo.model.graph import meta, query
from octavo.ops import GATHER_BLOCKS, MATMUL_NBITS
from octavo.ops.half_precision import (
    CARRIES_MASKS,
    NORMALIZES_BY,
    TYPED_BY_ATTRIBUTE,
    WIDE_RESULTS,
    HalfSlots,
    half_slots,
)
from octavo.ops.patterns import MAKE_PROBABILITIES
from octavo.planning.selection import Selection

FLOAT = ir.DataType.FLOAT
NUMPY_TYPES: Mapping[FloatType, npt.DTypeLike] = {
    FloatType.FLOAT16: np.float16,
    FloatType.BFLOAT16: ml_dtypes.bfloat16,
}
DATA_TYPES: Mapping[FloatType, ir.DataType] = {
    FloatType.FLOAT16: ir.DataType.FLOAT16,
    FloatType.BFLOAT16: ir.DataType.BFLOAT16,
}
LARGEST: Mapping[FloatType, float] = {FloatType.FLOAT16: 65504.0, FloatType.BFLOAT16: 3.3895e38}

MIN_CONSTANT_SQNR_DB: Mapping[FloatType, float] = {
    # Rounding normal numbers costs 74 dB in float16 and 56 dB in bfloat16: below these, subnormals matter.
    FloatType.FLOAT16: 50.0,
    FloatType.BFLOAT16: 40.0,
}
RANGE_MARGIN = 2.0  # data seen later may go beyond what calibration has seen
MASK_VALUE = -3.0e4  # exp of it is 0, and it stays finite in float16 when scores are added to it
MASK_LIMIT = -1.0e4  # constants at or below this that reach a Softmax are masks
MIN_STORED_VALUES = 1024  # a smaller weight saves less than the Cast that restores it costs
_NORMALIZATION_DEPTH = 6  # Pow, ReduceMean, Add, Sqrt, Reciprocal or Div, Mul
_MASK_DEPTH = 64  # nodes that are followed from a constant to the Softmax that its mask is for


def with_half_storage(plan: Plan, model: ir.Model, float_type: FloatType) -> Plan:
    """Return the plan with the large float weights that nothing quantizes stored in 16 bits."""
    weights: list[str] = []
    kept: dict[str, str] = {}
    for name, value in query.initializers(model.graph).items():
        if query.element_type(value) is not FLOAT or name in plan.compressed or value.is_graph_output():
            continue
        readers = query.readers(value)
        if not readers or all(plan.lookup(name, node.name or "") is not None for node in readers):
            continue
        if value.const_value is None or value.const_value.size < MIN_STORED_VALUES:
            continue
        reason = lossy(np.asarray(value.const_value.numpy()), float_type)
        if reason is None:
            weights.append(name)
        else:
            kept[name] = reason
    return replace(plan, half=HalfStorage(float_type, tuple(weights), kept))


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
    return replace(plan, half=_Compute(plan, model, float_type, ranges, excluded).decide(io=io))


def measured_tensors(model: ir.Model) -> list[str]:
    """The tensors whose ranges decide: the float results of all nodes of the main graph."""
    return [
        value.name
        for node in model.graph
        for value in node.outputs
        if value.name and query.element_type(value) is FLOAT
    ]


def lossy(content: npt.NDArray[np.generic], float_type: FloatType) -> str | None:
    """Why a constant can't be stored in 16 bits, or None."""
    values = content.astype(np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    with np.errstate(over="ignore"):
        rounded = finite.astype(np.float32).astype(NUMPY_TYPES[float_type]).astype(np.float64)
    if not np.all(np.isfinite(rounded)):
        return f"it holds {finite[np.argmax(np.abs(finite))]:.3g}, beyond the range of {float_type.value}"
    signal, noise = float(np.sum(finite**2)), float(np.sum((finite - rounded) ** 2))
    if noise and 10 * np.log10(signal / noise) < MIN_CONSTANT_SQNR_DB[float_type]:
        return f"its values are too small for {float_type.value} (the largest is {np.abs(finite).max():.3g})"
    return None


class _Compute:
    """Decides node by node."""

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
        self._keep_sizes_exact(nodes)
        computed = tuple(node.name or "" for node in nodes if node.name not in self.kept)
        return HalfCompute(self.float_type, computed, self.kept, tuple(self.masks), io)

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
            return "control flow hands its values on in float32"
        if node.op_type in TYPED_BY_ATTRIBUTE:
            return "its type is set by an attribute"
        slots = half_slots(node, self.opset, self.dtype)
        if slots is None:
            return f"nothing is known about {node.op_type} in {self.float_type.value}"
        if node.name in self.plan.nodes and not _stays_float_kernel(self.plan.nodes[node.name].lowering):
            return "it is quantized"
        return self._types(node, slots) or self._constants(node, slots) or self._range(node)

    def _types(self, node: ir.Node, slots: HalfSlots) -> str | None:
        if any(v.dtype is None and v.name for v in node.outputs):
            return "the types of its results are not known"
        for index, value in enumerate(node.outputs):
            if query.element_type(value) is FLOAT and not slots.gives(index):
                return f"{node.op_type} gives no {self.float_type.value} at opset {self.opset}"
        if query.is_op(node, "Cast") and not _is_safe_cast(node):
            return "it converts numbers that may be beyond the range"
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
            found = self.ranges.get(value.name or "") if value is not None else None
            if found is None or _masks_reach(found, node):
                continue
            reached = max(abs(found.low), abs(found.high))
            if not reached <= self.limit:
                return f"{value.name if value else ''} reached {reached:.3g} in calibration"
        return None

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


_EXACT = "its result becomes sizes or indices, which have to be exact"


def _stays_float_kernel(lowering: str) -> bool:
    """Whether a quantized node still computes with float activations, of either type."""
    return lowering in (MATMUL_NBITS.op_type, GATHER_BLOCKS.op_type)


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


def reaches_softmax(node: ir.Node) -> bool:
    """Whether a value of this node ends in a Softmax by way of operators that carry masks."""
    todo, seen = [node], {node}
    while todo and len(seen) < _MASK_DEPTH:
        one = todo.pop()
        if one.op_type in MAKE_PROBABILITIES:
            return True
        if one.op_type not in CARRIES_MASKS:
            continue
        for reader in (reader for value in one.outputs for reader in query.readers(value)):
            if reader not in seen:
                seen.add(reader)
                todo.append(reader)
    return False


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
