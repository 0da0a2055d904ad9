"""A histogram that is exact however the data comes: in any order, any split, by any number of workers.

Bins are ``[k w, (k + 1) w)`` with a width ``w = 2**e``: they lie on multiples of the width, and zero is an
edge. The exponent follows from the largest magnitude seen: with ``2**(m - 1) <= max |x| < 2**m`` it is
``e = m - 12``, which makes at most 4096 bins on either side. When a larger value comes, bins ``2k`` and
``2k + 1`` are added up, as often as needed. Halving commutes with adding, so the counts at the end depend on
the values alone.
"""

from __future__ import annotations

import math
import struct
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from octavo.calibration.observers.minmax import MinMaxState
from octavo.errors import DataError, TableError

Array = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]

SIDE_BITS = 12
_SIDE = 1 << SIDE_BITS
_CHUNK = 1 << 16  # values worked on at a time: they stay in the cache
_HEADER = "<iiI"
_NO_BINS = np.iinfo(np.int32).min  # the exponent before any value but zero was seen


class HistogramState:
    """Counts of a tensor's finite values, and its extremes."""

    kind: ClassVar[str] = "histogram"

    def __init__(self, extremes: MinMaxState | None = None) -> None:
        self.extremes = extremes if extremes is not None else MinMaxState()
        self.exponent = _NO_BINS
        self._counts: Counts = np.zeros(0, np.int64)  # bins -_SIDE … _SIDE - 1, once there are any
        self._zeros = 0  # while nothing but zero was seen there is no width

    @property
    def low(self) -> float:
        """The smallest value."""
        return self.extremes.low

    @property
    def high(self) -> float:
        """The largest value."""
        return self.extremes.high

    @property
    def count(self) -> int:
        """The number of samples in which the tensor had any value."""
        return self.extremes.count

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values; it is in no bin."""
        return self.extremes.non_finite

    @property
    def total(self) -> int:
        """The number of finite values."""
        return int(self._counts.sum()) + self._zeros

    @property
    def width(self) -> float:
        """The width of a bin; 1 where nothing but zero was seen."""
        return math.ldexp(1.0, self.exponent) if self.exponent != _NO_BINS else 1.0

    def bins(self) -> tuple[int, Counts]:
        """The number ``k`` of the first bin that holds anything, and the counts from there to the last."""
        if self.exponent == _NO_BINS:
            return 0, np.array([self._zeros] if self._zeros else [], np.int64)
        filled = np.flatnonzero(self._counts)
        first, last = int(filled[0]), int(filled[-1])
        return first - _SIDE, self._counts[first : last + 1]

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Look at the values that the tensor had in one sample."""
        values = np.asarray(x).reshape(-1)
        if not values.size:
            return
        if values.dtype not in (np.float32, np.float64):
            values = values.astype(np.float64 if values.dtype.kind in "iu" else np.float32)
        low, high = float(values.min()), float(values.max())
        if low != low or high != high:
            raise DataError(f"There is NaN among the values of sample {index}.")
        self.extremes.add(index, low, high)
        if math.isinf(low) or math.isinf(high):
            values = values[np.isfinite(values)]
            if not values.size:
                return
            low, high = float(values.min()), float(values.max())
        self._coarsen(_exponent(max(-low, high)))
        if self.exponent == _NO_BINS:
            self._zeros += values.size
        else:
            self._counts += _binned(values, self.exponent)

    def _coarsen(self, exponent: int) -> None:
        """Make bins at least as wide as ``2**exponent``."""
        if exponent <= self.exponent:
            return
        if self.exponent == _NO_BINS:
            self._counts = np.zeros(2 * _SIDE, np.int64)
            self._counts[_SIDE] = self._zeros
            self._zeros = 0
        else:
            self._counts = _halved(self._counts, exponent - self.exponent)
        self.exponent = exponent

    def merge(self, other: HistogramState) -> HistogramState:
        """What both have seen; neither is changed."""
        result = HistogramState(self.extremes.merge(other.extremes))
        for part in (self, other):
            result._coarsen(part.exponent)
        for part in (self, other):
            if result.exponent == _NO_BINS:
                result._zeros += part._zeros
            elif part.exponent == _NO_BINS:
                result._counts[_SIDE] += part._zeros
            else:
                result._counts += _halved(part._counts, result.exponent - part.exponent)
        return result

    def to_bytes(self) -> bytes:
        """Exponent, first bin, counts, extremes."""
        first, counts = self.bins()
        header = struct.pack(_HEADER, self.exponent, first, len(counts))
        return header + counts.astype("<i8").tobytes() + self.extremes.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> HistogramState:
        """What :meth:`to_bytes` gave."""
        try:
            exponent, first, size = struct.unpack_from(_HEADER, data)
            at = struct.calcsize(_HEADER)
            counts = np.frombuffer(data, "<i8", size, at).astype(np.int64)
        except (struct.error, ValueError) as error:
            raise TableError(f"The record of a histogram is damaged ({error}); collect it again.") from error
        state = cls(MinMaxState.from_bytes(data[at + 8 * size :]))
        if exponent == _NO_BINS:
            state._zeros = int(counts.sum())
        else:
            if not -_SIDE <= first <= first + size <= _SIDE or counts.min(initial=0) < 0:
                raise TableError("The record of a histogram is damaged (impossible bins); collect it again.")
            state._coarsen(exponent)
            state._counts[first + _SIDE : first + _SIDE + size] = counts
        return state

    def __repr__(self) -> str:
        return f"HistogramState({self.low:.6g} … {self.high:.6g}, {self.total} values, width {self.width:g})"


def _exponent(magnitude: float) -> int:
    """The exponent of the bin width for values up to a magnitude."""
    return math.frexp(magnitude)[1] - SIDE_BITS if magnitude > 0 else _NO_BINS


def _halved(counts: Counts, times: int) -> Counts:
    """Counts in bins ``2**times`` as wide, in an array of the same size."""
    if times == 0:
        return counts
    result = np.zeros_like(counts)
    if times > SIDE_BITS:
        result[_SIDE - 1], result[_SIDE] = counts[:_SIDE].sum(), counts[_SIDE:].sum()
        return result
    wide = counts.reshape(-1, 1 << times).sum(axis=1)
    half = len(wide) // 2
    result[_SIDE - half : _SIDE + half] = wide
    return result


def _binned(values: Array, exponent: int) -> Counts:
    """How many of the values lie in each bin.

    Scaling by a power of two is exact in float32 as long as nothing overflows or becomes too small, that is
    for widths from 2**-126 to 1; otherwise float64 is used, where tiny negative values keep their side.
    """
    total = np.zeros(2 * _SIDE, np.int64)
    single = values.dtype == np.float32 and -126 <= exponent <= 0
    scale = np.float32(math.ldexp(1.0, -exponent)) if single else np.float32(1)
    scaled = np.empty(min(_CHUNK, values.size), np.float32 if single else np.float64)
    numbers = np.empty(scaled.size, np.intp)
    for start in range(0, values.size, _CHUNK):
        part = values[start : start + _CHUNK]
        near, number = scaled[: part.size], numbers[: part.size]
        if single:
            np.multiply(part, scale, out=near)
            np.floor(near, out=near)
        else:
            np.floor(np.ldexp(part.astype(np.float64), -exponent), out=near)
            near[(part < 0) & (near == 0)] = -1
        np.add(near, _SIDE, out=near)
        number[...] = near
        total += np.bincount(number, minlength=2 * _SIDE)
    return total
