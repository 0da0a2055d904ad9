"""Scopes and order: what a node may see, in which order nodes stand, and what nothing needs.

A node sees the values of its own graph and of the graphs around it. A node that carries subgraphs depends on
everything that the nodes inside read from outside.
"""

from __future__ import annotations

import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph.query import attributes, graphs, initializers, opset, subgraphs, takes_graphs
from octavo.model.graph.schema import check_node

_MAX_DEPTH = 64  # of subgraphs, as when a file is read
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _label(node: ir.Node) -> str:
    return (
        f"{node.op_type} node {node.name!r}"
        if node.name
        else f"{node.op_type} node with output {_outputs(node)}"
    )


def _outputs(node: ir.Node) -> str:
    return repr(node.outputs[0].name) if node.outputs else "(none)"


def check_scopes(model: ir.Model) -> None:
    """Raise unless every input and output is defined where it can be seen, and nodes are what they say."""
    _check_graph(model.graph, set(), opset(model))


def _check_graph(graph: ir.Graph, outer: set[ir.Graph], version: int) -> None:
    if len(outer) > _MAX_DEPTH:
        raise ModelError(f"Subgraphs are nested more than {_MAX_DEPTH} deep.")
    visible = outer | {graph}
    for node in graph:
        check_node(node, version)
        for value in node.inputs:
            if value is not None and value.graph not in visible:
                raise ModelError(
                    f"The {_label(node)} reads {value.name!r}, which no node, input or initializer in its "
                    "scope defines; the model is broken: export it again."
                )
        for name, attribute in attributes(node).items():
            if attribute.type in _GRAPHS and not takes_graphs(node):
                raise ModelError(
                    f"The {_label(node)} carries a graph in its attribute {name!r}, and {node.op_type} takes "
                    "none; the model is damaged: export it again."
                )
            if attribute.ref_attr_name is not None:
                raise ModelError(
                    f"The {_label(node)} refers to an attribute of a function outside of any function."
                )
        for inner in subgraphs(node):
            _check_graph(inner, visible, version)
    for value in graph.outputs:
        defined = value.producer() is not None or value.is_graph_input() or value.is_initializer()
        if not defined or value.graph is not graph:
            raise ModelError(
                f"The output {value.name!r} of graph {graph.name!r} is not produced in it; return an outer "
                "value through an Identity node, or export the model again."
            )


def sort(model: ir.Model) -> bool:
    """Put all nodes in topological order; returns whether anything had to move."""
    if in_order(model):
        return False
    check_acyclic(model)
    model.graph.sort()
    return True


def check_acyclic(model: ir.Model) -> None:
    """Raise if a node, in any scope, depends on itself: no walk along a cycle would end."""
    if in_order(model):
        return
    for graph in graphs(model):
        left = _left(graph)
        if left:
            raise ModelError(f"The graph has a cycle through {_cycle(left)}; ONNX graphs are acyclic.")


def in_order(model: ir.Model) -> bool:
    """Whether each node, in every scope, comes after those it reads from, and those exist."""
    return _in_order(model.graph, set())


def _in_order(graph: ir.Graph, done: set[ir.Node]) -> bool:
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in done:
                return False
        for inner in subgraphs(node):
            if not _in_order(inner, done):
                return False
        done.add(node)
    return True


def _reads(node: ir.Node) -> list[ir.Node]:
    """Return the producers of what a node, and the nodes inside it, read."""
    found = [value.producer() for value in node.inputs if value is not None]
    for inner in subgraphs(node):
        for inside in inner:
            found.extend(_reads(inside))
    return [producer for producer in found if producer is not None]


def _left(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes of a graph that are never ready to run: those on a cycle, and all behind them."""
    ready = dict.fromkeys(graph, 0)
    users: dict[ir.Node, list[ir.Node]] = {}
    for node in graph:
        for producer in _reads(node):
            if producer in ready:
                ready[node] += 1
                users.setdefault(producer, []).append(node)
    free = [node for node, count in ready.items() if count == 0]
    while free:
        for user in users.get(free.pop(), ()):
            ready[user] -= 1
            if ready[user] == 0:
                free.append(user)
    return {node for node, count in ready.items() if count > 0}


def _cycle(left: set[ir.Node]) -> str:
    """Return the names of the nodes along some cycle, found by a walk backwards until one repeats."""
    path: list[ir.Node] = [next(iter(left))]
    while path.count(path[-1]) == 1:
        path.append(next(producer for producer in _reads(path[-1]) if producer in left))
    loop = path[path.index(path[-1]) :][::-1]
    return " → ".join(_label(node) for node in loop[:5])


def remove_unused(model: ir.Model) -> tuple[int, int]:
    """Remove nodes and initializers that no output depends on; returns how many of each."""
    nodes = _remove_nodes(model.graph)
    graph = model.graph
    unused = [v for v in initializers(graph).values() if not v.uses() and not v.is_graph_output()]
    for value in unused:
        if value.name is not None and not value.is_graph_input():
            graph.initializers.pop(value.name)
    return nodes, len(unused)


def _remove_nodes(graph: ir.Graph) -> int:
    count = 0
    dead: list[ir.Node] = []
    for node in reversed(graph):
        outputs = node.outputs
        if outputs and not any(value.uses() or value.is_graph_output() for value in outputs):
            detach(node)
            dead.append(node)
            continue
        for inner in subgraphs(node):
            count += _remove_nodes(inner)
    graph.remove(dead)
    return count + len(dead)


def detach(node: ir.Node) -> set[ir.Value]:
    """Let go of everything that a node, and the nodes inside it, read; returns what that was."""
    read = {value for value in node.inputs if value is not None}
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    for inner in subgraphs(node):
        for inside in inner:
            read |= detach(inside)
    return read
