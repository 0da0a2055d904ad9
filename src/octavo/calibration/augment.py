"""The model that calibration runs: the original, which returns what is to be observed instead of its outputs.

What observes a tensor is told in :mod:`.observation`, and how it gets out of subgraphs in :mod:`.bodies`. In
a large graph that runs only a few times, opening the session is what takes long. Small tensors of known shape
are then returned as they are, put together by one Concat for many of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from octavo.calibration.blocked import relay
from octavo.calibration.bodies import replace_nodes, visit
from octavo.calibration.observation import Found, Wanted, Writer, bodies_of


@dataclass(frozen=True)
class Pack:
    """An output that holds numbers about some tensors, in this order.

    Either one of each, or one for each channel of each image, the channels of all of them in a row.
    """

    name: str
    members: list[Found]

    @property
    def images(self) -> int | str | None:
        """How many images they are of, or what their number is called."""
        first = self.members[0].images
        return None if first is None else first[0]


@dataclass
class Augmented:
    """The outputs of the augmented model."""

    packs: list[Pack] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)  # the outputs that hold values, by tensor
    lowest: list[str] = field(default_factory=list)  # tensors whose values tell their minimum, if it is zero
    together: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # output: tensors, their rows
    used: set[str] = field(default_factory=set)  # what is still read, among it initializers

    def __bool__(self) -> bool:
        return bool(self.packs or self.values or self.together)

    @property
    def numbers(self) -> list[Found]:
        """The members of all packs."""
        return [member for pack in self.packs for member in pack.members]


def augment(proto: ModelProto, wanted: Mapping[str, Wanted], *, together: bool = False) -> Augmented:
    """Make a model return what is wanted, in place; nodes that nothing needs any more are removed.

    ``together`` returns small tensors as they are, many in one output.
    """
    graph = proto.graph
    writer = Writer(proto)
    groups = _groups(graph, wanted) if together else []
    grouped = {tensor for group in groups for tensor in group}
    relay(graph, wanted, writer)
    found = visit(graph, {t: w for t, w in wanted.items() if t not in grouped}, writer)
    values = [item for item in found if item.part is None]
    result = Augmented(
        values={item.tensor: item.value for item in values},
        lowest=[item.tensor for item in values if item.sampled],
    )
    del graph.output[:]
    for item in values:
        graph.output.add(name=item.value).type.tensor_type.elem_type = TensorProto.FLOAT
    for group in groups:
        name = writer.node(graph.node, "Concat", group, "together", axis=0)
        result.together[name] = [(tensor, (wanted[tensor].shape or (0,))[0]) for tensor in group]
        graph.output.add(name=name).type.tensor_type.elem_type = TensorProto.FLOAT
    result.packs = _packed(graph, [item for item in found if item.part is not None], writer)
    result.used = _prune(graph)
    return result


_SEQUENCES_SINCE = 11
_PACKS = 64
_CHAIN = 8  # packs in one output
_SOON = 4  # times the size of a pack
_TOGETHER = 1 << 24  # values of all tensors that are returned as they are
_GROUP = 1 << 16  # values of those in one output


def _groups(graph: GraphProto, wanted: Mapping[str, Wanted]) -> list[list[str]]:
    """Small tensors of the main graph that agree in all but their first axis; the earliest group last."""
    names = [value.name for value in graph.input] + [name for node in graph.node for name in node.output]
    groups: dict[tuple[int, ...], list[str]] = {}
    found: list[list[str]] = []
    room = _TOGETHER
    for name in names:
        want = wanted.get(name)
        if want is None or want.values or not want.is_float or not want.shape:
            continue
        size = math.prod(want.shape)
        if not 0 < size <= room:
            continue
        room -= size
        group = groups.setdefault(want.shape[1:], [])
        if not group:
            found.append(group)
        group.append(name)
        if len(group) * size >= _GROUP:
            del groups[want.shape[1:]]
    return found[::-1]


def _packed(graph: GraphProto, numbers: Sequence[Found], writer: Writer) -> list[Pack]:
    """A few outputs for all numbers, the one for the first tensors last among the nodes.

    The runtime works its way back from the last node that nothing reads. Found in this order, each pack is
    computed as soon as its tensors are there, while they are in the cache, and lets go of them; otherwise all
    tensors would be kept to the end. (Flatten is such a last node: a change of layout would be put behind
    Concat as one of the runtime's own.) Its time for a run is quadratic in the number of outputs.
    """
    packs: list[Pack] = []
    nodes: list[list[NodeProto]] = []
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
        packs.append(Pack(name, members))
        nodes.append(made)
        graph.output.add(name=name).type.tensor_type.elem_type = TensorProto.FLOAT
    for made in reversed(nodes):
        graph.node.extend(made)
    return packs


def _in_turn(nodes: list[NodeProto], portions: Sequence[Sequence[Found]], writer: Writer) -> str:
    """The channels of all portions in a row.

    The first portion is joined last: of what a node reads, the runtime computes that first which was made by
    a node that it has put in itself, as it does for pooling, and that of an earlier Concat after it.
    """
    row: list[str] = []
    for portion in reversed(portions):
        row = [writer.node(nodes, "Concat", [*(item.value for item in portion), *row], "pack", axis=1)]
    return row[0]


def _chained(packs: Sequence[list[Found]]) -> list[list[list[Found]]]:
    """Packs of one form that follow each other, some for each output; numbers that stand alone stay apart."""
    found: list[list[list[Found]]] = []
    for pack in packs:
        images = pack[0].images
        last = found[-1] if found else []
        before = last[-1][0].images if last else None
        if images is not None and before is not None and images[0] == before[0] and len(last) < _CHAIN:
            last.append(pack)
        else:
            found.append([pack])
    return found


def _divided(numbers: Sequence[Found], size: int) -> list[list[Found]]:
    """Numbers of the same form that come soon after each other, at least so many each, sorted by their ends.

    Those of one tensor stay together, and a large map comes last.
    """
    found: list[list[int]] = []
    latest: dict[int | str | None, list[int]] = {}
    for index, item in enumerate(numbers):
        form = None if item.images is None else item.images[0]
        pack = latest.get(form, [])
        is_full = len(pack) >= size or any(numbers[i].negated for i in pack)
        goes_on = bool(pack) and numbers[pack[-1]].tensor == item.tensor and size > 1
        if not pack or index - pack[0] >= _SOON * size or (is_full and not goes_on):
            pack = latest[form] = []
            found.append(pack)
        pack.append(index)
    return [[numbers[index] for index in pack] for pack in sorted(found, key=lambda pack: pack[-1])]


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
