"""Ranges that would ruin a model, recognized by structure before, and by numbers after calibration.

One 8-bit scale has 255 steps. Attention scores of a few units that share it with a mask of -1e4 or
-3.4e38 have none left; neither have class scores in 0 … 1 that are joined with boxes in 0 … 640.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Bounded, Measured, Plan
from octavo.core.stats import Range
from octavo.model.graph import query
from octavo.ops import rule_of
from octavo.ops.patterns import (
    COMPLEX_PARTS,
    KEEP_SCORES,
    MAGNITUDE_FLOORS,
    MAGNITUDE_ROOTS,
    MASK_SCORES,
    SCALINGS,
    SQUARES,
    SUMS,
)
from octavo.planning.state import Avoid

RATIO = 16.0  # of joined ranges; a larger one leaves the smaller range fewer than 4 bits
MASK = 64.0  # magnitude from which on a constant added to scores is a mask, not a bias
OVERFLOW = 1e30  # magnitude that no signal has

_TO_LAYER = 9  # operators from a Concat to the layer that reads it, at most
_TO_SOFTMAX = 8  # operators from a mask to its Softmax, fewer than this
_SCORES = KEEP_SCORES | MASK_SCORES
_MASKED = (
    "it masks the scores of a Softmax: one scale for scores and mask leaves no resolution for the scores"
)
_SPECTRUM = "its output is a spectrum, whose magnitudes span more than 8 bits hold"


def structural(nodes: Sequence[ir.Node]) -> Avoid:
    """Return what shows without data: nodes that mask the scores of a Softmax, and spectra."""
    far = _steps_to_softmax(nodes)
    masking: dict[str, str] = {}
    tensors: dict[str, str] = {}
    for node in nodes:
        if not any(v in far for v in node.outputs):
            continue
        behind = node.op_type in _SCORES and any(v is not None and v.name in tensors for v in node.inputs)
        if _masks(node):
            masking[node.name or ""] = _MASKED
        if behind or _masks(node):
            tensors.update((v.name or "", "it holds the masked scores of a Softmax") for v in node.outputs)
    return Avoid({**masking, **_spectra(nodes)}, tensors)


def _spectra(nodes: Sequence[ir.Node]) -> dict[str, str]:
    """Return the linear operators that make a spectrum, which needs more than 8 bits.

    Their results are squared, and a root or a logarithm follows: of the squares, of their sums, or of what
    one more linear operator, such as a bank of mel filters, makes of them.
    """
    found: dict[str, str] = {}
    for node in nodes:
        if node.op_type in MAGNITUDE_ROOTS and not node.domain:
            _trace_spectrum(node.inputs[0], found)
    return found


def _trace_spectrum(root: ir.Value | None, found: dict[str, str]) -> None:
    """Walk from what a root is taken of to the linear operators whose results are squared."""
    todo: list[tuple[ir.Value | None, bool, str | None]] = [(root, False, None)]
    seen: set[tuple[ir.Node, bool]] = set()
    while todo:
        value, squared, filters = todo.pop()
        maker = value.producer() if value is not None else None
        if maker is None or maker.domain or (maker, squared) in seen:
            continue
        seen.add((maker, squared))
        rule, kind = rule_of(maker), maker.op_type
        is_linear = rule is not None and rule.is_linear
        moves = rule is not None and rule.moves_values
        if squared and (is_linear or kind == "STFT"):
            names = [filters] if kind == "STFT" else [filters, maker.name or ""]
            found.update((name, _SPECTRUM) for name in names if name is not None)
        elif kind in SQUARES or (kind == "Mul" and maker.inputs[0] is maker.inputs[1]):
            todo.append((maker.inputs[0], True, filters))
        elif is_linear and filters is None:
            todo.extend((v, False, maker.name or "") for v in maker.inputs)
        elif (
            moves
            or _is_scaled(maker)
            or kind in (COMPLEX_PARTS if squared else SUMS | MAGNITUDE_ROOTS | MAGNITUDE_FLOORS)
        ):
            todo.extend((v, squared, filters) for v in maker.inputs)


def _is_scaled(node: ir.Node) -> bool:
    """Whether a node is a product with a constant."""
    return node.op_type in SCALINGS and any(query.constant(v) is not None for v in node.inputs if v)


def _steps_to_softmax(nodes: Sequence[ir.Node]) -> dict[ir.Value, int]:
    """Return the values from which a Softmax is a few operators away, with their number."""
    far: dict[ir.Value, int] = {}
    for node in reversed(nodes):
        steps = (
            0
            if node.op_type == "Softmax"
            else min((far[v] + 1 for v in node.outputs if v in far), default=_TO_SOFTMAX)
        )
        if steps < _TO_SOFTMAX and (node.op_type in _SCORES or steps == 0):
            for value in node.inputs:
                if value is not None:
                    far[value] = min(steps, far.get(value, _TO_SOFTMAX))
    return far


def _masks(node: ir.Node) -> bool:
    """Whether a node may mix a mask into scores: unless what it adds is a small constant, such as a bias."""
    if node.domain or node.op_type not in MASK_SCORES:
        return False
    operands = node.inputs[1:] if node.op_type == "Where" else node.inputs
    given = [v for v in operands if query.constant(v) is not None]
    if not given:
        return True
    contents = [query.array(v) for v in given]
    return any(c is None or (c.size and not np.abs(c.astype(np.float64)).max() < MASK) for c in contents)


def numeric(
    model: ir.Model,
    plan: Plan,
    ranges: Mapping[str, Range],
    unusable: Mapping[str, str],
    unseen: frozenset[str] = frozenset(),
) -> Avoid:
    """Return what measured ranges rule out: tensors without a usable range, joins of different ranges."""
    tensors = dict(unusable)
    for name, found in ranges.items():
        if max(-found.low, found.high) >= OVERFLOW:
            tensors[name] = (
                f"its values reach {max(-found.low, found.high):.3g}: a mask or an overflow, not a signal"
            )
    nodes: dict[str, str] = {}
    quantized = plan.nodes
    for node in query.nodes(model):
        if node.name in quantized and node.op_type == "Concat" and not _feeds_linear(node, plan):
            reason = _unlike(node, plan, ranges)
            if reason is not None:
                nodes[node.name or ""] = reason
    return Avoid(nodes, tensors, unseen)


def _feeds_linear(node: ir.Node, plan: Plan) -> bool:
    """Whether a linear operator reads the joined tensor: then one scale is what it needs anyway."""
    here = {node}
    for _ in range(_TO_LAYER):
        here = {c for n in here for c in n.outputs[0].consumers() if c.name in plan.nodes and c.outputs}
        if any(rule is not None and rule.is_linear for rule in map(rule_of, here)):
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
    return f"it joins ranges of {ends}: one scale would leave too little resolution for the smaller one"


def _top(tensor: str, node: ir.Node, plan: Plan, ranges: Mapping[str, Range]) -> float | None:
    """Return the largest magnitude of a tensor that a node reads quantized, measured or known."""
    key = plan.lookup(tensor, node.name or "")
    if key is None:
        return None
    root = plan.root(key)
    entry = plan.entries.get(root)
    if isinstance(entry, Bounded):
        return max(-entry.low, entry.high)
    found = ranges.get(root.tensor) if isinstance(entry, Measured) else None
    return max(-found.low, found.high) if found is not None else None
