"""Branches that are decided before the model runs: an ``If`` whose condition is a constant.

Exporters write questions about ranks and sizes as ``If`` (has a batch axis? is a state given?), and constant
folding answers most of them. The nodes of the branch that is taken move to where the ``If`` stood, and the
other branch goes, with the weights that only it read.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.edit import Editor


def are_in(model: ir.Model) -> bool:
    """Whether there is any ``If``."""
    return any(query.is_op(node, "If") for node in query.nodes(model))


def settle(model: ir.Model) -> int:
    """Put the branch that is always taken in place of every such ``If``; returns how many there were.

    One inside of another that goes is looked at when it is in place, by the next call.
    """
    found = list(_decided(model.graph))
    editor = Editor(model)
    for node, branch in found:
        _put_in_place(node, branch, editor)
    return len(found)


def _decided(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Graph]]:
    """Yield every ``If`` that is decided, with the branch that is taken."""
    for node in graph:
        branch = _branch(node) if query.is_op(node, "If") else None
        if branch is not None and _fits(branch, node):
            yield node, branch
        else:
            for inner in query.subgraphs(node):
                yield from _decided(inner)


def _branch(node: ir.Node) -> ir.Graph | None:
    """Return the branch that is always taken, where the condition is a constant."""
    value = query.scalar(node.inputs[0]) if node.inputs else None
    if value is None:
        return None
    found = query.attribute(node, "then_branch" if value else "else_branch")
    return found if isinstance(found, ir.Graph) else None


def _fits(branch: ir.Graph, node: ir.Node) -> bool:
    """Whether the branch gives tensors, one for each result: nothing else can stand in its place."""
    kinds = [value.type for value in (*branch.outputs, *node.outputs) if value.type is not None]
    return len(branch.outputs) == len(node.outputs) and all(isinstance(k, ir.TensorType) for k in kinds)


def _put_in_place(node: ir.Node, branch: ir.Graph, editor: Editor) -> None:
    results = list(branch.outputs)
    branch.outputs.clear()
    nodes = list(branch)
    branch.remove(nodes)
    node.prepend(nodes)
    for result, old in zip(results, node.outputs, strict=True):
        name = old.name or f"{node.name}_result"
        same = editor.node("Identity", [result], name=f"{node.name}_result", output=name)
        same.outputs[0].type = result.type if result.type is not None else old.type
        same.outputs[0].shape = result.shape if result.shape is not None else old.shape
        node.prepend(same)
        editor.take_over(same.outputs[0], old)
    editor.remove([node])
