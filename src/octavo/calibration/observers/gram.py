"""The Gram matrix ``Xᵀ X`` of a layer's input, with the rows of ``X`` along the last axis.

Floating-point sums depend on their order, so the order is fixed: each sample's matrix is computed in float64,
and matrices are added up by a binary tree over the sample indices. The node ``(level, k)`` is the sum over
samples ``k 2**level`` up to ``(k + 1) 2**level``; a sample that is missing adds nothing. Whoever has seen
which samples, two halves of a node become the node as soon as they meet, and the sum is the same to the bit.
A state holds at most two nodes for each level of a run of samples: memory grows with the logarithm of their
number.

Exact in this sense is the sum over whole samples. A sample in two parts is refused, and the matrix of one
sample is what the machine's BLAS makes of it.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError, TableError

F64 = npt.NDArray[np.float64]
Node: TypeAlias = tuple[int, int]

_VERSION = 1
_HEADER = "<BQII"
_NODE = "<Bq"


class GramState:
    """``Xᵀ X`` over all samples, and how many rows went in."""

    kind: ClassVar[str] = "gram"

    def __init__(self) -> None:
        self.rows = 0
        self._nodes: dict[Node, F64] = {}

    @property
    def matrix(self) -> F64:
        """The sum over all samples; empty where there is none."""
        nodes = dict(self._nodes)
        if not nodes:
            return np.empty((0, 0))
        level = min(level for level, _ in nodes)
        while len(nodes) > 1:
            for at, k in sorted(node for node in nodes if node[0] == level):
                part = nodes.pop((at, k))
                parent = (at + 1, k >> 1)
                nodes[parent] = nodes[parent] + part if parent in nodes else part
            level += 1
        return next(iter(nodes.values()))

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Look at the values that the tensor had in one sample."""
        values = np.asarray(x)
        if not values.ndim:
            raise DataError(f"Sample {index} gave a single number, which has no Gram matrix.")
        rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
        if not rows.size:
            return
        if not np.all(np.isfinite(rows)):
            raise DataError(f"There is NaN or infinity among the values of sample {index}.")
        self._put((0, index), rows.T @ rows)
        self.rows += len(rows)

    def _put(self, node: Node, matrix: F64) -> None:
        """Add a node, and join it with its other half while that is there."""
        size = self._size()
        if size is not None and size != len(matrix):
            raise DataError(
                f"The tensor has {size} columns in one sample and {len(matrix)} in another; "
                "a Gram matrix needs a last axis of fixed size."
            )
        level, k = node
        if any(k >> max(at - level, 0) == i >> max(level - at, 0) for at, i in self._nodes):
            raise DataError(f"Sample {k << level} is in the Gram matrix already; give each sample once.")
        while (other := self._nodes.pop((level, k ^ 1), None)) is not None:
            matrix = matrix + other if k & 1 == 0 else other + matrix
            level, k = level + 1, k >> 1
        self._nodes[level, k] = matrix

    def _size(self) -> int | None:
        return next((len(matrix) for matrix in self._nodes.values()), None)

    def merge(self, other: GramState) -> GramState:
        """What both have seen; neither is changed."""
        result = GramState()
        result.rows = self.rows + other.rows
        result._nodes = dict(self._nodes)
        for node in sorted(other._nodes):
            result._put(node, other._nodes[node])
        return result

    def to_bytes(self) -> bytes:
        """Version, rows, columns, number of nodes; level, place and matrix of each in order."""
        header = struct.pack(_HEADER, _VERSION, self.rows, self._size() or 0, len(self._nodes))
        parts = [header]
        for level, k in sorted(self._nodes):
            parts += [struct.pack(_NODE, level, k), self._nodes[level, k].astype("<f8").tobytes()]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> GramState:
        """What :meth:`to_bytes` gave."""
        at = struct.calcsize(_HEADER)
        if len(data) < at or data[0] != _VERSION:
            raise TableError("The record of a Gram matrix is damaged; collect it again.")
        _, rows, size, count = struct.unpack_from(_HEADER, data)
        step = struct.calcsize(_NODE) + 8 * size * size
        if len(data) != at + count * step:
            raise TableError("The record of a Gram matrix has the wrong length; collect it again.")
        state = cls()
        for start in range(at, len(data), step):
            content: Any = np.frombuffer(data, "<f8", size * size, start + struct.calcsize(_NODE))
            state._nodes[struct.unpack_from(_NODE, data, start)] = content.reshape(size, size).copy()
        state.rows = rows
        return state

    def __repr__(self) -> str:
        return f"GramState({self._size() or 0} columns, {self.rows} rows)"
