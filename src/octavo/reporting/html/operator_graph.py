"""The graph of a model as people think of it: operators and how they follow each other.

Conversions between float and integers are passed through, and the nodes that one operator was lowered to
(an integer product, its Cast, its scales) are one operator again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.operators import CONVERSIONS_OR_DYNAMIC
from octavo.reporting import inspection as inspect

_STEP = re.compile(
    r"_(int32|float|scales|scaled|times_alpha|biased|turned|bias"
    r"|rows|row_scales|rows_float|row_zero_points|rows_centred)(_\d+)?$"
)
_FIRST_STEPS = ("int32", "rows")
_ENDINGS = re.compile(r"(_quant|_Q[248]|_output_0|_output_0_quantized|_token|_nchwc|_nhwc)(_\d+)?$")


@dataclass
class Vertex:
    """An operator, an input or an output of the model."""

    name: str
    op_type: str
    outputs: list[str] = field(default_factory=list)
    integer: bool = False  # computes on integers, or between conversions


@dataclass(frozen=True)
class Graph:
    """Operators in the order in which they run, and edges between their positions in that list."""

    vertices: list[Vertex]
    edges: list[tuple[int, int]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        nodes = [
            {"name": v.name, "op_type": v.op_type, "outputs": v.outputs, "integer": v.integer}
            for v in self.vertices
        ]
        return {"nodes": nodes, "edges": [list(edge) for edge in self.edges]}


def known_name(name: str, known: Collection[str]) -> str:
    """Return the name that an operator had before it was lowered to integers, where that is known."""
    stripped = name
    for _ in range(3):
        if stripped in known:
            return stripped
        stripped = _ENDINGS.sub("", stripped)
    return stripped if stripped in known else name


def operators(
    model: ir.Model, known: Collection[str] = (), consumers: Mapping[str, str] | None = None
) -> Graph:
    """Return the operators of a model, subgraphs included.

    ``known`` are names that they had before; ``consumers`` has the operator that reads a quantized weight.
    """
    found = _Condensed(known, consumers or {})
    for value in model.graph.inputs:
        found.place(value, found.add(f"input:{value.name}", value.name or "", "Input"))
    for node in query.nodes(model):
        found.take(node)
    for value in model.graph.outputs:
        index = found.add(f"output:{value.name}", value.name or "", "Output")
        found.link(found.sources([value]), index)
    return found.graph()


class _Condensed:
    """Vertices by group, and where each value comes from."""

    def __init__(self, known: Collection[str], consumers: Mapping[str, str]) -> None:
        self.known, self.consumers = known, consumers
        self.vertices: list[Vertex] = []
        self.groups: dict[str, int] = {}
        self.origin: dict[ir.Value, frozenset[int]] = {}
        self.edges: dict[tuple[int, int], None] = {}

    def add(self, group: str, name: str, op_type: str) -> int:
        if group not in self.groups:
            self.groups[group] = len(self.vertices)
            self.vertices.append(Vertex(name, op_type))
        return self.groups[group]

    def place(self, value: ir.Value, index: int) -> None:
        self.origin[value] = frozenset((index,))

    def sources(self, values: Iterable[ir.Value | None]) -> frozenset[int]:
        return frozenset().union(*(self.origin.get(v, frozenset()) for v in values if v is not None))

    def link(self, sources: Iterable[int], index: int) -> None:
        for source in sorted(sources):
            if source != index:
                self.edges[source, index] = None

    def take(self, node: ir.Node) -> None:
        """Add a node, unless it is a conversion or a constant."""
        sources = self.sources(node.inputs)
        inner = [value for graph in query.subgraphs(node) for value in graph.outputs]
        sources |= self.sources(inner)
        if node.op_type == "Constant":
            return
        if node.op_type in CONVERSIONS_OR_DYNAMIC:
            for value in node.outputs:
                self.origin[value] = sources
            return
        index = self._vertex(node)
        self.link(sources, index)
        self.vertices[index].integer |= inspect.is_quantized(node)
        for value in node.outputs:
            self.place(value, index)
            if value.name:
                self.vertices[index].outputs.append(value.name)

    def _vertex(self, node: ir.Node) -> int:
        name = node.name or next((v.name for v in node.outputs if v.name), "")
        if name not in self.known and (step := _STEP.search(name)):
            base = name[: step.start()]
            if step[1] in _FIRST_STEPS or f"step:{base}" in self.groups:
                names = [value.name or "" for value in node.inputs if value is not None]
                consumer = next((self.consumers[n] for n in names if n in self.consumers), None)
                return self.add(f"step:{base}", consumer or known_name(base, self.known), node.op_type)
        return self.add(f"node:{name}:{id(node)}", known_name(name, self.known), node.op_type)

    def graph(self) -> Graph:
        """Return each operator once, without edges that a later node of a group would close to a cycle."""
        return Graph(self.vertices, [edge for edge in self.edges if edge[0] < edge[1]])
