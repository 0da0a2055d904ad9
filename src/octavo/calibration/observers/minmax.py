"""The extremes of a tensor, sample by sample.

Kept as ``{sample index: (min, max)}`` in arrays, 24 bytes a sample, so that averages and moving averages can
be folded at the end in the order of the samples, whoever has seen which of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError, TableError

_VERSION = 1
_HEADER = "<BQ"
_RECORD = np.dtype([("index", "<i8"), ("low", "<f8"), ("high", "<f8")])


class MinMaxState:
    """Minimum and maximum for each sample in which the tensor had any value."""

    kind: ClassVar[str] = "minmax"

    def __init__(self, records: npt.NDArray[Any] | None = None) -> None:
        self._records = _folded(records) if records is not None else np.empty(0, _RECORD)
        self._new: list[tuple[int, float, float]] = []

    @classmethod
    def of(cls, index: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike) -> MinMaxState:
        """The state after samples with these extremes; those without any value (min > max) are left out."""
        lows, highs = np.asarray(low, np.float64), np.asarray(high, np.float64)
        seen = lows <= highs
        records = np.empty(int(np.count_nonzero(seen)), _RECORD)
        records["index"] = np.asarray(index, np.int64)[seen]
        records["low"], records["high"] = lows[seen] + 0.0, highs[seen] + 0.0
        return cls(records)

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Look at the values that the tensor had in one sample."""
        values = np.asarray(x)
        if values.size:
            self.add(index, float(values.min()), float(values.max()))

    def add(self, index: int, low: float, high: float) -> None:
        """Note the extremes of one sample, or of a part of it."""
        if low != low or high != high:
            raise DataError(f"There is NaN among the values of sample {index}.")
        if self._new and self._new[-1][0] == index:
            _, before, after = self._new.pop()
            low, high = min(low, before), max(high, after)
        self._new.append((index, low + 0.0, high + 0.0))  # -0.0 becomes 0.0: minima do not order the two

    @property
    def records(self) -> npt.NDArray[Any]:
        """``index, low, high`` in the order of the samples."""
        if self._new:
            new = np.array(self._new, _RECORD)
            self._records = _folded(np.concatenate([self._records, new]))
            self._new = []
        return self._records

    @property
    def batches(self) -> Mapping[int, tuple[float, float]]:
        """The extremes by sample index."""
        return {int(r["index"]): (float(r["low"]), float(r["high"])) for r in self.records}

    @property
    def extremes(self) -> MinMaxState:
        """This itself; a histogram has its own."""
        return self

    @property
    def low(self) -> float:
        """The smallest value; infinite where nothing was seen."""
        return float(self.records["low"].min(initial=np.inf))

    @property
    def high(self) -> float:
        """The largest value; minus infinity where nothing was seen."""
        return float(self.records["high"].max(initial=-np.inf))

    @property
    def count(self) -> int:
        """The number of samples in which the tensor had any value."""
        return len(self.records)

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values."""
        records = self.records
        return not bool(np.all(np.isfinite(records["low"])) and np.all(np.isfinite(records["high"])))

    def merge(self, other: MinMaxState) -> MinMaxState:
        """What both have seen; records of the same sample are parts of it."""
        return MinMaxState(np.concatenate([self.records, other.records]))

    def to_bytes(self) -> bytes:
        """Version, count, records."""
        return struct.pack(_HEADER, _VERSION, self.count) + self.records.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> MinMaxState:
        """What :meth:`to_bytes` gave."""
        at = struct.calcsize(_HEADER)
        if len(data) < at or data[0] != _VERSION:
            raise TableError("The record of a tensor's extremes is damaged; collect it again.")
        if len(data) != at + struct.unpack_from(_HEADER, data)[1] * _RECORD.itemsize:
            raise TableError("The record of a tensor's extremes has the wrong length; collect it again.")
        records = np.frombuffer(data, _RECORD, offset=at)
        if not np.all(records["low"] <= records["high"]):
            raise TableError("The record of a tensor's extremes is damaged; collect it again.")
        return cls(records.copy())

    def __repr__(self) -> str:
        return f"MinMaxState({self.low:.6g} … {self.high:.6g}, {self.count} samples)"


def _folded(records: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Records in the order of their indices, one for each."""
    if len(records) > 1 and not np.all(np.diff(records["index"]) > 0):
        records = records[np.argsort(records["index"], kind="stable")]
        starts = np.flatnonzero(np.diff(records["index"], prepend=records["index"][0] - 1))
        folded = np.empty(len(starts), _RECORD)
        folded["index"] = records["index"][starts]
        folded["low"] = np.minimum.reduceat(records["low"], starts)
        folded["high"] = np.maximum.reduceat(records["high"], starts)
        records = folded
    return records
