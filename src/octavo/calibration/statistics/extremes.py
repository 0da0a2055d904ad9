"""The smallest and the largest value of a tensor: of all samples together, or of each sample.

``ExtremesState`` takes a few bytes however many samples there are. ``SampleExtremesState`` keeps
``index, minimum, maximum`` of each sample, 24 bytes each, so that averages and moving averages can be taken
in the order of the samples, whichever worker has seen which of them.
"""

from __future__ import annotations

import math
import struct
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from octavo.calibration.statistics.state_parts import SampleSet, damaged, header_of
from octavo.errors import DataError, TableError

Self = TypeVar("Self", bound="_Extremes")

_VERSION = 1  # of the stored bytes
_HEADER = "<Bdd"  # version, minimum, maximum
_SAMPLES_HEADER = "<BQ"  # version, number of samples
_SAMPLE = np.dtype([("index", "<i8"), ("low", "<f8"), ("high", "<f8")])


class _Extremes:
    """How both states take in values."""

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Take in the values that the tensor has in one sample."""
        values = np.asarray(x)
        if values.size:
            self.add(index, float(values.min()), float(values.max()))

    def add(self, index: int, low: float, high: float) -> None:
        """Take in the extremes of one sample, or of a part of it."""
        if low != low or high != high:
            raise DataError(f"There is NaN among the values of sample {index}.")
        self._add(index, low + 0.0, high + 0.0)  # -0.0 becomes 0.0: minima do not order the two

    def _add(self, index: int, low: float, high: float) -> None:
        raise NotImplementedError

    @property
    def extremes(self: Self) -> Self:
        """Return the state itself; a histogram has extremes of its own."""
        return self


class ExtremesState(_Extremes):
    """The minimum and maximum over all samples, and in which samples the tensor had any value."""

    kind: ClassVar[str] = "extremes"

    def __init__(
        self, low: float = math.inf, high: float = -math.inf, samples: SampleSet | None = None
    ) -> None:
        self.low, self.high = low, high
        self._samples = samples if samples is not None else SampleSet()

    def _add(self, index: int, low: float, high: float) -> None:
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._samples.add(index)

    @property
    def count(self) -> int:
        """Return the number of samples in which the tensor had any value."""
        return len(self._samples)

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values."""
        return self.count > 0 and not (math.isfinite(self.low) and math.isfinite(self.high))

    def merge(self, other: ExtremesState) -> ExtremesState:
        """Return the state of the samples of both; neither is changed."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return ExtremesState(low, high, self._samples.merge(other._samples))

    def to_bytes(self) -> bytes:
        """Return version, extremes, samples."""
        return struct.pack(_HEADER, _VERSION, self.low, self.high) + self._samples.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> ExtremesState:
        """Return the state that :meth:`to_bytes` wrote."""
        (low, high), at = header_of(data, _HEADER, _VERSION, "a tensor's extremes")
        samples = SampleSet.from_bytes(data[at:])
        if not (low <= high if len(samples) else (low, high) == (math.inf, -math.inf)):
            raise damaged("a tensor's extremes")
        return cls(low, high, samples)

    def __repr__(self) -> str:
        return f"ExtremesState({self.low:.6g} … {self.high:.6g}, {self.count} samples)"


class SampleExtremesState(_Extremes):
    """The minimum and maximum of each sample in which the tensor had any value."""

    kind: ClassVar[str] = "minmax"

    def __init__(self, records: npt.NDArray[Any] | None = None) -> None:
        self._records = _one_each(records) if records is not None else np.empty(0, _SAMPLE)
        self._new: list[tuple[int, float, float]] = []

    @classmethod
    def of(cls, index: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike) -> SampleExtremesState:
        """Return the state after samples with these extremes; minimum > maximum says: had no value."""
        lows, highs = np.asarray(low, np.float64) + 0.0, np.asarray(high, np.float64) + 0.0
        records = np.empty(len(lows), _SAMPLE)
        records["index"], records["low"], records["high"] = index, lows, highs
        return cls(records[lows <= highs])

    def _add(self, index: int, low: float, high: float) -> None:
        if self._new and self._new[-1][0] == index:
            _, before, after = self._new.pop()
            low, high = min(low, before), max(high, after)
        self._new.append((index, low, high))

    @property
    def records(self) -> npt.NDArray[Any]:
        """Return ``index, low, high`` in the order of the samples."""
        if self._new:
            self._records = _one_each(np.concatenate([self._records, np.array(self._new, _SAMPLE)]))
            self._new = []
        return self._records

    @property
    def low(self) -> float:
        """Return the smallest value; infinite where nothing was seen."""
        return float(self.records["low"].min(initial=np.inf))

    @property
    def high(self) -> float:
        """Return the largest value; minus infinity where nothing was seen."""
        return float(self.records["high"].max(initial=-np.inf))

    @property
    def count(self) -> int:
        """Return the number of samples in which the tensor had any value."""
        return len(self.records)

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values."""
        return self.count > 0 and not (math.isfinite(self.low) and math.isfinite(self.high))

    def merge(self, other: SampleExtremesState) -> SampleExtremesState:
        """Return the state of the samples of both; records of the same sample are parts of it."""
        return SampleExtremesState(np.concatenate([self.records, other.records]))

    def to_bytes(self) -> bytes:
        """Return version, number of samples, records."""
        return struct.pack(_SAMPLES_HEADER, _VERSION, self.count) + self.records.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> SampleExtremesState:
        """Return the state that :meth:`to_bytes` wrote."""
        (count,), at = header_of(data, _SAMPLES_HEADER, _VERSION, "a tensor's extremes")
        if len(data) != at + count * _SAMPLE.itemsize:
            raise damaged("a tensor's extremes", "wrong length")
        records = np.frombuffer(data, _SAMPLE, offset=at)
        if not np.all(records["low"] <= records["high"]):
            raise damaged("a tensor's extremes")
        return cls(records.copy())

    def __repr__(self) -> str:
        return f"SampleExtremesState({self.low:.6g} … {self.high:.6g}, {self.count} samples)"


def _one_each(records: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return records in the order of their indices, one for each."""
    if len(records) > 1 and not np.all(np.diff(records["index"]) > 0):
        records = records[np.argsort(records["index"], kind="stable")]
        starts = np.flatnonzero(np.diff(records["index"], prepend=records["index"][0] - 1))
        joined = np.empty(len(starts), _SAMPLE)
        joined["index"] = records["index"][starts]
        joined["low"] = np.minimum.reduceat(records["low"], starts)
        joined["high"] = np.maximum.reduceat(records["high"], starts)
        records = joined
    return records


# ---- The extremes of each channel of a tensor

F64 = npt.NDArray[np.float64]

FOLDS = 4  # shares of the samples that channels have extremes of
_CHANNELS_HEADER = "<BiI"  # version, which is the number of shares; axis, channels


class ChannelState:
    """Minimum and maximum along all axes but one, of each share of the samples: every fourth is in one.

    What the samples of one share reach beyond the others tells how far new samples may. ``low`` and ``high``
    are those of all samples; they are infinite for channels without a value.
    """

    kind: ClassVar[str] = "channels"

    def __init__(self, axis: int, lows: F64 | None = None, highs: F64 | None = None) -> None:
        self.axis = axis
        self.lows = _by_share(lows, np.inf)
        self.highs = _by_share(highs, -np.inf)

    @property
    def low(self) -> F64:
        """Return the minimum of each channel."""
        return np.asarray(self.lows.min(axis=0))

    @property
    def high(self) -> F64:
        """Return the maximum of each channel."""
        return np.asarray(self.highs.max(axis=0))

    @property
    def absolute(self) -> F64:
        """Return the largest magnitude in each channel; 0 for channels without a value."""
        return np.maximum(np.maximum(-self.low, self.high), 0.0)

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Take in the values that the tensor has in one sample."""
        values = np.asarray(x)
        if not -values.ndim <= self.axis < values.ndim:
            raise DataError(f"Sample {index} gave {values.ndim} dimensions, so there is no axis {self.axis}.")
        rows = np.moveaxis(values, self.axis, 0).reshape(values.shape[self.axis], -1)
        low, high = _extremes(rows)
        if np.isnan(low).any() or np.isnan(high).any():
            raise DataError(f"There is NaN among the values of sample {index}.")
        found = ChannelState(self.axis, low + 0.0, high + 0.0)
        found.lows, found.highs = (np.roll(part, index % FOLDS, axis=0) for part in (found.lows, found.highs))
        merged = self.merge(found)
        self.lows, self.highs = merged.lows, merged.highs

    def merge(self, other: ChannelState) -> ChannelState:
        """Return the state of the samples of both; neither is changed."""
        if self.axis != other.axis:
            raise TableError(f"Channels along axis {self.axis} and axis {other.axis} can't be merged.")
        if not self.lows.size or not other.lows.size:
            some = self if self.lows.size else other
            return ChannelState(self.axis, some.lows, some.highs)
        sizes = [state.lows.shape[1] for state in (self, other)]
        if sizes[0] != sizes[1]:
            raise DataError(
                f"The tensor has {sizes[0]} channels along axis {self.axis} in one sample and "
                f"{sizes[1]} in another; observe an axis of fixed size."
            )
        lows, highs = np.minimum(self.lows, other.lows), np.maximum(self.highs, other.highs)
        return ChannelState(self.axis, lows, highs)

    def to_bytes(self) -> bytes:
        """Return version, axis, number of channels, minima, maxima.

        They are those of the first share if it is the only one, as in earlier files.
        """
        alone = not np.isfinite(self.lows[1:]).any() and not np.isfinite(self.highs[1:]).any()
        count = 1 if alone else FOLDS
        header = struct.pack(_CHANNELS_HEADER, count, self.axis, self.lows.shape[1])
        content = np.concatenate([self.lows[:count], self.highs[:count]])
        return header + content.astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> ChannelState:
        """Return the state that :meth:`to_bytes` wrote."""
        count = FOLDS if data[:1] == bytes([FOLDS]) else 1
        (axis, size), at = header_of(data, _CHANNELS_HEADER, count, "a tensor's channels")
        if len(data) != at + 16 * count * size:
            raise damaged("a tensor's channels", "wrong length")
        low, high = np.frombuffer(data, "<f8", offset=at).astype(np.float64).reshape(2, count, size)
        return cls(axis, low, high)

    def __repr__(self) -> str:
        return f"ChannelState({self.lows.shape[1]} channels along axis {self.axis})"


def _by_share(values: F64 | None, empty: float) -> F64:
    """Return extremes by share; those of one share are the first one's."""
    if values is None:
        return np.empty((FOLDS, 0))
    rows = np.atleast_2d(values)
    rest = np.full((FOLDS - len(rows), rows.shape[1]), empty)
    return np.concatenate([rows, rest])


def _extremes(rows: npt.NDArray[Any]) -> tuple[F64, F64]:
    if not rows.shape[1]:
        return np.full(len(rows), np.inf), np.full(len(rows), -np.inf)
    return rows.min(axis=1).astype(np.float64), rows.max(axis=1).astype(np.float64)
