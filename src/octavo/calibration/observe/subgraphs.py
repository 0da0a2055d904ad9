"""Getting observations out of subgraphs, however they are nested.

======  ==============================================================================================
If      one more output for each; the other branch returns an empty one
Loop    one more carried state for each, merged with that of the iteration; for values, which have no
        fixed size, the state grows, unless their shape is static: then a scan output collects them
Scan    one more state for each; values are collected by a scan output, as states must keep their shape
======  ==============================================================================================

Tensors inside other operators with subgraphs, and inside the ``Scan`` of opset 8, are not observed. Values
inside an ``If`` or ``Loop`` inside a ``Scan`` have no fixed size, so only their extremes are observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from onnx import GraphProto, NodeProto, ValueInfoProto

from octavo.calibration.observe.observations import (
    GraphWriter,
    Nodes,
    Observation,
    Observed,
    describe,
    observe,
)
from octavo.model.graph.protos import bodies, replace_nodes

Inside: TypeAlias = list[tuple[GraphProto, list[Observed]]]


def observe_graph(
    graph: GraphProto,
    observations: Mapping[str, Observation],
    writer: GraphWriter,
    *,
    can_return_values: bool = True,
    in_subgraph: bool = False,
    in_scan: bool = False,
) -> list[Observed]:
    """Observe tensors of a graph and of those inside it; returns what the graph can now return.

    What observes a tensor stands right behind the node that computes it: otherwise the time in which the
    runtime loads a long graph is quadratic.
    """
    found: list[Observed] = []
    nodes: list[NodeProto] = []

    def look(names: Iterable[str], *, is_input: bool = False) -> None:
        options = {"can_return_values": can_return_values, "in_subgraph": in_subgraph, "is_input": is_input}
        for name in names:
            if name in observations:
                found.extend(observe(nodes, name, observations[name], writer, **options))

    look((value.name for value in graph.input), is_input=True)
    for node in graph.node:
        nodes.append(node)
        names = list(node.output)
        way_out = _WAYS_OUT.get(node.op_type) if not node.domain else None
        if way_out is not None:
            is_scan = node.op_type == "Scan"
            can = can_return_values and (is_scan or not in_scan)
            inner = {"can_return_values": can, "in_subgraph": True, "in_scan": in_scan or is_scan}
            inside = [(body, observe_graph(body, observations, writer, **inner)) for body in bodies(node)]
            if any(items for _, items in inside):
                found += way_out(nodes, node, inside, writer)
        look(names)
    if len(nodes) > len(graph.node):
        replace_nodes(graph, nodes)
    return found


def _out_of_if(nodes: Nodes, node: NodeProto, inside: Inside, writer: GraphWriter) -> list[Observed]:
    result: list[Observed] = []
    for branch, found in inside:
        for item in found:
            describe(branch.output.add(name=item.value), item)
            for other, _ in inside:
                if other is not branch:
                    value = writer.node(other.node, "Identity", [writer.empty(item.reduction)], "empty")
                    describe(other.output.add(name=value), item)
            node.output.append(writer.name(item.tensor))
            result.append(replace(item, value=node.output[-1], fixed_shape=item.reduction is not None))
    return result


def _out_of_loop(nodes: Nodes, node: NodeProto, inside: Inside, writer: GraphWriter) -> list[Observed]:
    """Carry states through a Loop: inputs are ``trip count, condition, states …``."""
    ((body, found),) = inside
    states = [item for item in found if item.reduction is not None or not item.fixed_shape]
    scans = [item for item in found if item.reduction is None and item.fixed_shape]
    result = _add_states(node, body, states, writer, at=len(body.input) - 2, ahead=1)
    return result + _add_scans(nodes, node, body, scans, writer)


def _out_of_scan(nodes: Nodes, node: NodeProto, inside: Inside, writer: GraphWriter) -> list[Observed]:
    """Carry states through a Scan: inputs ``states …, sequences …``, outputs ``states …, scans …``."""
    ((body, found),) = inside
    sequences = next(attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs")
    states = [item for item in found if item.reduction is not None]
    scans = [item for item in found if item.reduction is None]
    result = _add_states(node, body, states, writer, at=len(body.input) - sequences, ahead=0)
    for attribute in node.attribute:
        if attribute.name in ("scan_output_directions", "scan_output_axes"):
            attribute.ints.extend([0] * len(scans))
    return result + _add_scans(nodes, node, body, scans, writer)


def _add_states(
    node: NodeProto, body: GraphProto, states: list[Observed], writer: GraphWriter, *, at: int, ahead: int
) -> list[Observed]:
    """Carry a state for each behind the ``at`` that there are; ``ahead`` outputs of the body come first."""
    inputs: list[ValueInfoProto] = []
    outputs: list[ValueInfoProto] = []
    result: list[Observed] = []
    for item in states:
        before = ValueInfoProto(name=writer.name(f"{item.tensor}/before"))
        describe(before, item)
        if item.reduction is not None:
            after = writer.node(body.node, item.reduction.merge_op, [before.name, item.value], item.tensor)
        else:
            after = writer.node(body.node, "Concat", [before.name, item.value], item.tensor, axis=0)
        inputs.append(before)
        outputs.append(ValueInfoProto(name=after))
        describe(outputs[-1], item)
        result.append(replace(item, value=writer.name(item.tensor)))
    position = 2 * ahead + at
    _insert(body.input, position, inputs)
    _insert(body.output, ahead + at, outputs)
    names = list(node.input)
    node.input[:] = [*names[:position], *(writer.empty(item.reduction) for item in states), *names[position:]]
    names = list(node.output)
    names += [writer.name("unused") for _ in range(at - len(names))]
    node.output[:] = [*names[:at], *(item.value for item in result), *names[at:]]
    return result


def _add_scans(
    nodes: Nodes, node: NodeProto, body: GraphProto, scans: list[Observed], writer: GraphWriter
) -> list[Observed]:
    """Collect values over the iterations, and make them a row again behind the node."""
    result: list[Observed] = []
    for item in scans:
        describe(body.output.add(name=item.value), item)
        node.output.append(writer.name(item.tensor))
        row = writer.node(nodes, "Reshape", [node.output[-1], writer.row()], item.tensor)
        result.append(replace(item, value=row, fixed_shape=False))
    return result


def _insert(values: Any, at: int, new: list[ValueInfoProto]) -> None:
    """Put values into a repeated field, which can only be cut and extended."""
    behind = [ValueInfoProto.FromString(value.SerializeToString()) for value in values[at:]]
    del values[at:]
    values.extend([*new, *behind])


_WayOut: TypeAlias = Callable[[Nodes, NodeProto, Inside, GraphWriter], list[Observed]]
_WAYS_OUT: dict[str, _WayOut] = {"If": _out_of_if, "Loop": _out_of_loop, "Scan": _out_of_scan}
