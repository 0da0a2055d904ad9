"""The model that calibration runs: the original, which returns what is observed instead of its outputs.

How a tensor is observed is told in :mod:`.observations`, and how that gets out of subgraphs in
:mod:`.subgraphs`. In a large graph that runs only a few times, opening the session is what takes long. Small
tensors of known shape are then returned as they are, put together by one Concat for many of them.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import onnx_ir as ir
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from octavo.calibration.observe.observations import (
    BlockedMap,
    GraphWriter,
    MapImages,
    NonNegativeMap,
    Observation,
    Observed,
)
from octavo.calibration.observe.subgraphs import observe_graph
from octavo.model.graph import protos, query

# ---- Observing feature maps of convolutions without losing what makes convolutions fast
#
# On x86-64 the runtime keeps the feature maps of convolutions in a blocked layout, and adds a residual sum
# and its Relu while a convolution writes its result. To observe that result costs both: a reduction needs
# the plain layout, and a second consumer keeps the sum out of the convolution. A depthwise convolution with
# one weight is exact, and stays in the layout:
#
# ======  ==============================================================================
# weight  use
# ======  ==============================================================================
# -1      the smallest value of a map becomes the largest, and pooling finds both extremes
# 1       stands between a map and its sum, which the runtime then fuses into it
# ======  ==============================================================================

_MAX_BLOCK = 16  # channels in a block of the runtime's layout, at most


def by_pooling(model: ir.Model, observations: Mapping[str, Observation]) -> dict[str, Observation]:
    """Return observations of tensors that hold no NaN; extremes of feature maps are found by pooling."""
    found = dict(observations)
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    for node in model.graph:
        value = node.outputs[0] if node.outputs else None
        name = value.name or "" if value is not None else ""
        if value is None or name not in found or query.element_type(value) != ir.DataType.FLOAT:
            continue
        images = _images(value)
        if _is_clamped_at_zero(node) and query.rank(value) == 4:
            found[name] = replace(found[name], extremes=NonNegativeMap(images))
        elif images and is_x86 and node.op_type == "Conv" and node.domain in ("", "ai.onnx"):
            found[name] = replace(found[name], extremes=BlockedMap(images, _feeds_sum(value)))
    return found


def _is_clamped_at_zero(node: ir.Node) -> bool:
    """Return whether a node gives nothing negative: a Relu, or a Clip at zero."""
    if node.op_type == "Clip":
        return len(node.inputs) > 1 and query.scalar(node.inputs[1]) == 0
    return node.op_type == "Relu"


def _images(value: ir.Value) -> MapImages | None:
    """Return the images of a map of four axes whose channels fill whole blocks, else None."""
    dims = query.shape(value)
    if dims is None or len(dims) != 4 or not dims[1] or dims[1] % _MAX_BLOCK or value.shape is None:
        return None
    batch = value.shape[0]
    return MapImages(batch if isinstance(batch, int) else batch.value or f"images of {value.name}", dims[1])


def _feeds_sum(value: ir.Value) -> bool:
    """Return whether all that reads a map is a sum with another of the same shape."""
    uses = list(value.uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add" or value.is_graph_output():
        return False
    left, right = uses[0].node.inputs
    return left is not None and right is not None and left is not right and left.shape == right.shape


def keep_sums_fused(graph: GraphProto, observations: Mapping[str, Observation], writer: GraphWriter) -> None:
    """Let sums read what is observed through a convolution of their own, which they are fused into."""
    channels = {
        name: how.extremes.images.channels
        for name, how in observations.items()
        if isinstance(how.extremes, BlockedMap) and how.extremes.feeds_sum
    }
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "Add":
            position = next((i for i, name in enumerate(node.input) if name in channels), None)
            if position is not None:
                name = node.input[position]
                same = writer.scaled_channels(nodes, name, channels[name], 1, f"{name}/same")
                node.input[position] = same
        nodes.append(node)
    if len(nodes) > len(graph.node):
        protos.replace_nodes(graph, nodes)


_SEQUENCES_SINCE = 11  # the opset
_PACKS = 64  # outputs that all numbers are packed into, about: a run takes longer with each
_CHAIN = 8  # packs that may be joined in one output
_NEARBY = 4  # times the size of a pack: how far apart the numbers of a pack may have been computed
_MAX_GROUPED = 1 << 24  # values of all tensors that are returned as they are, together
_GROUP = 1 << 16  # values after which a group of such tensors is full


@dataclass(frozen=True)
class Pack:
    """An output that holds numbers about some tensors, in this order.

    Either one of each, or one for each channel of each image, the channels of all of them in a row.
    """

    name: str
    members: list[Observed]
    first_end: Observed  # the last one of the first portion

    @property
    def images(self) -> int | str | None:
        """Return how many images they are of, or the name of that number."""
        first = self.members[0].images
        return None if first is None else first.number


@dataclass
class Augmented:
    """The outputs of the augmented model."""

    packs: list[Pack] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)  # the outputs that hold values, by tensor
    sampled: list[str] = field(default_factory=list)  # tensors whose values tell their minimum, if it is zero
    groups: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # output: tensors, their rows
    used: set[str] = field(default_factory=set)  # names that nodes still read, initializers among them

    def __bool__(self) -> bool:
        return bool(self.packs or self.values or self.groups)

    @property
    def numbers(self) -> list[Observed]:
        """Return the members of all packs."""
        return [member for pack in self.packs for member in pack.members]


def augment(
    proto: ModelProto, observations: Mapping[str, Observation], *, group_small: bool = False
) -> Augmented:
    """Make a model return what is observed, in place; nodes that nothing needs any more are removed.

    ``group_small`` returns small tensors as they are, many in one output.

    The runtime works its way back from the last node that nothing reads. So the outputs about the first
    tensors are made by the last nodes: each is then computed as soon as its tensors are there, while they are
    in the cache, and lets go of them; otherwise all tensors would be kept to the end. Maps are returned by a
    Flatten, which is such a last node: a change of layout would be put behind any other as one of the
    runtime's own.
    """
    graph = proto.graph
    writer = GraphWriter(proto)
    groups = _groups(graph, observations) if group_small else []
    grouped = {tensor for group in groups for tensor in group}
    keep_sums_fused(graph, observations, writer)
    found = observe_graph(graph, {t: how for t, how in observations.items() if t not in grouped}, writer)
    values = [item for item in found if item.reduction is None]
    result = Augmented(sampled=[item.tensor for item in values if item.is_sampled])
    places = {item.value: place for place, item in enumerate(found)}
    last: list[tuple[int, list[NodeProto]]] = []  # the nodes that end with an output, by what they read
    del graph.output[:]
    for item in values:
        name, made = item.value, list[NodeProto]()
        if item.as_rows:
            name = writer.node(made, "Flatten", [item.value], f"{item.tensor}/rows", axis=1)
            last.append((places[item.value], made))
        result.values[item.tensor] = name
        _add_output(graph, name)
    for group in groups:
        name = writer.node(graph.node, "Concat", group, "group", axis=0)
        result.groups[name] = [(tensor, (observations[tensor].shape or (0,))[0]) for tensor in group]
        _add_output(graph, name)
    for pack, made in _packed([item for item in found if item.reduction is not None], writer):
        result.packs.append(pack)
        last.append((places[pack.first_end.value], made))
        _add_output(graph, pack.name)
    for _, made in sorted(last, key=itemgetter(0), reverse=True):
        graph.node.extend(made)
    result.used = _prune(graph)
    return result


def _add_output(graph: GraphProto, name: str) -> None:
    graph.output.add(name=name).type.tensor_type.elem_type = TensorProto.FLOAT


def _groups(graph: GraphProto, observations: Mapping[str, Observation]) -> list[list[str]]:
    """Return small tensors of the main graph that agree in all but their first axis; the earliest last."""
    names = [value.name for value in graph.input] + [name for node in graph.node for name in node.output]
    groups: dict[tuple[int, ...], list[str]] = {}
    found: list[list[str]] = []
    room = _MAX_GROUPED
    for name in names:
        how = observations.get(name)
        if how is None or how.step is not None or not how.is_float32 or not how.shape:
            continue
        size = math.prod(how.shape)
        if not 0 < size <= room:
            continue
        room -= size
        group = groups.setdefault(how.shape[1:], [])
        if not group:
            found.append(group)
        group.append(name)
        if len(group) * size >= _GROUP:
            del groups[how.shape[1:]]
    return found[::-1]


def _packed(numbers: Sequence[Observed], writer: GraphWriter) -> Iterator[tuple[Pack, list[NodeProto]]]:
    """Give a few outputs for all numbers, and the nodes that make them.

    The runtime's time for a run is quadratic in the number of outputs.
    """
    size = 1 if writer.opset < _SEQUENCES_SINCE else -(-len(numbers) // _PACKS)
    for portions in _chained(_divided(numbers, size)):
        members = [item for portion in portions for item in portion]
        names = [item.value for item in members]
        made: list[NodeProto] = []
        if members[0].images is not None:
            name = writer.node(made, "Flatten", [_in_turn(made, portions, writer)], "packed", axis=1)
        elif writer.opset >= _SEQUENCES_SINCE:
            sequence = writer.node(made, "SequenceConstruct", names, "pack")
            name = writer.node(made, "ConcatFromSequence", [sequence], "packed", axis=0, new_axis=1)
        else:
            (name,) = names
        yield Pack(name, members, portions[0][-1]), made


def _in_turn(nodes: list[NodeProto], portions: Sequence[Sequence[Observed]], writer: GraphWriter) -> str:
    """Return the channels of all portions in a row.

    The first portion is joined last: of what a node reads, the runtime computes that first which was made by
    a node that it has put in itself, as it does for pooling, and that of an earlier Concat after it.
    """
    row: list[str] = []
    for portion in reversed(portions):
        row = [writer.node(nodes, "Concat", [*(item.value for item in portion), *row], "pack", axis=1)]
    return row[0]


def _chained(packs: Sequence[list[Observed]]) -> list[list[list[Observed]]]:
    """Join packs of one form that follow each other; those of single numbers stay apart."""
    found: list[list[list[Observed]]] = []
    for pack in packs:
        images = pack[0].images
        last = found[-1] if found else []
        before = last[-1][0].images if last else None
        if (
            images is not None
            and before is not None
            and images.number == before.number
            and len(last) < _CHAIN
        ):
            last.append(pack)
        else:
            found.append([pack])
    return found


def _divided(numbers: Sequence[Observed], size: int) -> list[list[Observed]]:
    """Divide numbers into packs of one form that are computed near each other, sorted by their ends.

    A pack has at least ``size`` numbers where there are as many. Those of one tensor stay together, and a
    large map comes last.
    """
    found: list[list[int]] = []
    latest: dict[int | str | None, list[int]] = {}
    for index, item in enumerate(numbers):
        form = None if item.images is None else item.images.number
        pack = latest.get(form, [])
        is_full = len(pack) >= size or any(numbers[i].is_negated for i in pack)
        goes_on = bool(pack) and numbers[pack[-1]].tensor == item.tensor and size > 1
        if not pack or index - pack[0] >= _NEARBY * size or (is_full and not goes_on):
            pack = latest[form] = []
            found.append(pack)
        pack.append(index)
    return [[numbers[index] for index in pack] for pack in sorted(found, key=lambda pack: pack[-1])]


def _prune(graph: GraphProto) -> set[str]:
    """Remove the nodes that no output depends on; returns the names that are read."""
    read = {value.name for value in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if not read.isdisjoint(node.output):
            read.update(protos.reads(node))
            kept.append(node)
    if len(kept) < len(graph.node):
        protos.replace_nodes(graph, kept[::-1])
    return read
