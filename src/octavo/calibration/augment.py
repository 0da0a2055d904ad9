"""The model that calibration runs: the original, which returns what is to be observed instead of its outputs.

A tensor is observed by three reductions inside the graph, so that it never leaves the runtime:

=====  ===========  =======  =======
part   reduction    merged   nothing
=====  ===========  =======  =======
low    ReduceMin    Min      +inf
high   ReduceMax    Max      -inf
mass   ReduceL1     Add      0
=====  ===========  =======  =======

An empty tensor gives "nothing". ``mass`` is NaN if and only if a value is: minimum and maximum may hide it,
and unlike a plain sum it does not turn infinities into NaN. Where a histogram is wanted, the values
themselves are returned, flattened. Tensors of other types are cast to float first. How all this gets out of
subgraphs is told in :mod:`.bodies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

INF = float("inf")


@dataclass(frozen=True)
class Part:
    """One number that is found out about a tensor."""

    name: str
    reduction: str
    merged: str
    nothing: float


PARTS = (
    Part("low", "ReduceMin", "Min", INF),
    Part("high", "ReduceMax", "Max", -INF),
    Part("mass", "ReduceL1", "Add", 0.0),
)


@dataclass(frozen=True)
class Wanted:
    """A tensor to observe."""

    values: bool = False  # rather than its extremes
    is_float: bool = True  # float32, that is
    is_static: bool = False  # its shape is known


@dataclass(frozen=True)
class Found:
    """Something that a graph can return about a tensor; ``part`` is None for its values."""

    tensor: str
    part: Part | None
    value: str  # its name in the graph at hand
    steady: bool = False  # it has the same shape each time the graph runs


@dataclass
class Augmented:
    """The outputs of the augmented model."""

    reduced: list[str] = field(default_factory=list)  # the tensors whose parts are returned
    parts: list[str] = field(default_factory=list)  # the outputs that hold them: PARTS of one, of the next …
    values: dict[str, str] = field(default_factory=dict)  # the outputs that hold values, by tensor
    used: set[str] = field(default_factory=set)  # what is still read, among it initializers

    def __bool__(self) -> bool:
        return bool(self.reduced or self.values)


class Nodes(Protocol):
    """A list of nodes, or a graph's own."""

    def append(self, node: NodeProto, /) -> None:
        """Add one at the end."""
        ...


class Writer:
    """Adds nodes and constants to graphs of one model."""

    def __init__(self, proto: ModelProto) -> None:
        self.main = proto.graph
        self._prefix = "octavo/"
        while any(name.startswith(self._prefix) for name in _names(proto.graph)):
            self._prefix = "_" + self._prefix
        self._count = 0
        self._constants: dict[str, str] = {}

    def name(self, text: str) -> str:
        """A new name."""
        self._count += 1
        return f"{self._prefix}{self._count}/{text}"

    def node(self, nodes: Nodes, op: str, inputs: Sequence[str], text: str, **attributes: int) -> str:
        """Append a node; returns its output."""
        output = self.name(text)
        node = NodeProto(op_type=op, name=output, input=inputs, output=[output])
        for key, number in attributes.items():
            node.attribute.add(name=key, type=AttributeProto.INT, i=number)
        nodes.append(node)
        return output

    def constant(self, key: str, array: npt.NDArray[Any]) -> str:
        """The initializer of the main graph with this content, one for each key."""
        if key not in self._constants:
            name = self._constants[key] = self.name(key)
            self.main.initializer.append(onnx.numpy_helper.from_array(array, name))
        return self._constants[key]

    def row(self) -> str:
        """The shape that flattens anything."""
        return self.constant("row", np.array([-1], np.int64))

    def nothing(self, part: Part | None) -> str:
        """What stands for a tensor that was not there."""
        if part is None:
            return self.constant("empty", np.zeros(0, np.float32))
        return self.constant(part.name, np.array(part.nothing, np.float32))


def describe(info: ValueInfoProto, found: Found) -> None:
    """Give a value the type of something found: a float, or a row of floats."""
    info.type.tensor_type.elem_type = TensorProto.FLOAT
    info.type.tensor_type.shape.SetInParent()
    if found.part is None:
        info.type.tensor_type.shape.dim.add()


def augment(proto: ModelProto, wanted: Mapping[str, Wanted]) -> Augmented:
    """Make a model return what is wanted, in place; nodes that nothing needs any more are removed."""
    from octavo.calibration.bodies import visit

    graph = proto.graph
    writer = Writer(proto)
    found = visit(graph, wanted, writer)
    parts = [item for item in found if item.part is not None]
    values = [item for item in found if item.part is None]
    result = Augmented(
        reduced=[item.tensor for item in parts[:: len(PARTS)]],
        parts=[item.value for item in parts],
        values={item.tensor: item.value for item in values},
    )
    del graph.output[:]
    for item in values:
        describe(graph.output.add(name=item.value), item)
    if parts and _opset(proto) >= _SEQUENCES_SINCE:
        result.parts = _packed(graph, result.parts, writer)
        for name in result.parts:
            graph.output.add(name=name).type.tensor_type.elem_type = TensorProto.FLOAT
    else:
        for item in parts:
            describe(graph.output.add(name=item.value), item)
    result.used = _prune(graph)
    return result


_SEQUENCES_SINCE = 11
_PACKS = 64


def _opset(proto: ModelProto) -> int:
    return next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 1)


def _packed(graph: GraphProto, scalars: Sequence[str], writer: Writer) -> list[str]:
    """A few outputs for all numbers, the one for the first tensors last among the nodes.

    The runtime works its way back from the last node that nothing reads. Found in this order, each pack is
    computed as soon as its tensors are there, while they are in the cache, and lets go of them; otherwise all
    tensors would be kept to the end. Its time for a run is quadratic in the number of outputs.
    """
    size = len(PARTS) * max(1, len(scalars) // len(PARTS) // _PACKS)
    nodes: list[list[NodeProto]] = []
    packs: list[str] = []
    for start in range(0, len(scalars), size):
        pair: list[NodeProto] = []
        sequence = writer.node(pair, "SequenceConstruct", scalars[start : start + size], "pack")
        packs.append(writer.node(pair, "ConcatFromSequence", [sequence], "packed", axis=0, new_axis=1))
        nodes.append(pair)
    for pair in reversed(nodes):
        graph.node.extend(pair)
    return packs


def observe(nodes: Nodes, tensor: str, want: Wanted, writer: Writer, *, can_fetch: bool) -> Iterable[Found]:
    """Add what observes one tensor to the nodes behind the one that gives it."""
    value = tensor
    if not want.is_float:
        value = writer.node(nodes, "Cast", [tensor], f"{tensor}/float", to=TensorProto.FLOAT)
    if want.values and can_fetch:
        row = writer.node(nodes, "Reshape", [value, writer.row()], tensor)
        yield Found(tensor, None, row, want.is_static)
        return
    for part in PARTS:
        output = writer.node(nodes, part.reduction, [value], f"{tensor}/{part.name}", keepdims=0)
        yield Found(tensor, part, output, True)


def bodies_of(node: NodeProto) -> list[GraphProto]:
    """The graphs that a node carries."""
    return [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]


def _names(graph: GraphProto) -> Iterable[str]:
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield node.name
        yield from node.output
        for body in bodies_of(node):
            yield from _names(body)


def _note_reads(node: NodeProto, read: set[str]) -> None:
    """Add what a node, and those inside it, read."""
    read.update(node.input)
    for body in bodies_of(node):
        for inner in body.node:
            _note_reads(inner, read)


def _prune(graph: GraphProto) -> set[str]:
    """Remove the nodes that no output depends on; returns the names that are read."""
    read = {value.name for value in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if not read.isdisjoint(node.output):
            _note_reads(node, read)
            kept.append(node)
    if len(kept) < len(graph.node):
        replace_nodes(graph, kept[::-1])
    return read


def replace_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    """Give a graph other nodes, some of which may be its own."""
    del graph.node[:]
    graph.node.extend(nodes)
