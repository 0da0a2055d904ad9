"""Observing one tensor: the nodes that are put behind the node that computes it.

A tensor is observed by reductions inside the graph, so that it never leaves the runtime:

========  ===========  ========  =====
name      reduction    merged    empty
========  ===========  ========  =====
low       ReduceMin    Min       +inf
high      ReduceMax    Max       -inf
l1        ReduceL1     Add       0
========  ===========  ========  =====

An empty tensor gives what stands under "empty". The L1 norm is NaN if and only if a value is: minimum and
maximum may hide it, and unlike a plain sum it does not turn infinities into NaN. It is left out where no NaN
can occur (:mod:`.accumulators`).

Feature maps of convolutions are reduced by pooling, which the runtime does in their blocked layout
(:mod:`.augment`), and what is left of them, a number for each channel, is returned: small nodes cost
more than their work. For the minimum of a map that is never negative a sample of positions is taken, which
tells all if it is zero: one position, or the lattice if there is one. Where the values themselves are
requested, the tensor is returned, or a lattice of a large map beside its extremes (:mod:`.sampling`). Tensors
of other types are cast to float first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from octavo.model.graph.protos import graphs

_SAMPLE_STEP = 7  # between the positions of a map that are sampled for its minimum, along height and width
_BEYOND_ANY_MAP = 1 << 15  # a step that leads out of any map: the sample is its first position


class Reduction(NamedTuple):
    """A number that is computed from a tensor, how two of them merge, and what an empty tensor gives."""

    name: str
    op: str
    merge_op: str
    empty: float


LOW = Reduction("low", "ReduceMin", "Min", float("inf"))
HIGH = Reduction("high", "ReduceMax", "Max", float("-inf"))
L1 = Reduction("l1", "ReduceL1", "Add", 0.0)


class MapImages(NamedTuple):
    """How many images a feature map holds (or the name of that dimension), and their channels."""

    number: int | str
    channels: int


@dataclass(frozen=True)
class Reduced:
    """Extremes by ReduceMin and ReduceMax; where NaN may occur, with the L1 norm that shows it."""

    may_be_nan: bool = True


@dataclass(frozen=True)
class NonNegativeMap:
    """Extremes of a feature map without NaN or negative values: pooled, and from a sample of positions."""

    images: MapImages | None


@dataclass(frozen=True)
class BlockedMap:
    """Extremes of a map without NaN that the runtime keeps in its blocked layout: both by pooling."""

    images: MapImages
    feeds_sum: bool  # one sum alone reads the map


@dataclass(frozen=True)
class Observation:
    """How a tensor is observed: its extremes, and its values at every ``step``-th position.

    ``step`` is 1 where all values are returned instead of the extremes, larger for the lattice of a feature
    map that is returned beside them, and None where the extremes are enough.
    """

    extremes: Reduced | NonNegativeMap | BlockedMap = field(default_factory=Reduced)
    step: int | None = None
    is_float32: bool = True
    shape: tuple[int, ...] | None = None  # where it is known
    as_rows: bool = False  # its values may be returned in rows, one for each entry of the first axis


@dataclass(frozen=True)
class Observed:
    """Something that a graph can return about a tensor; ``reduction`` is None for its values."""

    tensor: str
    reduction: Reduction | None
    value: str  # its name in the graph at hand
    fixed_shape: bool = False  # it has the same shape each time the graph runs
    is_sampled: bool = False  # it tells the minimum, as long as that is zero
    images: MapImages | None = None  # it is one number for each channel of so many images
    is_negated: bool = False
    as_rows: bool = False


class Nodes(Protocol):
    """A list of nodes, or the nodes of a graph."""

    def append(self, node: NodeProto, /) -> None:
        """Add a node at the end."""
        ...


class GraphWriter:
    """Adds nodes and constants to the graphs of one model."""

    def __init__(self, proto: ModelProto) -> None:
        self.main = proto.graph
        self._prefix = "octavo/"
        while any(name.startswith(self._prefix) for name in _names(proto.graph)):
            self._prefix = "_" + self._prefix
        self._count = 0
        self._constants: dict[str, str] = {}
        self.opset = next((e.version for e in proto.opset_import if e.domain in ("", "ai.onnx")), 1)

    def name(self, text: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{self._prefix}{self._count}/{text}"

    def node(
        self, nodes: Nodes, op: str, inputs: Sequence[str], text: str, **attributes: int | tuple[int, ...]
    ) -> str:
        """Append a node and return its output."""
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
        """Return the initializer of the main graph with this content, one for each key."""
        if key not in self._constants:
            name = self._constants[key] = self.name(key)
            self.main.initializer.append(onnx.numpy_helper.from_array(array, name))
        return self._constants[key]

    def scaled_channels(self, nodes: Nodes, value: str, channels: int, weight: int, text: str) -> str:
        """Append a convolution that multiplies each channel by a weight, and return its output."""
        array = np.full((channels, 1, 1, 1), weight, np.float32)
        weights = self.constant(f"{weight} x {channels}", array)
        return self.node(nodes, "Conv", [value, weights], text, group=channels, kernel_shape=(1, 1))

    def row(self) -> str:
        """Return the shape that flattens any tensor."""
        return self.constant("row", np.array([-1], np.int64))

    def empty(self, reduction: Reduction | None) -> str:
        """Return the placeholder of a tensor that has no value."""
        if reduction is None:
            return self.constant("empty", np.zeros(0, np.float32))
        return self.constant(reduction.name, np.array(reduction.empty, np.float32))


def describe(info: ValueInfoProto, observed: Observed) -> None:
    """Give a value the type of what was observed: a float, or a row of floats."""
    info.type.tensor_type.elem_type = TensorProto.FLOAT
    info.type.tensor_type.shape.SetInParent()
    if observed.reduction is None:
        info.type.tensor_type.shape.dim.add()


def observe(
    nodes: Nodes,
    tensor: str,
    how: Observation,
    writer: GraphWriter,
    *,
    can_return_values: bool,
    in_subgraph: bool,
    is_input: bool,
) -> Iterator[Observed]:
    """Append what observes one tensor behind the node that computes it.

    Values inside a subgraph are made a row; ``is_input`` says that no node of the graph computes the tensor.
    """
    value = tensor
    if not how.is_float32:
        value = writer.node(nodes, "Cast", [tensor], f"{tensor}/float", to=TensorProto.FLOAT)
    if how.step != 1 or not can_return_values:
        yield from _extremes(nodes, tensor, value, how, writer)
        if how.step is not None and how.step > 1:
            strides = (how.step, how.step)
            some = writer.node(nodes, "MaxPool", [value], tensor, kernel_shape=(1, 1), strides=strides)
            is_sampled = isinstance(how.extremes, NonNegativeMap)
            fixed = how.shape is not None
            yield Observed(tensor, None, some, fixed, is_sampled=is_sampled, as_rows=how.as_rows)
        return
    if in_subgraph:
        value = writer.node(nodes, "Reshape", [value, writer.row()], tensor)
    elif is_input and value == tensor:
        value = writer.node(nodes, "Identity", [tensor], tensor)
    yield Observed(tensor, None, value, how.shape is not None, as_rows=how.as_rows)


def _extremes(
    nodes: Nodes, tensor: str, value: str, how: Observation, writer: GraphWriter
) -> Iterator[Observed]:
    """Append what computes the extremes of a tensor, which ``value`` is as float."""
    match how.extremes:
        case Reduced(may_be_nan):
            for reduction in (LOW, HIGH, L1) if may_be_nan else (LOW, HIGH):
                output = writer.node(nodes, reduction.op, [value], f"{tensor}/{reduction.name}", keepdims=0)
                yield Observed(tensor, reduction, output, True)
        case NonNegativeMap(images):
            yield from _pooled(nodes, tensor, images, how.step, writer)
        case BlockedMap(images):
            most = writer.node(nodes, "GlobalMaxPool", [tensor], f"{tensor}/most")
            yield Observed(tensor, HIGH, most, True, images=images)
            negative = writer.scaled_channels(nodes, tensor, images.channels, -1, f"{tensor}/negative")
            most = writer.node(nodes, "GlobalMaxPool", [negative], f"{tensor}/most")
            yield Observed(tensor, LOW, most, True, images=images, is_negated=True)


def _pooled(
    nodes: Nodes, tensor: str, images: MapImages | None, step: int | None, writer: GraphWriter
) -> Iterator[Observed]:
    found = [(HIGH, writer.node(nodes, "GlobalMaxPool", [tensor], f"{tensor}/most"))]
    if step is None:
        apart = _SAMPLE_STEP if images is None else _BEYOND_ANY_MAP
        pool: dict[str, tuple[int, ...]] = {"kernel_shape": (1, 1), "strides": (apart, apart)}
        found.append((LOW, writer.node(nodes, "MaxPool", [tensor], f"{tensor}/some", **pool)))
    for reduction, value in found:
        if images is None:
            value = writer.node(nodes, reduction.op, [value], f"{tensor}/{reduction.name}", keepdims=0)
        yield Observed(tensor, reduction, value, True, is_sampled=reduction is LOW, images=images)


def _names(graph: GraphProto) -> Iterator[str]:
    for inner in graphs(graph):
        yield from (item.name for item in (*inner.input, *inner.initializer, *inner.node))
        yield from (name for node in inner.node for name in node.output)
