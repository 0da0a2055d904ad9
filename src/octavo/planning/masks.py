"""Causal masks, recognized by structure: those that hide about half of all scores from a Softmax."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from octavo.model.graph import query
from octavo.ops.patterns import COMPARE_POSITIONS, KEEP_SCORES, MAKE_MASKS

LOW = -64.0  # constants below this, added to scores, hide them: exp of it is nothing
SHARE = 0.25  # of the scores that a mask has to hide, and to leave, to be a causal one
POSITIONS = 32  # a constant mask for fewer is not worth the further nodes
_LARGEST_CONSTANT = 1 << 24  # values of a constant that is looked at
_LOOKED_AT = 1 << 16  # values of such a constant that are counted
_DEPTH = 64  # nodes that are looked at behind a Softmax and behind a mask


def over_last_axis(softmax: ir.Node) -> bool:
    """Whether a Softmax is taken over the last axis."""
    axis = int(query.attribute(softmax, "axis", -1))
    rank = query.rank(softmax.inputs[0])
    return axis == -1 or (rank is not None and axis == rank - 1)


def is_causal(softmax: ir.Node) -> bool:
    """Whether a mask that hides later positions from earlier ones is mixed into what a Softmax reads."""
    value = softmax.inputs[0]
    for _ in range(_DEPTH):
        maker = value.producer() if value is not None else None
        if maker is None or maker.domain:
            return False
        if maker.op_type == "Where":
            return _hides(maker.inputs[0])
        if maker.op_type == "Add":
            return any(_hides(operand) for operand in maker.inputs)
        if maker.op_type not in KEEP_SCORES:
            return False
        value = maker.inputs[0]
    return False


def _hides(mask: ir.Value | None) -> bool:
    """Whether a mask comes from a constant that hides much, or from comparing positions."""
    return any(
        _is_half(found) if isinstance(found, np.ndarray) else found.op_type in COMPARE_POSITIONS
        for found in _behind(mask)
    )


def _behind(mask: ir.Value | None) -> Iterator[ir.Node | np.ndarray]:
    """Yield what a mask is made of: constants, and the nodes before the first that computes no mask."""
    todo, seen = [mask], 0
    while todo and seen < _DEPTH:
        value, seen = todo.pop(), seen + 1
        if value is None:
            continue
        maker, content = value.producer(), query.array(value, limit=_LARGEST_CONSTANT)
        if content is not None:
            yield content
        elif maker is not None and not maker.domain:
            yield maker
            if maker.op_type in MAKE_MASKS:
                todo.extend(maker.inputs)


def _is_half(content: np.ndarray) -> bool:
    """Whether a constant of floats pushes a good part of all scores down, or one of booleans masks it."""
    if content.ndim < 2 or min(content.shape[-2:]) < POSITIONS:
        return False
    flat = content.reshape(-1)
    some = flat[:: -(-flat.size // _LOOKED_AT) | 1]  # an odd step meets every column of a square
    if content.dtype.kind not in "fb":
        return False
    hidden = float(np.mean(some < LOW if content.dtype.kind == "f" else ~some))
    return SHARE <= hidden <= 1 - SHARE
