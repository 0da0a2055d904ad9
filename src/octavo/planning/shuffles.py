"""Channels exchanged between groups: Reshape, Transpose, Reshape, which is one Gather along the channels.

The runtime lays pictures out channels last for its integer kernels. It draws the change of layout into this
Transpose, and what comes of it takes as long as both layers beside it together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from octavo.core.plan import Entry, Key, Shared
from octavo.model import query

_PERM = (0, 2, 1, 3, 4)


@dataclass(frozen=True)
class Shuffle:
    """The three nodes; the channels are ``groups`` times ``width``."""

    first: ir.Node
    middle: ir.Node
    last: ir.Node
    groups: int
    width: int


def find(nodes: Iterable[ir.Node], quantized: Collection[str], entries: Mapping[Key, Entry]) -> Iterator[str]:
    """The names of the Transposes whose shuffle is quantized as a whole, with the parameters of its input."""
    read_apart = {key.reader for key in entries if key.reader is not None}
    for node in nodes:
        found = shuffle_around(node)
        if found is None:
            continue
        parts = (found.first, found.middle, found.last)
        moved = all(isinstance(entries.get(Key(one.outputs[0].name or "")), Shared) for one in parts)
        if moved and all(one.name in quantized and one.name not in read_apart for one in parts):
            yield node.name or ""


def shuffle_around(node: ir.Node) -> Shuffle | None:
    """The shuffle whose Transpose this is."""
    if not query.is_op(node, "Transpose") or tuple(query.attribute(node, "perm", ())) != _PERM:
        return None
    first = node.inputs[0].producer() if node.inputs[0] is not None else None
    last = query.only_reader(node.outputs[0])
    if first is None or last is None or not (query.is_op(first, "Reshape") and query.is_op(last, "Reshape")):
        return None
    if query.only_reader(first.outputs[0]) is not node or last.inputs[0] is not node.outputs[0]:
        return None
    whole, parts, again = (query.shape(v) for v in (first.inputs[0], first.outputs[0], last.outputs[0]))
    if whole is None or parts is None or again != whole or len(whole) != 4 or len(parts) != 5:
        return None
    groups, width = parts[1], parts[2]
    if groups is None or width is None or whole[1] != groups * width or None in whole[2:]:
        return None
    return (
        Shuffle(first, node, last, groups, width)
        if (whole[0], *whole[2:]) == (parts[0], *parts[3:])
        else None
    )
