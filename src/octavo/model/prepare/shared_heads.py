"""Attention with fewer heads of keys and values than of queries, without copies of those heads.

Exporters write grouped attention by repeating keys and values: ``Unsqueeze``, ``Expand``, ``Reshape`` from
``[b, g, t, d]`` to ``[b, g·n, t, d]``, so that every query head has a copy. Each generated token copies the
whole cache in every layer. Queries of heads that share keys are rows of one matrix all the same::

    A [b, g·n, s, k] · repeat(B [b, g, k, m])  =  reshape(reshape(A, [b, g, n·s, k]) · B, [b, g·n, s, m])

The sums are the same, and nothing is copied: ``Reshape`` moves no values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.model.prepare.graph_patterns import made_by

_TURNED = (0, 1, 3, 2)  # the permutation that turns the matrices of a stack around
_AXES = 4
Dims = Sequence[int | ir.SymbolicDim]


@dataclass(frozen=True)
class _Repeated:
    """Heads before they are repeated, and how many there are before and after."""

    source: ir.Value
    heads: int
    all_heads: int


def share_heads(model: ir.Model) -> int:
    """Let products read heads instead of their copies, in place; returns how many products."""
    edit, changed = Editor(model), 0
    for node in [node for node in query.nodes(model) if query.is_op(node, "MatMul")]:
        turn = made_by(node.inputs[1], "Transpose")
        copies = node.inputs[1] if turn is None else turn.inputs[0]
        if turn is not None and tuple(query.attribute(turn, "perm", ())) != _TURNED:
            continue
        found = _repeated(copies)
        dims = query.shape(node.inputs[0])
        if found is None or node.graph is None or dims is None or len(dims) != _AXES:
            continue
        if dims[1] == found.all_heads:
            _rewrite(edit, node, turn, found)
            changed += 1
    return changed


# ---- Recognising the copies: only where it is certain that nothing but the heads is repeated


def _repeated(value: ir.Value | None) -> _Repeated | None:
    """Return what a value of shape ``[b, g·n, t, d]`` repeats, if it does."""
    joined = made_by(value, "Reshape")
    expanded = made_by(joined.inputs[0], "Expand") if joined is not None else None
    apart = made_by(expanded.inputs[0], "Unsqueeze") if expanded is not None else None
    source = apart.inputs[0] if apart is not None else None
    if joined is None or expanded is None or apart is None or source is None:
        return None
    before, wide = _dims(apart.outputs[0]), _dims(expanded.outputs[0])
    after, heads = _dims(joined.outputs[0]), query.shape(source)
    if before is None or wide is None or after is None or heads is None:
        return None
    if (len(heads), len(before), len(wide), len(after)) != (_AXES, _AXES + 1, _AXES + 1, _AXES):
        return None
    count, copies = before[1], wide[2]
    if before[2] != 1 or heads[1] != count or not isinstance(count, int) or not isinstance(copies, int):
        return None
    lengths = query.array(expanded.inputs[1])
    kept = all(_same(before[axis], wide[axis]) or _entry(lengths, axis) == 1 for axis in (0, 1, 3, 4))
    target = query.array(joined.inputs[1])
    copied = _entry(target, 0) == 0 and not query.attribute(joined, "allowzero", 0)
    rows = _same(wide[0], after[0]) or copied or _same(wide[3], after[2])
    if not kept or not rows or after[1] != count * copies or not _same(wide[4], after[3]):
        return None
    return _Repeated(source, count, count * copies)


def _dims(value: ir.Value) -> Dims | None:
    return value.shape.dims if value.shape is not None else None


def _same(left: int | ir.SymbolicDim, right: int | ir.SymbolicDim) -> bool:
    """Whether two dimensions are known to be the same: as numbers, or by one name."""
    if isinstance(left, int) or isinstance(right, int):
        return left == right
    return left.value is not None and left.value == right.value


def _entry(list_of: np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None, index: int) -> int | None:
    return int(np.ravel(list_of)[index]) if list_of is not None and list_of.size > index else None


# ---- Rewriting one product


def _rewrite(edit: Editor, node: ir.Node, turn: ir.Node | None, found: _Repeated) -> None:
    """Let a product read the heads themselves; its queries become rows before, and heads again behind."""
    name, left = node.name or "MatMul", node.inputs[0]
    graph, kind = node.graph, node.outputs[0].dtype
    if left is None or graph is None:
        return
    rows = _reshaped(edit, left, found.heads, f"{name}_rows", None)
    before, right = [rows], found.source
    if turn is not None:
        turned = edit.node("Transpose", [right], {"perm": list(_TURNED)}, name=f"{name}_turned", dtype=kind)
        turned.outputs[0].shape = _turned(right)
        before.append(turned)
        right = turned.outputs[0]
    graph.insert_before(node, before)
    node.replace_input_with(0, rows.outputs[0])
    node.replace_input_with(1, right)
    last = _scaled(node)
    made = last.outputs[0]
    whole = made.shape
    back = _reshaped(edit, made, found.all_heads, f"{name}_heads", whole)
    graph.insert_after(last, [back])
    out = made.name or name
    made.replace_all_uses_with(back.outputs[0], replace_graph_outputs=True)
    back.replace_input_with(0, made)
    edit.values.taken.discard(back.outputs[0].name or "")
    made.name, back.outputs[0].name = edit.values.claim(f"{out}_rows"), out
    for value in {node.outputs[0], made}:
        value.shape = _with_heads(value.shape, found.heads)


def _scaled(node: ir.Node) -> ir.Node:
    """Return the last node of a product and what scales it: the runtime computes both at once."""
    while True:
        reader = query.only_reader(node.outputs[0])
        if reader is None or reader.graph is not node.graph or not query.is_op(reader, "Mul", "Div"):
            return node
        index = 1 if reader.inputs[0] is node.outputs[0] else 0
        if query.scalar(reader.inputs[index]) is None or (index == 0 and reader.op_type == "Div"):
            return node
        if (query.rank(reader.inputs[index]) or 0) > 1:
            return node
        node = reader


def _reshaped(edit: Editor, value: ir.Value, heads: int, name: str, dims: ir.Shape | None) -> ir.Node:
    """Return a Reshape to this number of heads: batch and columns stay, rows follow."""
    target = edit.constant(f"{name}_shape", np.array([0, heads, -1, 0], np.int64))
    shape = dims if dims is not None else _with_heads(value.shape, heads)
    return edit.node("Reshape", [value, target], name=name, dtype=value.dtype, shape=shape)


def _with_heads(dims: ir.Shape | None, heads: int) -> ir.Shape | None:
    return ir.Shape([dims[0], heads, None, dims[3]]) if dims is not None and len(dims) == _AXES else None


def _turned(value: ir.Value) -> ir.Shape | None:
    dims = value.shape
    return ir.Shape([dims[axis] for axis in _TURNED]) if dims is not None else None
