"""Sums over samples that are the same to the bit, whichever worker has seen which samples.

Floating-point sums depend on their order, so the order is fixed: what each sample adds is computed in
float64, and added up by a binary tree over the sample indices. The node ``(level, k)`` is the sum over
samples ``k 2**level`` up to ``(k + 1) 2**level``; a sample that is missing adds nothing. Two halves of a node
become the node as soon as they meet. A state holds at most two nodes for each level of a run of samples:
memory grows with the logarithm of their number.

Exact in this sense is the sum over whole samples. A sample in two parts is refused, and the Gram matrix of
one sample is what the machine's BLAS makes of it.
"""

from __future__ import annotations

import struct
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from octavo.calibration.statistics.state_parts import damaged, header_of
from octavo.errors import DataError

F64 = npt.NDArray[np.float64]
Node: TypeAlias = tuple[int, int]
Sum = TypeVar("Sum", bound="_SumOverSamples")

_VERSION = 1  # of the stored bytes
_HEADER = "<BQII"  # version, what is counted, columns or rank, number of nodes
_NODE = "<Bq"  # level, k


class _SumOverSamples:
    """The tree of sums, and a number that is counted along: samples, or rows."""

    kind: ClassVar[str]
    _what: ClassVar[str]  # for messages

    def __init__(self) -> None:
        self.count = 0
        self.shape: tuple[int, ...] = ()
        self._nodes: dict[Node, F64] = {}

    def _sum(self) -> F64 | None:
        """Return the sum over all samples, None where there is none."""
        nodes = dict(self._nodes)
        level = min((level for level, _ in nodes), default=0)
        while len(nodes) > 1:
            for at, k in sorted(node for node in nodes if node[0] == level):
                part = nodes.pop((at, k))
                parent = (at + 1, k >> 1)
                nodes[parent] = nodes[parent] + part if parent in nodes else part
            level += 1
        return next(iter(nodes.values()), None)

    def _put(self, node: Node, part: F64) -> None:
        """Add a node, and join it with its other half while that is there."""
        if self._nodes and part.shape != self.shape:
            raise DataError(
                f"One sample adds an array of shape {list(self.shape)} to {self._what}, and another of "
                f"{list(part.shape)}; observe a tensor of fixed shape."
            )
        self.shape = part.shape
        level, k = node
        if any(k >> max(at - level, 0) == i >> max(level - at, 0) for at, i in self._nodes):
            raise DataError(f"Sample {k << level} is in {self._what} already; give each sample once.")
        while (other := self._nodes.pop((level, k ^ 1), None)) is not None:
            part = part + other if k & 1 == 0 else other + part
            level, k = level + 1, k >> 1
        self._nodes[level, k] = part

    def merge(self: Sum, other: Sum) -> Sum:
        """Return the state of the samples of both; neither is changed."""
        result = type(self)()
        result.count, result.shape = self.count + other.count, self.shape
        result._nodes = dict(self._nodes)
        for node in sorted(other._nodes):
            result._put(node, other._nodes[node])
        return result

    def _to_bytes(self, size: int, shape: bytes = b"") -> bytes:
        """Return version, count, columns or rank, number of nodes; the shape; level, k, values of each."""
        parts = [struct.pack(_HEADER, _VERSION, self.count, size, len(self._nodes)), shape]
        for level, k in sorted(self._nodes):
            parts += [struct.pack(_NODE, level, k), self._nodes[level, k].astype("<f8").tobytes()]
        return b"".join(parts)

    @classmethod
    def _from_bytes(
        cls: type[Sum], data: bytes, at: int, count: int, shape: tuple[int, ...], nodes: int
    ) -> Sum:
        """Return the state whose nodes begin at a byte."""
        size = int(np.prod(shape, dtype=np.int64))
        step = struct.calcsize(_NODE) + 8 * size
        if size < 0 or len(data) != at + nodes * step:
            raise damaged(cls._what, "wrong length")
        state = cls()
        state.count, state.shape = count, shape
        for start in range(at, len(data), step):
            values = np.frombuffer(data, "<f8", size, start + struct.calcsize(_NODE)).astype(np.float64)
            state._nodes[struct.unpack_from(_NODE, data, start)] = values.reshape(shape)
        return state


class SumState(_SumOverSamples):
    """The sum of a tensor of fixed shape, element by element; ``count`` is the number of samples."""

    kind: ClassVar[str] = "totals"
    _what: ClassVar[str] = "a sum over samples"

    @property
    def total(self) -> F64:
        """Return the sum; zero where nothing was seen."""
        found = self._sum()
        return found if found is not None else np.zeros(self.shape)

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Take in the values that the tensor has in one sample."""
        values = np.array(x, np.float64)
        if not np.all(np.isfinite(values)):
            raise DataError("There is NaN or infinity among its values.")
        self._put((0, index), values)
        self.count += 1

    def to_bytes(self) -> bytes:
        """Return header with the rank, the shape, the nodes."""
        return self._to_bytes(len(self.shape), struct.pack(f"<{len(self.shape)}q", *self.shape))

    @classmethod
    def from_bytes(cls, data: bytes) -> SumState:
        """Return the state that :meth:`to_bytes` wrote."""
        (count, rank, nodes), at = header_of(data, _HEADER, _VERSION, cls._what)
        if len(data) < at + 8 * rank:
            raise damaged(cls._what, "wrong length")
        return cls._from_bytes(data, at + 8 * rank, count, struct.unpack_from(f"<{rank}q", data, at), nodes)

    def __repr__(self) -> str:
        return f"SumState({list(self.shape)}, {self.count} samples)"


class GramState(_SumOverSamples):
    """The Gram matrix ``Xᵀ X``, with the rows of ``X`` along the last axis; ``count`` is their number."""

    kind: ClassVar[str] = "gram"
    _what: ClassVar[str] = "a Gram matrix"

    @property
    def matrix(self) -> F64:
        """Return the sum over all samples; empty where there is none."""
        found = self._sum()
        return found if found is not None else np.empty((0, 0))

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Take in the values that the tensor has in one sample."""
        values = np.asarray(x)
        if not values.ndim:
            raise DataError(f"Sample {index} gave a single number, which has no Gram matrix.")
        rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
        if not rows.size:
            return
        if not np.all(np.isfinite(rows)):
            raise DataError(f"There is NaN or infinity among the values of sample {index}.")
        self._put((0, index), rows.T @ rows)
        self.count += len(rows)

    def to_bytes(self) -> bytes:
        """Return header with the number of columns, the nodes."""
        return self._to_bytes(self.shape[0] if self.shape else 0)

    @classmethod
    def from_bytes(cls, data: bytes) -> GramState:
        """Return the state that :meth:`to_bytes` wrote."""
        (rows, size, nodes), at = header_of(data, _HEADER, _VERSION, cls._what)
        state = cls._from_bytes(data, at, rows, (size, size), nodes)
        state.shape = state.shape if nodes else ()
        return state

    def __repr__(self) -> str:
        return f"GramState({self.shape[0] if self.shape else 0} columns, {self.count} rows)"
