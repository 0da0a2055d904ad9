"""Ranges that would ruin a model, recognized by structure before, and by numbers after calibration.

One 8-bit scale has 255 steps. Attention scores of a few units that share it with a mask of -1e4 or
-3.4e38 have none left; neither have class scores in 0 … 1 that are joined with boxes in 0 … 640.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from octavo.core.plan import Plan
from octavo.core.stats import Range
from octavo.model import query
from octavo.planning.candidates import Avoid

RATIO = 16.0  # joined ranges that differ by more leave the smaller one under 4 bits
MASK = 1e4  # magnitudes at which a value is a mask and no score

_TO_SOFTMAX = frozenset({"Add", "Where", "Sub", "Mul", "Div", "Reshape", "Transpose", "Cast", "Identity", "Max", "Clip", "Expand"})
_MASKING = frozenset({"Add", "Where", "Sub", "Max", "Min"})


def structural(node: ir.Node) -> str | None:
    """A reason to keep a node float that shows without data: it adds a mask to what a Softmax reads."""
    if node.op_type in _MASKING and not node.domain and _reaches_softmax(node):
        return "it masks the scores of a Softmax: one scale for scores and mask leaves the scores no steps"
    return None


def _reaches_softmax(node: ir.Node, depth: int = 6) -> bool:
    for value in node.outputs:
        for reader in value.consumers():
            if reader.op_type == "Softmax":
                return True
            if depth and reader.op_type in _TO_SOFTMAX and _reaches_softmax(reader, depth - 1):
                return True
    return False


def numeric(model: ir.Model, plan: Plan, ranges: Mapping[str, Range], unusable: Mapping[str, str]) -> Avoid:
    """What the measured ranges speak against: tensors without a usable range, and joins of unlike ranges."""
    tensors = dict(unusable)
    for name, found in ranges.items():
        if max(-found.low, found.high) >= 1e30:
            tensors[name] = f"its values reach {max(-found.low, found.high):.3g}: a mask or an overflow, not a signal"
    nodes: dict[str, str] = {}
    quantized = plan.nodes
    for node in query.nodes(model):
        if node.name in quantized and node.op_type == "Concat" and not _feeds_product(node, plan):
            reason = _unlike(node, plan, ranges)
            if reason is not None:
                nodes[node.name or ""] = reason
    return Avoid(nodes=nodes, tensors=tensors)


def _feeds_product(node: ir.Node, plan: Plan, depth: int = 8) -> bool:
    """Whether a weight layer reads the joined tensor: then one scale is what it needs anyway."""
    for reader in node.outputs[0].consumers():
        if reader.op_type in ("Conv", "Gemm", "MatMul") and reader.name in plan.nodes:
            return True
        if depth and reader.name in plan.nodes and reader.outputs and _feeds_product(reader, plan, depth - 1):
            return True
    return False


def _unlike(node: ir.Node, plan: Plan, ranges: Mapping[str, Range]) -> str | None:
    tops = []
    for value in node.inputs:
        if value is None:
            continue
        key = plan.lookup(value.name or "", node.name or "")
        root = plan.root(key) if key is not None else None
        found = ranges.get(root.tensor) if root is not None else None
        if found is not None:
            tops.append(max(-found.low, found.high))
    if len(tops) < 2 or min(tops) <= 0 or max(tops) / min(tops) < RATIO:
        return None
    return f"it joins ranges of {min(tops):.3g} and {max(tops):.3g}: one scale would leave the smaller one too few steps"
