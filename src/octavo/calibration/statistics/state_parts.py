"""What the states have in common: where a wrapping state takes its extremes from, and damaged records."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.core.stats import State
from octavo.errors import TableError


def damaged(what: str, why: object = "") -> TableError:
    """Return the error for a saved record that can't be what ``to_bytes`` wrote."""
    return TableError(f"The record of {what} is damaged{f' ({why})' if why else ''}; collect it again.")


def header_of(data: bytes, form: str, version: int, what: str) -> tuple[tuple[Any, ...], int]:
    """Return the numbers behind the version in the header of a record, and where the content begins."""
    size = struct.calcsize(form)
    if len(data) < size or data[0] != version:
        raise damaged(what)
    return struct.unpack_from(form, data)[1:], size


class WithExtremes:
    """A state that holds another one, which answers for extremes and samples."""

    extremes: State

    @property
    def low(self) -> float:
        """Return the smallest value; infinite where nothing was seen."""
        return self.extremes.low

    @property
    def high(self) -> float:
        """Return the largest value; minus infinity where nothing was seen."""
        return self.extremes.high

    @property
    def count(self) -> int:
        """Return the number of samples in which the tensor had any value."""
        return self.extremes.count

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values."""
        return self.extremes.non_finite


# ---- A set of samples as sorted intervals of indices: a run of any length takes sixteen bytes

Intervals = npt.NDArray[np.int64]

_JOINED_IN_PYTHON = 16  # intervals up to which a loop is faster than numpy


class SampleSet:
    """A set of sample indices as disjoint intervals ``[start, stop)``, joined where they touch."""

    def __init__(self, intervals: npt.ArrayLike = ()) -> None:
        self._intervals = _joined(np.asarray(intervals, np.int64).reshape(-1, 2))
        self._runs: list[tuple[int, int]] = []  # added, but not joined with the intervals yet
        self._start = self._stop = 0  # the run of indices that is being added to

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
        """Return ``[start, stop)`` of each interval, in order."""
        runs = [run for run in (*self._runs, (self._start, self._stop)) if run[0] < run[1]]
        if runs:
            self._intervals = _joined(np.array([*self._intervals.tolist(), *runs], np.int64))
            self._runs = []
        return self._intervals

    def merge(self, other: SampleSet) -> SampleSet:
        """Return the set of the indices in either."""
        return SampleSet(np.concatenate([self.intervals, other.intervals]))

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.intervals.tolist())

    def to_bytes(self) -> bytes:
        """Return the intervals; their number follows from the length."""
        return self.intervals.astype("<i8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> SampleSet:
        """Return the set that :meth:`to_bytes` wrote."""
        if len(data) % 16:
            raise damaged("the samples", "cut off")
        intervals = np.frombuffer(data, "<i8").astype(np.int64).reshape(-1, 2)
        if np.any(intervals[:, 0] >= intervals[:, 1]) or np.any(intervals[1:, 0] <= intervals[:-1, 1]):
            raise damaged("the samples")
        return cls(intervals)


def _joined(intervals: Intervals) -> Intervals:
    """Return the intervals in order, with those that overlap or touch made one."""
    if len(intervals) < 2:
        return intervals
    if len(intervals) <= _JOINED_IN_PYTHON:
        return _joined_in_python(intervals)
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    starts = np.concatenate([[True], intervals[1:, 0] > reach[:-1]])
    last = np.append(np.flatnonzero(starts)[1:] - 1, len(intervals) - 1)
    return np.stack([intervals[starts, 0], reach[last]], axis=1)


def _joined_in_python(intervals: Intervals) -> Intervals:
    found: list[list[int]] = []
    for start, stop in sorted(intervals.tolist()):
        if found and start <= found[-1][1]:
            found[-1][1] = max(stop, found[-1][1])
        else:
            found.append([start, stop])
    return np.array(found, np.int64)
