"""Constants are moved into the body of an If, Loop or Scan that alone reads them.

The runtime passes everything that a body reads from outside to it each time it runs, while a constant of the
body's own costs nothing. While Octavo works on a model, the main graph holds all constants; they are moved
before the model is written.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from octavo.model.graph.query import graphs, nodes, subgraphs

MAX_BYTES = 64 << 20  # bytes; a body's constants have no place in an external file
_FOLDED = frozenset({"Cast", "Mul", "Transpose"})  # of constants: the runtime computes them at load
_LEAST_IR = 4  # before, an initializer had to be an input too


def sink(model: ir.Model) -> int:
    """Move constants of the main graph, and what is folded of them, in place; returns how many."""
    owners = {inner: node for node in nodes(model) for inner in subgraphs(node)}
    if not owners or (model.ir_version or 0) < _LEAST_IR:
        return 0
    count = sum(_sink_node(node, owners) for node in reversed(list(model.graph)))
    room = MAX_BYTES - _held(model)
    for value in list(model.graph.initializers.values()):
        home, tensor = _home(value, owners), value.const_value
        if home is None or home is model.graph or tensor is None or tensor.nbytes > room:
            continue
        room -= int(tensor.nbytes)
        model.graph.initializers.pop(value.name or "")
        home.initializers.add(value)
        count += 1
    return count


def _held(model: ir.Model) -> int:
    """Return the bytes that bodies hold already."""
    inner = [graph for graph in graphs(model) if graph is not model.graph]
    tensors = (value.const_value for graph in inner for value in graph.initializers.values())
    return sum(int(tensor.nbytes) for tensor in tensors if tensor is not None)


def _sink_node(node: ir.Node, owners: dict[ir.Graph, ir.Node]) -> int:
    """Move a node that reads constants alone in front of its readers; a loop would run it again and again."""
    if node.op_type not in _FOLDED or node.domain or not all(map(_is_constant, node.inputs)):
        return 0
    home = _home(node.outputs[0], owners)
    path = _path(home, owners) if home is not None else []
    loops = [i for i, graph in enumerate(path) if graph in owners and owners[graph].op_type != "If"]
    target = path[loops[0] - 1] if loops else home
    if target is None or target is node.graph or node.graph is None:
        return 0
    node.graph.remove(node)
    target.insert_before(target[0], [node])
    return 1


def _is_constant(value: ir.Value | None) -> bool:
    if value is None or value.is_graph_input():
        return False
    producer = value.producer()
    if producer is None:
        return value.is_initializer()
    return producer.op_type in _FOLDED and not producer.domain and all(map(_is_constant, producer.inputs))


def _home(value: ir.Value, owners: dict[ir.Graph, ir.Node]) -> ir.Graph | None:
    """Return the innermost graph that holds all readers of a value; None where it has to stay."""
    if value.is_graph_output() or value.is_graph_input() or not value.uses():
        return None
    return _shared({node.graph for node, _ in value.uses()}, owners)


def _shared(
    found: Iterable[ir.Graph | ir.Function | None], owners: dict[ir.Graph, ir.Node]
) -> ir.Graph | None:
    paths = [_path(graph, owners) for graph in found if isinstance(graph, ir.Graph)]
    home: ir.Graph | None = None
    for level in zip(*paths, strict=False):
        if len(set(level)) > 1:
            break
        home = level[0]
    return home


def _path(graph: ir.Graph, owners: dict[ir.Graph, ir.Node]) -> list[ir.Graph]:
    """Return the graphs around a graph, from the main one to itself."""
    found = [graph]
    while found[-1] in owners:
        around = owners[found[-1]].graph
        if not isinstance(around, ir.Graph):
            break
        found.append(around)
    return found[::-1]
