"""What observes one tensor: the nodes that are put behind the one that gives it.

A tensor is observed by reductions inside the graph, so that it never leaves the runtime:

=====  ===========  =======  =======
part   reduction    merged   nothing
=====  ===========  =======  =======
low    ReduceMin    Min      +inf
high   ReduceMax    Max      -inf
mass   ReduceL1     Add      0
=====  ===========  =======  =======

An empty tensor gives "nothing". ``mass`` is NaN if and only if a value is: minimum and maximum may hide it,
and unlike a plain sum it does not turn infinities into NaN. It is left out where no NaN can come about
(:mod:`.trust`). The maps of convolutions are reduced by pooling, which the runtime does in their blocked
layout (:mod:`.blocked`), and what is left of them, a number for each channel, is returned: small nodes cost
more than their work. For the minimum of what a Relu makes of a map a sample is taken, which tells all if it
is zero: one place, or the lattice if there is one. Where the values themselves are wanted, the tensor is
returned, or a lattice of a large map beside its extremes (:mod:`.sampling`). Tensors of other types are cast
to float first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

INF = float("inf")
_STEP = 7  # of the sample of a map, along height and width
_BEYOND = 1 << 15  # a step that leads out of any map: the sample is its first place


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
    may_be_nan: bool = True
    is_map: bool = False  # images of features that are never below zero, and hold no NaN
    shape: tuple[int, ...] | None = None  # where it is known
    is_blocked: bool = False  # the runtime keeps the map in its blocked layout
    images: tuple[int | str, int] | None = None  # how many a map has, or what it is called, and channels
    is_summed: bool = False  # the map is read by one sum alone
    lattice: int | None = None  # the step between the values of a map that are returned with its extremes

    @property
    def parts(self) -> tuple[Part, ...]:
        """The numbers that are found out about it."""
        return PARTS if self.may_be_nan else PARTS[:2]

    @property
    def whole(self) -> bool:
        """Whether all its values are wanted, rather than numbers about them."""
        return self.values and self.lattice is None


@dataclass(frozen=True)
class Found:
    """Something that a graph can return about a tensor; ``part`` is None for its values."""

    tensor: str
    part: Part | None
    value: str  # its name in the graph at hand
    steady: bool = False  # it has the same shape each time the graph runs
    sampled: bool = False  # it tells the minimum, as long as that is zero
    images: tuple[int | str, int] | None = None  # it is one number for each channel of so many images
    negated: bool = False


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
        self.opset = next((e.version for e in proto.opset_import if e.domain in ("", "ai.onnx")), 1)

    def name(self, text: str) -> str:
        """A new name."""
        self._count += 1
        return f"{self._prefix}{self._count}/{text}"

    def node(
        self, nodes: Nodes, op: str, inputs: Sequence[str], text: str, **attributes: int | tuple[int, ...]
    ) -> str:
        """Append a node; returns its output."""
        output = self.name(text)
        node = NodeProto(op_type=op, name=output, input=inputs, output=[output])
        for key, number in attributes.items():
            if isinstance(number, tuple):
                node.attribute.add(name=key, type=AttributeProto.INTS, ints=number)
            else:
                node.attribute.add(name=key, type=AttributeProto.INT, i=number)
        nodes.append(node)
        return output

    def constant(self, key: str, array: npt.NDArray[Any]) -> str:
        """The initializer of the main graph with this content, one for each key."""
        if key not in self._constants:
            name = self._constants[key] = self.name(key)
            self.main.initializer.append(onnx.numpy_helper.from_array(array, name))
        return self._constants[key]

    def channelwise(self, nodes: Nodes, value: str, channels: int, weight: int, text: str) -> str:
        """Append a convolution that multiplies each channel by a weight; returns its output."""
        array = np.full((channels, 1, 1, 1), weight, np.float32)
        weights = self.constant(f"{weight} x {channels}", array)
        return self.node(nodes, "Conv", [value, weights], text, group=channels, kernel_shape=(1, 1))

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


def observe(
    nodes: Nodes, tensor: str, want: Wanted, writer: Writer, *, can_fetch: bool, inside: bool, given: bool
) -> Iterable[Found]:
    """Add what observes one tensor to the nodes behind the one that gives it.

    ``inside`` a subgraph values are made a row; ``given`` is a tensor that no node of the graph makes.
    """
    value = tensor
    if not want.is_float:
        value = writer.node(nodes, "Cast", [tensor], f"{tensor}/float", to=TensorProto.FLOAT)
    if not (want.whole and can_fetch):
        yield from _numbers(nodes, tensor, value, want, writer, inside=inside)
        if want.values and want.lattice is not None:
            step = (want.lattice, want.lattice)
            some = writer.node(nodes, "MaxPool", [value], tensor, kernel_shape=(1, 1), strides=step)
            yield Found(tensor, None, some, want.shape is not None, sampled=want.is_map and not inside)
        return
    if inside:
        value = writer.node(nodes, "Reshape", [value, writer.row()], tensor)
    elif given and value == tensor:
        value = writer.node(nodes, "Identity", [tensor], tensor)
    yield Found(tensor, None, value, want.shape is not None)


def _numbers(
    nodes: Nodes, tensor: str, value: str, want: Wanted, writer: Writer, *, inside: bool
) -> Iterable[Found]:
    """Add what finds out the parts of a tensor, which ``value`` is as float."""
    if want.is_map and not inside:
        yield from _pooled(nodes, tensor, want, writer)
    elif want.is_blocked and want.images is not None and not inside:
        yield from _pooled_twice(nodes, tensor, want.images, writer)
    else:
        for part in want.parts:
            output = writer.node(nodes, part.reduction, [value], f"{tensor}/{part.name}", keepdims=0)
            yield Found(tensor, part, output, True)


def _pooled(nodes: Nodes, tensor: str, want: Wanted, writer: Writer) -> Iterable[Found]:
    low, high, _ = PARTS
    found = [(high, writer.node(nodes, "GlobalMaxPool", [tensor], f"{tensor}/most"))]
    if want.lattice is None:
        step = _STEP if want.images is None else _BEYOND
        places: dict[str, tuple[int, ...]] = {"kernel_shape": (1, 1), "strides": (step, step)}
        found.append((low, writer.node(nodes, "MaxPool", [tensor], f"{tensor}/some", **places)))
    for part, value in found:
        if want.images is None:
            value = writer.node(nodes, part.reduction, [value], f"{tensor}/{part.name}", keepdims=0)
        yield Found(tensor, part, value, True, sampled=part is low, images=want.images)


def _pooled_twice(
    nodes: Nodes, tensor: str, images: tuple[int | str, int], writer: Writer
) -> Iterable[Found]:
    low, high, _ = PARTS
    most = writer.node(nodes, "GlobalMaxPool", [tensor], f"{tensor}/most")
    yield Found(tensor, high, most, True, images=images)
    negative = writer.channelwise(nodes, tensor, images[1], -1, f"{tensor}/negative")
    most = writer.node(nodes, "GlobalMaxPool", [negative], f"{tensor}/most")
    yield Found(tensor, low, most, True, images=images, negated=True)


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
