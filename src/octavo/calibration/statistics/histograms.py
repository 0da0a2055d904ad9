"""A histogram that is exact however the data comes: in any order, any split, by any number of workers.

Bins are ``[k w, (k + 1) w)`` with a width ``w = 2**e``: they lie on multiples of the width, and zero is an
edge. The exponent follows from the largest magnitude seen: with ``2**(m - 1) <= max |x| < 2**m`` it is
``e = m - 12``, which makes at most 4096 bins on either side. When a larger value comes, bins ``2k`` and
``2k + 1`` are added up, as often as needed. Halving commutes with adding, so the counts at the end depend on
the values alone.

With a ``stride`` of N only every N-th value of a sample is counted, with a ``lattice`` of N every N-th
position of a feature map along its height and width; the extremes are still those of all values.
"""

from __future__ import annotations

import math
import struct
import threading
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from octavo.calibration.statistics.extremes import ExtremesState, SampleExtremesState
from octavo.calibration.statistics.state_parts import WithExtremes, damaged
from octavo.errors import TableError

# ---- Counting how many values lie in each bin ``[k w, (k + 1) w)`` of a width ``w = 2**e``
#
# Raising the counts takes longer than everything before it. So values are worked on in portions that stay
# in the cache, in arrays that are used again, bins are numbered in 16 bits first, and the counts of all
# samples are raised in place. A count that is raised twice in a row waits for itself, and after a Relu many
# values are zero: those of the bin at zero are spread over many counts, which are added up when the counts
# are read.

Array = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]

SIDE_BITS = 12  # 4096 bins on either side: ranges in 16 bits are as exact as their values need
SIDE = 1 << SIDE_BITS  # bins on either side of zero
PORTION = 1 << 16  # values worked on at a time, so that they stay in the cache
MOST_WAITING = 1 << 15  # values of a tensor that wait to be counted
_SPREAD = 1 << 9  # counts that the values of the bin at zero are spread over


class _Buffers(threading.local):
    """Arrays for one portion; each thread has its own."""

    def __init__(self) -> None:
        self.scaled = np.empty(PORTION, np.float32)
        self.short = np.empty(PORTION, np.uint16)
        self.index = np.empty(PORTION, np.intp)
        self.spread = (SIDE - 1 + np.arange(PORTION) % _SPREAD).astype(np.uint16)


_buffers = _Buffers()


def no_counts() -> Counts:
    """Return counts of nothing: the bins ``-SIDE … SIDE - 1``, and those that bin 0 is spread over."""
    return np.zeros(2 * SIDE + _SPREAD, np.int64)


def gathered(counts: Counts) -> Counts:
    """Return the counts of the bins ``-SIDE … SIDE - 1``; what bin 0 was spread over is added to it."""
    bins, spread = counts[: 2 * SIDE], counts[2 * SIDE :]
    bins[SIDE] += spread.sum()
    spread[:] = 0
    return bins


def count(counts: Counts, values: Array, exponent: int) -> None:
    """Raise the counts by at most ``PORTION`` values.

    Where float32 would not be exact float64 is used, in which tiny negative values keep their side.
    """
    if not _is_single(values, exponent):
        near = np.floor(np.ldexp(values.astype(np.float64), -exponent))
        near[(values < 0) & (near == 0)] = -1
        np.add(near, SIDE, out=near)
        np.add.at(counts, near.astype(np.intp), 1)
        return
    scaled = np.multiply(values, _scale(exponent), out=_buffers.scaled[: values.size])
    np.floor(scaled, out=scaled)
    short = _buffers.short[: values.size]
    np.copyto(short.view(np.int16), scaled, casting="unsafe")
    np.add(short, SIDE, out=short)
    _raise(counts, short)


def count_not_negative(counts: Counts, values: Array, exponent: int) -> None:
    """Raise the counts by values none of which is negative, without rounding down."""
    if not _is_single(values, exponent):
        near = np.ldexp(values.astype(np.float64), -exponent)
        np.add.at(counts[SIDE:], near.astype(np.intp), 1)
        return
    scaled = np.multiply(values, _scale(exponent), out=_buffers.scaled[: values.size])
    short = _buffers.short[: values.size]
    np.copyto(short, scaled, casting="unsafe")
    np.subtract(short, 1, out=short)  # bin 0 is the largest number now, …
    np.minimum(short, _buffers.spread[: values.size], out=short)  # … and then one of many behind the others
    _raise(counts[SIDE + 1 :], short)


def _raise(counts: Counts, short: Array) -> None:
    index = _buffers.index[: short.size]
    np.copyto(index, short)
    np.add.at(counts, index, 1)


def _is_single(values: Array, exponent: int) -> bool:
    """Return whether scaling by the width is exact in float32: nothing overflows or underflows."""
    return values.dtype == np.float32 and -126 <= exponent <= 0


def _scale(exponent: int) -> np.float32:
    return np.float32(math.ldexp(1.0, -exponent))


_VERSION = 2  # of the stored bytes
_HEADER = "<BBIIiiI"  # version, kind of extremes, stride, lattice, exponent, first bin, number of bins
_EXTREMES: tuple[type[ExtremesState] | type[SampleExtremesState], ...] = (ExtremesState, SampleExtremesState)
_NO_BINS = np.iinfo(np.int32).min  # the exponent before any value but zero was seen
_EXPONENTS = range(-1073 - SIDE_BITS, 1024 - SIDE_BITS + 1)  # those that float64 values lead to
_MAX_TOTAL = 1 << 53  # counted values in a record: float64 is exact up to here, and no run sees as many


class HistogramState(WithExtremes):
    """Counts of a tensor's finite values, and its extremes."""

    kind: ClassVar[str] = "histogram"
    extremes: ExtremesState | SampleExtremesState

    def __init__(
        self, extremes: ExtremesState | SampleExtremesState | None = None, stride: int = 1, lattice: int = 1
    ) -> None:
        self.extremes = extremes if extremes is not None else ExtremesState()
        self.stride, self.lattice = stride, lattice
        self.exponent = _NO_BINS
        self._raised: Counts | None = None  # once there are bins
        self._zeros = 0  # values counted before there is a width, while nothing but zero was seen

    @property
    def _counts(self) -> Counts:
        """Return the counts of the bins ``-SIDE … SIDE - 1``; nothing before there are any."""
        return np.zeros(0, np.int64) if self._raised is None else gathered(self._raised)

    @property
    def total(self) -> int:
        """Return the number of finite values that were counted."""
        return int(self._counts.sum()) + self._zeros

    @property
    def width(self) -> float:
        """Return the width of a bin; 1 where nothing but zero was seen."""
        return math.ldexp(1.0, self.exponent) if self.exponent != _NO_BINS else 1.0

    def bins(self) -> tuple[int, Counts]:
        """Return the number ``k`` of the first filled bin, and the counts from there to the last one."""
        if self.exponent == _NO_BINS:
            return 0, np.array([self._zeros] if self._zeros else [], np.int64)
        counts = self._counts
        filled = np.flatnonzero(counts)
        first, last = int(filled[0]), int(filled[-1])
        return first - SIDE, counts[first : last + 1]

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Take in the values that the tensor has in one sample."""
        values = _as_floats(x)
        step = PORTION * self.stride
        for start in range(0, values.size, step):
            part = values[start : start + step]
            low, high = float(part.min()), float(part.max())
            self.extremes.add(index, low, high)
            self._count(part[:: self.stride], low, high)

    def count_values(self, values: Array, low: float, high: float) -> None:
        """Put a row of values between these bounds into bins; the extremes stay as they are."""
        for start in range(0, values.size, PORTION):
            self._count(values[start : start + PORTION], low, high)

    def _count(self, values: Array, low: float, high: float) -> None:
        if math.isinf(low) or math.isinf(high):
            values = values[np.isfinite(values)]
            if not values.size:
                return
            low, high = float(values.min()), float(values.max())
        self._coarsen(_exponent(max(-low, high)))
        if self._raised is None:
            self._zeros += values.size
        else:
            (count_not_negative if low >= 0 else count)(self._raised, values, self.exponent)

    def _coarsen(self, exponent: int) -> None:
        """Make bins at least as wide as ``2**exponent``."""
        if exponent <= self.exponent:
            return
        if self._raised is None:
            self._raised = no_counts()
            self._raised[SIDE] = self._zeros
            self._zeros = 0
        else:
            bins = self._counts
            bins[:] = _halved(bins, exponent - self.exponent)
        self.exponent = exponent

    def merge(self, other: HistogramState) -> HistogramState:
        """Return the state of the samples of both; neither is changed."""
        if self._subset() != other._subset():
            raise TableError("Histograms that count different subsets of the values can't be merged.")
        extremes = self.extremes.merge(other.extremes)  # type: ignore[arg-type]
        result = HistogramState(extremes, self.stride, self.lattice)
        for part in (self, other):
            result._coarsen(part.exponent)
        for part in (self, other):
            if result._raised is None:
                result._zeros += part._zeros
            elif part._raised is None:
                result._raised[SIDE] += part._zeros
            else:
                bins = result._counts
                bins += _halved(part._counts, result.exponent - part.exponent)
        return result

    def _subset(self) -> tuple[object, ...]:
        return type(self.extremes), self.stride, self.lattice

    def to_bytes(self) -> bytes:
        """Return version, kind of extremes, stride, lattice, exponent, first bin, counts, extremes."""
        first, counts = self.bins()
        kind = _EXTREMES.index(type(self.extremes))
        header = struct.pack(
            _HEADER, _VERSION, kind, self.stride, self.lattice, self.exponent, first, len(counts)
        )
        return header + counts.astype("<i8").tobytes() + self.extremes.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> HistogramState:
        """Return the state that :meth:`to_bytes` wrote."""
        try:
            version, kind, stride, lattice, exponent, first, size = struct.unpack_from(_HEADER, data)
            at = struct.calcsize(_HEADER)
            counts = np.frombuffer(data, "<i8", size, at).astype(np.int64)
            extremes = _EXTREMES[kind].from_bytes(data[at + 8 * size :])
        except (struct.error, ValueError, IndexError) as error:
            raise damaged("a histogram", error) from error
        wrong = counts.min(initial=0) < 0 or counts.sum(dtype=np.float64) > _MAX_TOTAL
        if version != _VERSION or wrong or stride < 1 or lattice < 1:
            raise damaged("a histogram")
        state = cls(extremes, stride, lattice)
        if exponent == _NO_BINS:
            state._zeros = int(counts.sum())
        else:
            there = -SIDE <= first <= first + size <= SIDE and counts.any()
            if not there or exponent not in _EXPONENTS:
                raise damaged("a histogram", "impossible bins")
            state._coarsen(exponent)
            state._counts[first + SIDE : first + SIDE + size] = counts
        return state

    def __repr__(self) -> str:
        return f"HistogramState({self.low:.6g} … {self.high:.6g}, {self.total} values, width {self.width:g})"


class Waiting:
    """Values of several samples, which are put into the bins of a histogram together.

    Each call of numpy has a cost, and bringing the counts into the cache has another. Counts stay the same.
    """

    def __init__(self, state: HistogramState) -> None:
        self._state = state
        self._values = np.empty(0, np.float32)
        self._size, self._low, self._high = 0, math.inf, -math.inf

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Take in the values that the tensor has in one sample."""
        values = _as_floats(x)
        if values.size > MOST_WAITING:
            self._state.update(values, index)
        elif values.size:
            self.take(values[:: self._state.stride], index, float(values.min()), float(values.max()))

    def take(self, values: Array, index: int, low: float, high: float) -> None:
        """Take in the positions of a lattice in one sample, whose extremes are given."""
        self._state.extremes.add(index, low, high)
        row = values.reshape(-1)
        if row.size > MOST_WAITING or row.dtype != np.float32 or low == -math.inf or high == math.inf:
            self._state.count_values(row, low, high)
            return
        if self._size + row.size > self._values.size:
            self.count()
            if row.size > self._values.size:
                self._values = np.empty(min(max(4 * row.size, MOST_WAITING // 8), MOST_WAITING), np.float32)
        self._values[self._size : self._size + row.size] = row
        self._size += row.size
        self._low, self._high = min(self._low, low), max(self._high, high)

    def count(self) -> None:
        """Count the values that wait."""
        if self._size:
            self._state.count_values(self._values[: self._size], self._low, self._high)
            self._size, self._low, self._high = 0, math.inf, -math.inf


def _as_floats(x: npt.ArrayLike) -> Array:
    """Return the values in a row, as float32 or float64."""
    values = np.asarray(x).reshape(-1)
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64 if values.dtype.kind in "iu" else np.float32)
    return values


def _exponent(magnitude: float) -> int:
    """Return the exponent of the bin width for values up to a magnitude."""
    return math.frexp(magnitude)[1] - SIDE_BITS if magnitude > 0 else _NO_BINS


def _halved(counts: Counts, times: int) -> Counts:
    """Return the counts in bins ``2**times`` as wide, in an array of the same size."""
    if times == 0:
        return counts
    result = np.zeros_like(counts)
    if times > SIDE_BITS:
        result[SIDE - 1], result[SIDE] = counts[:SIDE].sum(), counts[SIDE:].sum()
        return result
    wide = counts.reshape(-1, 1 << times).sum(axis=1)
    half = len(wide) // 2
    result[SIDE - half : SIDE + half] = wide
    return result
