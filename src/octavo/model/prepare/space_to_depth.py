"""Reshape, Transpose, Reshape that move blocks of an image to channels, as SpaceToDepth.

``[N, C, H, W] → [N, C, H/b, b, W/b, b] → [N, b, b, C, H/b, W/b] → [N, b²·C, H/b, W/b]``. Some exporters keep
``C`` before the blocks; then a Gather puts the channels of SpaceToDepth into that order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.query import is_op
from octavo.model.prepare.patterns import made_by, read_by

_BLOCKS_FIRST, _CHANNELS_FIRST = (0, 3, 5, 1, 2, 4), (0, 1, 3, 5, 2, 4)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The nodes, what they read, the size of a block, and the order of channels if not the usual one."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    size: int
    order: npt.NDArray[np.int64] | None = None


def space_to_depth(node: ir.Node) -> Blocks | None:
    """Return the composition around a Transpose."""
    perm = tuple(query.attribute(node, "perm", None) or ())
    if not is_op(node, "Transpose") or perm not in (_BLOCKS_FIRST, _CHANNELS_FIRST):
        return None
    first, last = made_by(node.inputs[0], "Reshape"), read_by(node.outputs[0], "Reshape")
    if first is None or last is None or query.only_reader(first.outputs[0]) is not node:
        return None
    x = first.inputs[0]
    before, split, after = (query.shape(v) for v in (x, first.outputs[0], last.outputs[0]))
    if x is None or before is None or split is None or after is None or len(before) != 4 or len(split) != 6:
        return None
    size, channels = split[3], split[1]
    if not size or size < 2 or split[5] != size or channels is None or channels != before[1]:
        return None
    if None in (split[2], split[4]) or before[2:] != (split[2] * size, split[4] * size):  # type: ignore[operator]
        return None
    if after[1:] != (channels * size * size, split[2], split[4]):
        return None
    order = None
    if perm == _CHANNELS_FIRST:
        order = (
            np.arange(channels * size * size).reshape(size * size, channels).T.reshape(-1).astype(np.int64)
        )
    return Blocks((first, node, last), x, size, order)
