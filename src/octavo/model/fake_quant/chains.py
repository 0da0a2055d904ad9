"""Fake quantization written as arithmetic: ``y = c · clip(round(a · x + b)) + d`` in any order of steps.

From a Round (or a Floor of something plus a half) the steps are followed both ways. It is fake quantization
where ``c · a = 1``, ``b`` and ``-d / c`` are the same integer, which is the zero point, and some Clip bounds
the integers on both sides, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.model.fake_quant.forms import Array, FakeQuant, typed
from octavo.model.graph import query

_MAX_STEPS = 8  # steps on either side
_MAX_CHANNELS = 1 << 16  # channels
_STEPS = frozenset({"Add", "Sub", "Mul", "Div", "Clip", "Min", "Max", "Cast", "Identity"})


@dataclass(frozen=True, eq=False)
class _Line:
    """``value = factor · t + shift`` with ``low <= t <= high``."""

    factor: Array
    shift: Array
    low: Array
    high: Array

    def clipped(self, low: Array, high: Array) -> _Line:
        t_low, t_high = (low - self.shift) / self.factor, (high - self.shift) / self.factor
        return _Line(self.factor, self.shift, np.maximum(self.low, t_low), np.minimum(self.high, t_high))


_START = _Line(np.ones(()), np.zeros(()), np.asarray(-np.inf), np.asarray(np.inf))


def chain(node: ir.Node) -> FakeQuant | None:
    """Return the chain around this Round or Floor; the longest one that rounds to a grid."""
    if node.op_type not in ("Round", "Floor") or node.domain or node.inputs[0] is None:
        return None
    before, after = _before(node), _after(node)
    for total in range(len(before) + len(after), -1, -1):
        for count in range(min(total, len(before)), -1, -1):
            if total - count <= len(after):
                found = _fits(node, before[:count], after[: total - count])
                if found is not None:
                    return found
    return None


def _before(node: ir.Node) -> list[ir.Node]:
    """Return the steps in front of a node, the nearest first."""
    found: list[ir.Node] = []
    here = node.inputs[0]
    while here is not None and len(found) < _MAX_STEPS:
        maker = here.producer()
        if not _is_step(maker) or maker is None or query.only_reader(here) is None:
            break
        found.append(maker)
        here = _operand(maker)
    return found


def _after(node: ir.Node) -> list[ir.Node]:
    found: list[ir.Node] = []
    here = node.outputs[0]
    while len(found) < _MAX_STEPS:
        reader = query.only_reader(here)
        if not _is_step(reader) or reader is None or _operand(reader) is not here:
            break
        found.append(reader)
        here = reader.outputs[0]
    return found


def _is_step(node: ir.Node | None) -> bool:
    return node is not None and not node.domain and node.op_type in _STEPS and _operand(node) is not None


def _operand(node: ir.Node) -> ir.Value | None:
    """Return the one input that is not a constant; of constants alone the largest, a weight; else None."""
    flowing = [v for v in node.inputs if v is not None and query.constant(v) is None]
    if not flowing:
        sizes = {v: tensor.size for v in node.inputs if v is not None and (tensor := query.constant(v))}
        flowing = [v for v, size in sizes.items() if size == max(sizes.values())]
    if len(flowing) != 1:
        return None
    if node.op_type in ("Sub", "Div", "Clip") and flowing[0] is not node.inputs[0]:
        return None
    return flowing[0]


def _through(line: _Line, steps: Sequence[ir.Node]) -> _Line | None:
    for node in steps:
        along = _operand(node)
        numbers = [query.array(v, limit=_MAX_CHANNELS) if v is not along else None for v in node.inputs]
        given = next((n.astype(np.float64) for n in numbers if n is not None), None)
        match node.op_type:
            case "Cast" | "Identity":
                continue
            case "Clip":
                line = line.clipped(_bound(node, 1, "min", -np.inf), _bound(node, 2, "max", np.inf))
                continue
        if given is None or len(node.inputs) != 2:
            return None
        match node.op_type:
            case "Min":
                line = line.clipped(np.asarray(-np.inf), given)
            case "Max":
                line = line.clipped(given, np.asarray(np.inf))
            case "Add" | "Sub":
                shift = line.shift + (given if node.op_type == "Add" else -given)
                line = _Line(line.factor, shift, line.low, line.high)
            case _:
                if np.any(given <= 0):
                    return None
                by = given if node.op_type == "Mul" else 1.0 / given
                line = _Line(line.factor * by, line.shift * by, line.low, line.high)
    return line


def _bound(node: ir.Node, index: int, name: str, default: float) -> Array:
    """Return a bound of a Clip: an input, or, before opset 11, an attribute; NaN where it is computed."""
    value = query.operand(node, index)
    if value is None:
        return np.asarray(query.attribute(node, name, default), np.float64)
    found = query.array(value, limit=_MAX_CHANNELS)
    return np.asarray(np.nan if found is None else found, np.float64)


def _fits(node: ir.Node, before: Sequence[ir.Node], after: Sequence[ir.Node]) -> FakeQuant | None:
    source = _operand(before[-1]) if before else node.inputs[0]
    pre, post = _through(_START, list(reversed(before))), _through(_START, after)
    if pre is None or post is None or source is None:
        return None
    shift = pre.shift - (0.5 if node.op_type == "Floor" else 0.0)
    scale, zero = post.factor, -post.shift / post.factor
    if not before or not after or not np.allclose(scale * pre.factor, 1.0, rtol=1e-4, atol=0.0):
        return None
    if not np.allclose(zero, np.rint(zero), atol=1e-2) or not np.allclose(shift, zero, atol=1e-2):
        return None
    low = np.maximum(pre.factor * pre.low + shift, post.low)
    high = np.minimum(pre.factor * pre.high + shift, post.high)
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        return None
    result = after[-1].outputs[0] if after else node.outputs[0]
    if not query.is_float(result) and query.element_type(result) is not None:
        return None
    shape = np.broadcast_shapes(scale.shape, zero.shape, low.shape, high.shape)
    parts = [np.broadcast_to(a, shape) for a in (scale, np.rint(zero), np.rint(low), np.rint(high))]
    long = [i for i, n in enumerate(shape) if n > 1]
    rank = query.rank(source)
    if len(long) > 1 or (long and rank is None):
        return None
    axis = long[0] + (rank or 0) - len(shape) if long else None
    scales, zeros, lows, highs = (part.reshape(-1) for part in parts)
    made = typed(scales, zeros, lows, highs, axis)
    if made is None:
        return None
    return FakeQuant(source, (result,), (*reversed(before), node, *after), *made)
