"""Getting observations out of subgraphs, however they are nested.

======  ==============================================================================================
If      one more output for each; the other branch returns "nothing"
Loop    one more carried state for each, merged with what the iteration gave; for values, which have no
        fixed size, the state grows, unless their shape is static: then a scan output collects them
Scan    one more state for each; values are collected by a scan output, as states must keep their shape
======  ==============================================================================================

Not observed: tensors inside other operators with subgraphs, and inside the ``Scan`` of opset 8. Values inside
an ``If`` or ``Loop`` inside a ``Scan`` have no fixed size, so only their extremes are found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from onnx import GraphProto, NodeProto, ValueInfoProto

from octavo.calibration.observation import Found, Nodes, Wanted, Writer, bodies_of, describe, observe

Inside: TypeAlias = list[tuple[GraphProto, list[Found]]]


def visit(
    graph: GraphProto,
    wanted: Mapping[str, Wanted],
    writer: Writer,
    *,
    can_fetch: bool = True,
    inside: bool = False,
    in_scan: bool = False,
) -> list[Found]:
    """Observe what is wanted in a graph and those inside it; returns what the graph can now return.

    What observes a tensor stands right behind the node that gives it: otherwise the time in which the runtime
    loads a long graph is quadratic.
    """
    found: list[Found] = []
    nodes: list[NodeProto] = []

    def look(names: Iterable[str], given: bool = False) -> None:
        for name in names:
            if name in wanted:
                ways = {"can_fetch": can_fetch, "inside": inside, "given": given}
                found.extend(observe(nodes, name, wanted[name], writer, **ways))

    look((value.name for value in graph.input), given=True)
    for node in graph.node:
        nodes.append(node)
        names = list(node.output)
        way_out = _WAYS_OUT.get(node.op_type) if not node.domain else None
        if way_out is not None:
            is_scan = node.op_type == "Scan"
            can = can_fetch and (is_scan or not in_scan)
            inner = {"can_fetch": can, "inside": True, "in_scan": in_scan or is_scan}
            bodies = [(body, visit(body, wanted, writer, **inner)) for body in bodies_of(node)]
            if any(items for _, items in bodies):
                found += way_out(nodes, node, bodies, writer)
        look(names)
    if len(nodes) > len(graph.node):
        replace_nodes(graph, nodes)
    return found


def replace_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    """Give a graph other nodes, some of which may be its own."""
    del graph.node[:]
    graph.node.extend(nodes)


def _out_of_if(nodes: Nodes, node: NodeProto, inside: Inside, writer: Writer) -> list[Found]:
    result: list[Found] = []
    for branch, found in inside:
        for item in found:
            describe(branch.output.add(name=item.value), item)
            for other, _ in inside:
                if other is not branch:
                    value = writer.node(other.node, "Identity", [writer.nothing(item.part)], "nothing")
                    describe(other.output.add(name=value), item)
            node.output.append(writer.name(item.tensor))
            result.append(replace(item, value=node.output[-1], steady=item.part is not None))
    return result


def _out_of_loop(nodes: Nodes, node: NodeProto, inside: Inside, writer: Writer) -> list[Found]:
    """Inputs are ``trip count, condition, states …``; the body gives ``condition, states …, scans …``."""
    ((body, found),) = inside
    states = [item for item in found if item.part is not None or not item.steady]
    scans = [item for item in found if item.part is None and item.steady]
    result = _add_states(node, body, states, writer, at=len(body.input) - 2, ahead=1)
    return result + _add_scans(nodes, node, body, scans, writer)


def _out_of_scan(nodes: Nodes, node: NodeProto, inside: Inside, writer: Writer) -> list[Found]:
    """Inputs are ``states …, sequences …``, outputs ``states …, scans …``; the body has the same."""
    ((body, found),) = inside
    sequences = next(attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs")
    states = [item for item in found if item.part is not None]
    scans = [item for item in found if item.part is None]
    result = _add_states(node, body, states, writer, at=len(body.input) - sequences, ahead=0)
    for attribute in node.attribute:
        if attribute.name in ("scan_output_directions", "scan_output_axes"):
            attribute.ints.extend([0] * len(scans))
    return result + _add_scans(nodes, node, body, scans, writer)


def _add_states(
    node: NodeProto, body: GraphProto, states: list[Found], writer: Writer, *, at: int, ahead: int
) -> list[Found]:
    """Carry a state for each behind the ``at`` that there are; ``ahead`` outputs of the body come first."""
    inputs: list[ValueInfoProto] = []
    outputs: list[ValueInfoProto] = []
    result: list[Found] = []
    for item in states:
        before = ValueInfoProto(name=writer.name(f"{item.tensor}/before"))
        describe(before, item)
        if item.part is not None:
            after = writer.node(body.node, item.part.merged, [before.name, item.value], item.tensor)
        else:
            after = writer.node(body.node, "Concat", [before.name, item.value], item.tensor, axis=0)
        inputs.append(before)
        outputs.append(ValueInfoProto(name=after))
        describe(outputs[-1], item)
        result.append(replace(item, value=writer.name(item.tensor)))
    place = 2 * ahead + at
    _insert(body.input, place, inputs)
    _insert(body.output, ahead + at, outputs)
    names = list(node.input)
    node.input[:] = [*names[:place], *(writer.nothing(item.part) for item in states), *names[place:]]
    names = list(node.output)
    names += [writer.name("unused") for _ in range(at - len(names))]
    node.output[:] = [*names[:at], *(item.value for item in result), *names[at:]]
    return result


def _add_scans(
    nodes: Nodes, node: NodeProto, body: GraphProto, scans: list[Found], writer: Writer
) -> list[Found]:
    """Collect values over the iterations, and make them a row again behind the node."""
    result: list[Found] = []
    for item in scans:
        describe(body.output.add(name=item.value), item)
        node.output.append(writer.name(item.tensor))
        row = writer.node(nodes, "Reshape", [node.output[-1], writer.row()], item.tensor)
        result.append(replace(item, value=row, steady=False))
    return result


def _insert(values: Any, at: int, new: list[ValueInfoProto]) -> None:
    """Put values into a repeated field, which can only be cut and extended."""
    behind = [ValueInfoProto.FromString(value.SerializeToString()) for value in values[at:]]
    del values[at:]
    values.extend([*new, *behind])


_WayOut: TypeAlias = Callable[[Nodes, NodeProto, Inside, Writer], list[Found]]
_WAYS_OUT: dict[str, _WayOut] = {"If": _out_of_if, "Loop": _out_of_loop, "Scan": _out_of_scan}
