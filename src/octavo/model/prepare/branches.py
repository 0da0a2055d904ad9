"""Branches that are decided before the model runs: an ``If`` whose condition is a constant.

Exporters write questions about ranks and sizes as ``If`` (has a batch axis? is a state given?), and constant
folding answers most of them. The nodes of the branch that is taken move to where the ``If`` stood, and the
other branch goes, with the weights that only it read.
"""

from __future__ import annotations

import onnx_ir as ir

from octavo.model import query
from octavo.model.edit import Editor


def are_in(model: ir.Model) -> bool:
    """Whether there is any ``If``."""
    return any(query.is_op(node, "If") for node in query.nodes(model))


def settle(model: ir.Model) -> int:
    """Put the branch that is always taken in place of every such ``If``; returns how many there were."""
    found = [node for node in query.nodes(model) if query.is_op(node, "If") and _answer(node) is not None]
    inner = {id(node) for node in found if any(_holds(other, node) for other in found if other is not node)}
    editor = Editor(model)
    for node in found:
        if id(node) not in inner:  # what is inside of one that goes is looked at again when it is in place
            _put_in_place(node, editor)
    return len(found) - len(inner)


def _answer(node: ir.Node) -> bool | None:
    """What the condition is, where it is a constant."""
    value = query.scalar(node.inputs[0]) if node.inputs else None
    return None if value is None else bool(value)


def _holds(outer: ir.Node, node: ir.Node) -> bool:
    """Whether a node lies inside another, at any depth."""
    for graph in query.subgraphs(outer):
        if node.graph is graph or any(_holds(inside, node) for inside in graph):
            return True
    return False


def _put_in_place(node: ir.Node, editor: Editor) -> None:
    branch: ir.Graph = query.attribute(node, "then_branch" if _answer(node) else "else_branch")
    results = list(branch.outputs)
    branch.outputs.clear()
    nodes = list(branch)
    branch.remove(nodes)
    node.prepend(nodes)
    for result, old in zip(results, node.outputs, strict=True):
        name = old.name or f"{node.name}_result"
        same = editor.node("Identity", [result], name=f"{node.name}_result", output=name)
        same.outputs[0].type, same.outputs[0].shape = old.type or result.type, old.shape or result.shape
        node.prepend(same)
        editor.take_over(same.outputs[0], old)
    editor.remove([node])
