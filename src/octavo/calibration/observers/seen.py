"""Which samples were seen: sorted intervals of indices, so that a run of any length takes sixteen bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.errors import TableError

Intervals = npt.NDArray[np.int64]

_FEW = 16  # intervals: one by one they are joined faster


class Seen:
    """A set of sample indices as disjoint intervals ``[start, stop)``, joined where they touch."""

    def __init__(self, intervals: npt.ArrayLike = ()) -> None:
        self._intervals = _joined(np.asarray(intervals, np.int64).reshape(-1, 2))
        self._runs: list[tuple[int, int]] = []  # that were added, and are not joined yet
        self._start = self._stop = 0  # the run of indices that is being added to

    @classmethod
    def of(cls, indices: npt.ArrayLike) -> Seen:
        """The set of these indices."""
        start = np.asarray(indices, np.int64).reshape(-1)
        return cls(np.stack([start, start + 1], axis=1))

    def add(self, index: int) -> None:
        """Add one index."""
        if self._start <= index < self._stop:
            return
        if index != self._stop or self._start == self._stop:
            self._runs.append((self._start, self._stop))
            self._start = index
        self._stop = index + 1

    @property
    def intervals(self) -> Intervals:
        """``[start, stop)`` of each, in order."""
        runs = [run for run in (*self._runs, (self._start, self._stop)) if run[0] < run[1]]
        if runs:
            self._intervals = _joined(np.array([*self._intervals.tolist(), *runs], np.int64))
            self._runs = []
        return self._intervals

    def merge(self, other: Seen) -> Seen:
        """The indices in either."""
        return Seen(np.concatenate([self.intervals, other.intervals]))

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.intervals.tolist())

    def to_bytes(self) -> bytes:
        """The intervals; their number follows from the length."""
        return self.intervals.astype("<i8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Seen:
        """What :meth:`to_bytes` gave."""
        if len(data) % 16:
            raise TableError("The list of samples in a record is cut off; collect the statistics again.")
        intervals = np.frombuffer(data, "<i8").astype(np.int64).reshape(-1, 2)
        if np.any(intervals[:, 0] >= intervals[:, 1]) or np.any(intervals[1:, 0] <= intervals[:-1, 1]):
            raise TableError("The list of samples in a record is damaged; collect the statistics again.")
        return cls(intervals)


def _joined(intervals: Intervals) -> Intervals:
    """Sorted, with those that overlap or touch made one."""
    if len(intervals) < 2:
        return intervals
    if len(intervals) <= _FEW:
        return _few_joined(intervals)
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    starts = np.concatenate([[True], intervals[1:, 0] > reach[:-1]])
    last = np.append(np.flatnonzero(starts)[1:] - 1, len(intervals) - 1)
    return np.stack([intervals[starts, 0], reach[last]], axis=1)


def _few_joined(intervals: Intervals) -> Intervals:
    found: list[list[int]] = []
    for start, stop in sorted(intervals.tolist()):
        if found and start <= found[-1][1]:
            found[-1][1] = max(stop, found[-1][1])
        else:
            found.append([start, stop])
    return np.array(found, np.int64)
