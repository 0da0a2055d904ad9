"""Ranges that would ruin a model, recognized by structure before, and by numbers after calibration.

One 8-bit scale has 255 steps. Attention scores of a few units that share it with a mask of -1e4 or
-3.4e38 have none left; neither have class scores in 0 … 1 that are joined with boxes in 0 … 640.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Bounded, Entry, Fixed, Measured, Plan
from octavo.core.scheme import Scheme
from octavo.core.stats import Range
from octavo.model import query
from octavo.planning.candidates import Avoid

RATIO = 16.0  # joined ranges that differ by more leave the smaller one under 4 bits
MASK = 64.0  # magnitudes at which a constant added to scores is a mask and no bias
OVERFLOW = 1e30  # magnitudes that no signal has

_TO_SOFTMAX = frozenset(
    {"Add", "Where", "Sub", "Mul", "Div", "Reshape", "Transpose", "Cast", "Identity", "Max", "Clip", "Expand"}
)
_MASKING = frozenset({"Add", "Where", "Sub", "Max", "Min"})
_SUMS = frozenset({"Add", "ReduceSum"})
_MOVES = frozenset({"Slice", "Split", "Squeeze", "Unsqueeze", "Gather", "Reshape", "Transpose", "Identity"})
_BEHIND = 9  # operators from a Concat to a layer, and no more
_FAR = 8  # operators between a mask and its Softmax, and more
_MASKED = "it masks the scores of a Softmax: one scale for scores and mask leaves the scores no steps"


def structural(nodes: Sequence[ir.Node]) -> Avoid:
    """What shows without data: nodes that mix a mask into what a Softmax reads, and the tensors behind."""
    far = _steps_to_softmax(nodes)
    masking: dict[str, str] = {}
    tensors: dict[str, str] = {}
    for node in nodes:
        if not any(v in far for v in node.outputs):
            continue
        behind = node.op_type in _TO_SOFTMAX and any(v is not None and v.name in tensors for v in node.inputs)
        if _masks(node):
            masking[node.name or ""] = _MASKED
        if behind or _masks(node):
            tensors.update((v.name or "", "it holds the masked scores of a Softmax") for v in node.outputs)
    return Avoid({**masking, **_spectra(nodes)}, tensors)


def _spectra(nodes: Sequence[ir.Node]) -> dict[str, str]:
    """Products whose results are squared and rooted: a spectrum spans more than 8 bits hold."""
    found: dict[str, str] = {}
    for node in nodes:
        if node.op_type != "Sqrt" or node.domain:
            continue
        todo = [(node.inputs[0], False)]
        seen: set[tuple[ir.Node, bool]] = set()
        while todo:
            value, squared = todo.pop()
            maker = value.producer() if value is not None else None
            if maker is None or maker.domain or (maker, squared) in seen:
                continue
            seen.add((maker, squared))
            if squared and maker.op_type in ("Conv", "MatMul", "Gemm"):
                found[maker.name or ""] = (
                    "its result is a spectrum, whose magnitudes span more than 8 bits hold"
                )
            elif maker.op_type == "Pow" or (maker.op_type == "Mul" and maker.inputs[0] is maker.inputs[1]):
                todo.append((maker.inputs[0], True))
            elif maker.op_type in (_MOVES if squared else _SUMS):
                todo.extend((v, squared) for v in maker.inputs[: None if not squared else 1])
    return found


def _steps_to_softmax(nodes: Sequence[ir.Node]) -> dict[ir.Value, int]:
    """The values from which a Softmax is a few steps away, with their number."""
    far: dict[ir.Value, int] = {}
    for node in reversed(nodes):
        steps = (
            0
            if node.op_type == "Softmax"
            else min((far[v] + 1 for v in node.outputs if v in far), default=_FAR)
        )
        if steps < _FAR and (node.op_type in _TO_SOFTMAX or steps == 0):
            for value in node.inputs:
                if value is not None:
                    far[value] = min(steps, far.get(value, _FAR))
    return far


def _masks(node: ir.Node) -> bool:
    """Whether a node may mix a mask into scores: unless what it adds is a small constant, such as a bias."""
    if node.domain or node.op_type not in _MASKING:
        return False
    operands = node.inputs[1:] if node.op_type == "Where" else node.inputs
    given = [v for v in operands if query.constant(v) is not None]
    if not given:
        return True
    contents = [query.array(v) for v in given]
    return any(c is None or (c.size and not np.abs(c.astype(np.float64)).max() < MASK) for c in contents)


def holds_clamp(entry: Entry, high: float) -> bool:
    """Whether the integers of an entry hold nothing below zero nor above ``high``, so that a clamp can go."""
    match entry:
        case Measured(scheme):
            return _starts_at_zero(scheme, high)
        case Bounded(scheme, low, top):
            return low >= 0.0 and top <= high and _starts_at_zero(scheme, high)
        case Fixed(scheme, (scale,), (zero,)) if not scheme.qtype.is_float:
            steps = scheme.qtype.qmax - scheme.qtype.qmin
            return zero == scheme.qtype.qmin and scale * steps <= high * (1 + 1e-6)
        case _:
            return False


def _starts_at_zero(scheme: Scheme, high: float) -> bool:
    """Whether a range from zero on has its zero point at the lowest integer, and its top at the highest."""
    if scheme.symmetric or scheme.qtype.is_float or scheme.qtype.bits < 8:
        return False
    if scheme.reduce_range and (scheme.qtype.signed or high < float("inf")):
        return False  # a kernel saturates at the limits of the type, not at the reduced ones
    return scheme.min_range is None or scheme.min_range <= high


def holds_interval(scheme: Scheme, low: float, high: float) -> bool:
    """Whether the integers of a range measured inside an interval around zero hold nothing outside it."""
    plain = not (scheme.symmetric or scheme.restricted or scheme.reduce_range or scheme.qtype.is_float)
    return plain and scheme.qtype.bits >= 8 and (scheme.min_range or 0.0) <= high - low


def numeric(
    model: ir.Model,
    plan: Plan,
    ranges: Mapping[str, Range],
    unusable: Mapping[str, str],
    unseen: frozenset[str] = frozenset(),
) -> Avoid:
    """What the measured ranges speak against: tensors without a usable range, and joins of unlike ranges."""
    tensors = dict(unusable)
    for name, found in ranges.items():
        if max(-found.low, found.high) >= OVERFLOW:
            tensors[name] = (
                f"its values reach {max(-found.low, found.high):.3g}: a mask or an overflow, not a signal"
            )
    nodes: dict[str, str] = {}
    quantized = plan.nodes
    for node in query.nodes(model):
        if node.name in quantized and node.op_type == "Concat" and not _feeds_product(node, plan):
            reason = _unlike(node, plan, ranges)
            if reason is not None:
                nodes[node.name or ""] = reason
    return Avoid(nodes, tensors, unseen)


def _feeds_product(node: ir.Node, plan: Plan) -> bool:
    """Whether a weight layer reads the joined tensor: then one scale is what it needs anyway."""
    here = {node}
    for _ in range(_BEHIND):
        here = {r for n in here for r in n.outputs[0].consumers() if r.name in plan.nodes and r.outputs}
        if any(reader.op_type in ("Conv", "Gemm", "MatMul") for reader in here):
            return True
    return False


def _unlike(node: ir.Node, plan: Plan, ranges: Mapping[str, Range]) -> str | None:
    tops = [
        top
        for v in node.inputs
        if v is not None and (top := _top(v.name or "", node, plan, ranges)) is not None
    ]
    if len(tops) < 2 or min(tops) <= 0 or max(tops) / min(tops) < RATIO:
        return None
    ends = f"{min(tops):.3g} and {max(tops):.3g}"
    return f"it joins ranges of {ends}: one scale would leave the smaller one too few steps"


def _top(tensor: str, node: ir.Node, plan: Plan, ranges: Mapping[str, Range]) -> float | None:
    """The largest magnitude of a tensor that a node reads quantized, measured or known."""
    key = plan.lookup(tensor, node.name or "")
    if key is None:
        return None
    root = plan.root(key)
    entry = plan.entries.get(root)
    if isinstance(entry, Bounded):
        return max(-entry.low, entry.high)
    found = ranges.get(root.tensor) if isinstance(entry, Measured) else None
    return max(-found.low, found.high) if found is not None else None
