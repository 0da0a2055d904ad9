"""Histograms of a tensor's values, grouped by the magnitude of the samples.

A single sample may have values ten times as large as all others. In one histogram its errors outweigh those
of the rest; in a group of its own, each sample can be judged by what is lost of its own signal.

The observed tensor is a row: the mean square of the sample, then its values. Samples whose root mean square
has the same power of two below it share a histogram.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from octavo.calibration.statistics.histograms import HistogramState
from octavo.calibration.statistics.state_parts import damaged

_VERSION = 1  # of the stored bytes
_GROUP = "<iI"  # exponent of the magnitude, length of the histogram's record
_INFINITE, _ZERO = 1 << 10, -(1 << 10)  # exponents of samples that hold an infinity, and of zeros alone


class MagnitudeState:
    """A histogram for each magnitude of samples, by the exponent of their root mean square."""

    kind: ClassVar[str] = "loudness"

    def __init__(self, groups: Mapping[int, HistogramState] | None = None) -> None:
        self.groups = dict(groups or {})

    @property
    def low(self) -> float:
        """Return the smallest value; infinite where nothing was seen."""
        return min((state.low for state in self.groups.values()), default=math.inf)

    @property
    def high(self) -> float:
        """Return the largest value; minus infinity where nothing was seen."""
        return max((state.high for state in self.groups.values()), default=-math.inf)

    @property
    def count(self) -> int:
        """Return the number of samples in which the tensor had any value."""
        return sum(state.count for state in self.groups.values())

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values."""
        return any(state.non_finite for state in self.groups.values())

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Take in one sample: its mean square, and then its values."""
        row = np.asarray(x).reshape(-1)
        if row.size > 1:
            self.groups.setdefault(_exponent(float(row[0])), HistogramState()).update(row[1:], index)

    def merge(self, other: MagnitudeState) -> MagnitudeState:
        """Return the state of the samples of both; neither is changed."""
        groups = dict(self.groups)
        for exponent, state in other.groups.items():
            groups[exponent] = groups[exponent].merge(state) if exponent in groups else state
        return MagnitudeState(groups)

    def to_bytes(self) -> bytes:
        """Return version, and for each magnitude the exponent, the length and the histogram."""
        parts = [bytes([_VERSION])]
        for exponent in sorted(self.groups):
            content = self.groups[exponent].to_bytes()
            parts += [struct.pack(_GROUP, exponent, len(content)), content]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> MagnitudeState:
        """Return the state that :meth:`to_bytes` wrote."""
        groups: dict[int, HistogramState] = {}
        at, last = 1, _ZERO - 1
        try:
            while data[0] == _VERSION and at < len(data):
                exponent, length = struct.unpack_from(_GROUP, data, at)
                at += 8 + length
                if not last < exponent <= _INFINITE or at > len(data):
                    raise ValueError("histograms out of order, or cut off")
                groups[exponent] = HistogramState.from_bytes(data[at - length : at])
                last = exponent
            if not groups:
                raise ValueError("it holds nothing")
        except (struct.error, ValueError, IndexError) as error:
            raise damaged("histograms by magnitude", error) from error
        return cls(groups)

    def __repr__(self) -> str:
        return f"MagnitudeState({self.low:.6g} … {self.high:.6g}, {len(self.groups)} histograms)"


def _exponent(mean_square: float) -> int:
    """Return the exponent of the root of a mean square; the histogram then refuses NaN."""
    if mean_square == 0.0:
        return _ZERO
    return math.frexp(mean_square)[1] >> 1 if math.isfinite(mean_square) else _INFINITE
