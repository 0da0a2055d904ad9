"""Histograms of a tensor's values, those of quiet samples apart from those of loud ones.

An odd sample may have values ten times as large as all others. In one histogram its errors outweigh those of
the rest; apart, each sample can be judged by what is lost of its own signal.

What is looked at is a row: the mean square of the sample, then its values. Samples whose root mean square has
the same power of two below it share a histogram.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from octavo.calibration.observers.histogram import HistogramState
from octavo.errors import TableError

_VERSION = 1
_LOUDEST, _QUIETEST = 1 << 10, -(1 << 10)  # of infinities, and of zeros alone


class LoudnessState:
    """A histogram for each loudness, by the exponent of the root mean square."""

    kind: ClassVar[str] = "loudness"

    def __init__(self, groups: Mapping[int, HistogramState] | None = None) -> None:
        self.groups = dict(groups or {})

    @property
    def low(self) -> float:
        """The smallest value."""
        return min((state.low for state in self.groups.values()), default=math.inf)

    @property
    def high(self) -> float:
        """The largest value."""
        return max((state.high for state in self.groups.values()), default=-math.inf)

    @property
    def count(self) -> int:
        """The number of samples in which the tensor had any value."""
        return sum(state.count for state in self.groups.values())

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values."""
        return any(state.non_finite for state in self.groups.values())

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Look at one sample: its mean square, and then its values."""
        row = np.asarray(x).reshape(-1)
        if row.size > 1:
            self.groups.setdefault(_loudness(float(row[0])), HistogramState()).update(row[1:], index)

    def merge(self, other: LoudnessState) -> LoudnessState:
        """What both have seen; neither is changed."""
        groups = dict(self.groups)
        for loudness, state in other.groups.items():
            groups[loudness] = groups[loudness].merge(state) if loudness in groups else state
        return LoudnessState(groups)

    def to_bytes(self) -> bytes:
        """Version, and for each loudness the number, the length and the histogram."""
        parts = [bytes([_VERSION])]
        for loudness in sorted(self.groups):
            content = self.groups[loudness].to_bytes()
            parts += [struct.pack("<iI", loudness, len(content)), content]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> LoudnessState:
        """What :meth:`to_bytes` gave."""
        groups: dict[int, HistogramState] = {}
        at, last = 1, _QUIETEST - 1
        try:
            while data[0] == _VERSION and at < len(data):
                loudness, length = struct.unpack_from("<iI", data, at)
                at += 8 + length
                if not last < loudness <= _LOUDEST or at > len(data):
                    raise ValueError("histograms out of order, or cut off")
                groups[loudness] = HistogramState.from_bytes(data[at - length : at])
                last = loudness
            if not groups:
                raise ValueError("it holds nothing")
        except (struct.error, ValueError, IndexError) as error:
            raise TableError(
                f"The record of histograms by loudness is damaged ({error}); collect it again."
            ) from error
        return cls(groups)

    def __repr__(self) -> str:
        return f"LoudnessState({self.low:.6g} … {self.high:.6g}, {len(self.groups)} histograms)"


def _loudness(power: float) -> int:
    """The exponent of the root of a mean square; NaN, which the histogram refuses, is as loud as can be."""
    if power == 0.0:
        return _QUIETEST
    return math.frexp(power)[1] >> 1 if math.isfinite(power) else _LOUDEST
