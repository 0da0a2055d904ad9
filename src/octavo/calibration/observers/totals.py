"""The sum of a tensor over samples, element by element.

Like the Gram matrix (:mod:`.gram`) it is added up in float64 by a binary tree over the sample indices, so
that the sum is the same to the bit whoever has seen which samples.
"""

from __future__ import annotations

import struct
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError, TableError

F64 = npt.NDArray[np.float64]
Node: TypeAlias = tuple[int, int]

_VERSION = 1
_HEADER = "<BQII"
_NODE = "<Bq"


class TotalState:
    """The sum over all samples, and how many there were; a tensor of fixed shape."""

    kind: ClassVar[str] = "totals"

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.count = 0
        self.shape = shape
        self._nodes: dict[Node, F64] = {}

    @property
    def total(self) -> F64:
        """The sum; zero where nothing was seen."""
        nodes = dict(self._nodes)
        level = min((level for level, _ in nodes), default=0)
        while len(nodes) > 1:
            for at, k in sorted(node for node in nodes if node[0] == level):
                part = nodes.pop((at, k))
                parent = (at + 1, k >> 1)
                nodes[parent] = nodes[parent] + part if parent in nodes else part
            level += 1
        return next(iter(nodes.values()), np.zeros(self.shape))

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Look at the values that the tensor had in one sample."""
        values = np.asarray(x, np.float64)
        if not np.all(np.isfinite(values)):
            raise DataError("There is NaN or infinity among its values.")
        if self._nodes and values.shape != self.shape:
            raise DataError(
                f"The tensor has the shape {list(self.shape)} in one sample and {list(values.shape)} in "
                "another; a sum over samples needs a fixed shape."
            )
        self.shape = values.shape
        self._put((0, index), values.copy())
        self.count += 1

    def _put(self, node: Node, part: F64) -> None:
        """Add a node, and join it with its other half while that is there."""
        if node in self._nodes:
            raise DataError(f"Sample {node[1] << node[0]} is in the sum already; give each sample once.")
        level, k = node
        while (other := self._nodes.pop((level, k ^ 1), None)) is not None:
            part = part + other if k & 1 == 0 else other + part
            level, k = level + 1, k >> 1
        self._nodes[level, k] = part

    def merge(self, other: TotalState) -> TotalState:
        """What both have seen; neither is changed."""
        if self._nodes and other._nodes and self.shape != other.shape:
            raise DataError(
                f"Sums of the shapes {list(self.shape)} and {list(other.shape)} can't be merged; "
                "observe a tensor of fixed shape."
            )
        result = TotalState(self.shape if self._nodes else other.shape)
        result.count = self.count + other.count
        result._nodes = dict(self._nodes)
        for node in sorted(other._nodes):
            result._put(node, other._nodes[node])
        return result

    def to_bytes(self) -> bytes:
        """Version, samples, rank, number of nodes; the shape; level, place and values of each in order."""
        header = struct.pack(_HEADER, _VERSION, self.count, len(self.shape), len(self._nodes))
        parts = [header, struct.pack(f"<{len(self.shape)}q", *self.shape)]
        for level, k in sorted(self._nodes):
            parts += [struct.pack(_NODE, level, k), self._nodes[level, k].astype("<f8").tobytes()]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> TotalState:
        """What :meth:`to_bytes` gave."""
        at = struct.calcsize(_HEADER)
        if len(data) < at or data[0] != _VERSION:
            raise TableError("The record of a sum is damaged; collect it again.")
        _, samples, rank, count = struct.unpack_from(_HEADER, data)
        if len(data) < at + 8 * rank:
            raise TableError("The record of a sum has the wrong length; collect it again.")
        state = cls(struct.unpack_from(f"<{rank}q", data, at))
        state.count = samples
        at += 8 * rank
        size = int(np.prod(state.shape, dtype=np.int64))
        step = struct.calcsize(_NODE) + 8 * size
        if size < 0 or len(data) != at + count * step:
            raise TableError("The record of a sum has the wrong length; collect it again.")
        for start in range(at, len(data), step):
            content = np.frombuffer(data, "<f8", size, start + struct.calcsize(_NODE))
            key = struct.unpack_from(_NODE, data, start)
            state._nodes[key] = content.astype(np.float64).reshape(state.shape)
        return state

    def __repr__(self) -> str:
        return f"TotalState({list(self.shape)}, {self.count} samples)"
