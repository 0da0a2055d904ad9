"""The extremes of each channel of a tensor."""

from __future__ import annotations

import struct
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from octavo.calibration.statistics.state import damaged
from octavo.errors import DataError, TableError

F64 = npt.NDArray[np.float64]

_VERSION = 1
_HEADER = "<BiI"  # version, axis, channels


class ChannelState:
    """Minimum and maximum along all axes but one; infinite for channels without a value."""

    kind: ClassVar[str] = "channels"

    def __init__(self, axis: int, low: F64 | None = None, high: F64 | None = None) -> None:
        self.axis = axis
        self.low: F64 = low if low is not None else np.empty(0)
        self.high: F64 = high if high is not None else np.empty(0)

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
        merged = self.merge(ChannelState(self.axis, low + 0.0, high + 0.0))
        self.low, self.high = merged.low, merged.high

    def merge(self, other: ChannelState) -> ChannelState:
        """Return the state of the samples of both; neither is changed."""
        if self.axis != other.axis:
            raise TableError(f"Channels along axis {self.axis} and axis {other.axis} can't be merged.")
        if not self.low.size or not other.low.size:
            some = self if self.low.size else other
            return ChannelState(self.axis, some.low, some.high)
        if self.low.size != other.low.size:
            raise DataError(
                f"The tensor has {self.low.size} channels along axis {self.axis} in one sample and "
                f"{other.low.size} in another; observe an axis of fixed size."
            )
        return ChannelState(self.axis, np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    def to_bytes(self) -> bytes:
        """Version, axis, number of channels, minima, maxima."""
        header = struct.pack(_HEADER, _VERSION, self.axis, self.low.size)
        return header + self.low.astype("<f8").tobytes() + self.high.astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> ChannelState:
        """Return the state that :meth:`to_bytes` wrote."""
        at = struct.calcsize(_HEADER)
        if len(data) < at or data[0] != _VERSION:
            raise damaged("a tensor's channels")
        _, axis, size = struct.unpack_from(_HEADER, data)
        if len(data) != at + 16 * size:
            raise damaged("a tensor's channels", "wrong length")
        low, high = np.frombuffer(data, "<f8", offset=at).astype(np.float64).reshape(2, size)
        return cls(axis, low, high)

    def __repr__(self) -> str:
        return f"ChannelState({self.low.size} channels along axis {self.axis})"


def _extremes(rows: npt.NDArray[Any]) -> tuple[F64, F64]:
    if not rows.shape[1]:
        return np.full(len(rows), np.inf), np.full(len(rows), -np.inf)
    return rows.min(axis=1).astype(np.float64), rows.max(axis=1).astype(np.float64)
