"""The smallest and the largest value of a tensor, and in which samples it had any: a few bytes always."""

from __future__ import annotations

import math
import struct
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from octavo.calibration.observers.seen import Seen
from octavo.errors import DataError, TableError

_VERSION = 1
_HEADER = "<Bdd"


class ExtremesState:
    """Minimum and maximum over all samples."""

    kind: ClassVar[str] = "extremes"

    def __init__(self, low: float = math.inf, high: float = -math.inf, seen: Seen | None = None) -> None:
        self.low = low
        self.high = high
        self._seen = seen if seen is not None else Seen()

    @classmethod
    def of(cls, index: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike) -> ExtremesState:
        """The state after samples with these extremes; those without any value (min > max) are left out."""
        lows, highs = np.asarray(low, np.float64), np.asarray(high, np.float64)
        seen = lows <= highs
        return cls(
            float(lows[seen].min(initial=np.inf)) + 0.0,
            float(highs[seen].max(initial=-np.inf)) + 0.0,
            Seen.of(np.asarray(index, np.int64)[seen]),
        )

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Look at the values that the tensor had in one sample."""
        values = np.asarray(x)
        if values.size:
            self.add(index, float(values.min()), float(values.max()))

    def add(self, index: int, low: float, high: float) -> None:
        """Note the extremes of one sample, or of a part of it."""
        if low != low or high != high:
            raise DataError(f"There is NaN among the values of sample {index}.")
        self.low = min(self.low, low + 0.0)  # -0.0 becomes 0.0: minima do not order the two
        self.high = max(self.high, high + 0.0)
        self._seen.add(index)

    @property
    def extremes(self) -> ExtremesState:
        """This itself; a histogram has its own."""
        return self

    @property
    def count(self) -> int:
        """The number of samples in which the tensor had any value."""
        return len(self._seen)

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values."""
        return self.count > 0 and not (math.isfinite(self.low) and math.isfinite(self.high))

    def merge(self, other: ExtremesState) -> ExtremesState:
        """What both have seen; neither is changed."""
        return ExtremesState(
            min(self.low, other.low), max(self.high, other.high), self._seen.merge(other._seen)
        )

    def to_bytes(self) -> bytes:
        """Version, extremes, samples."""
        return struct.pack(_HEADER, _VERSION, self.low, self.high) + self._seen.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> ExtremesState:
        """What :meth:`to_bytes` gave."""
        if len(data) < struct.calcsize(_HEADER) or data[0] != _VERSION:
            raise TableError("The record of a tensor's extremes is damaged; collect it again.")
        _, low, high = struct.unpack_from(_HEADER, data)
        seen = Seen.from_bytes(data[struct.calcsize(_HEADER) :])
        fits = low <= high if len(seen) else (low, high) == (math.inf, -math.inf)
        if not fits:
            raise TableError("The record of a tensor's extremes is damaged; collect it again.")
        return cls(low, high, seen)

    def __repr__(self) -> str:
        return f"ExtremesState({self.low:.6g} … {self.high:.6g}, {self.count} samples)"
