"""Mean and variance from sums that are exact: integers, which add up to the same in any order.

A float32 value is ``m 2**(e - 150)`` with ``|m| < 2**24`` and ``1 <= e <= 254``, so the sum of the values is
an integer times ``2**-149`` and that of their squares one times ``2**-298``. Mantissas are added up for each
exponent in float64, where sums of integers below ``2**53`` are exact; a square is taken in two halves of
twelve bits. Mean and variance are then exact fractions, rounded once.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from octavo.calibration.statistics.state_parts import damaged, header_of
from octavo.errors import DataError

_VERSION = 1  # of the stored bytes
_HEADER = "<BQII"  # version, number of values, lengths of the two sums
_CHUNK = 1 << 18  # values added at a time: sums of so many products of 24 bits stay far below 2**53
_UNIT = 149  # sums of values are integers times 2**-149


class MomentsState:
    """Sums of a tensor's values and of their squares; values are taken as float32."""

    kind: ClassVar[str] = "moments"

    def __init__(self, size: int = 0, total: int = 0, squares: int = 0) -> None:
        self.size = size  # the number of values
        self._total = total
        self._squares = squares

    @property
    def mean(self) -> float:
        """Return the mean of the values; 0 where there are none."""
        return _rounded(Fraction(self._total, max(self.size, 1)), _UNIT)

    @property
    def variance(self) -> float:
        """Return the mean squared distance from the mean; 0 where there are no values."""
        size = max(self.size, 1)
        return _rounded(Fraction(self._squares * size - self._total**2, size * size), 2 * _UNIT)

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Take in the values that the tensor has in one sample."""
        values = np.ascontiguousarray(x, np.float32).reshape(-1)
        if not np.all(np.isfinite(values)):
            raise DataError(f"There is NaN or infinity among the values of sample {index}.")
        for start in range(0, values.size, _CHUNK):
            self._add(values[start : start + _CHUNK].view(np.uint32))
        self.size += values.size

    def _add(self, bits: npt.NDArray[np.uint32]) -> None:
        exponent = ((bits >> 23) & 0xFF).astype(np.intp)
        mantissa = ((bits & 0x7FFFFF) | ((exponent > 0).astype(np.uint32) << 23)).astype(np.float64)
        exponent = np.maximum(exponent, 1)
        high, low = np.divmod(mantissa, 4096.0)
        for power, terms in ((24, high * high), (13, high * low), (0, low * low)):
            self._squares += _shifted(exponent, terms, 2) << power
        np.negative(mantissa, out=mantissa, where=bits >= 1 << 31)
        self._total += _shifted(exponent, mantissa, 1)

    def merge(self, other: MomentsState) -> MomentsState:
        """Return the state of the samples of both; neither is changed."""
        return MomentsState(
            self.size + other.size, self._total + other._total, self._squares + other._squares
        )

    def to_bytes(self) -> bytes:
        """Return version, number of values, lengths of both sums, both sums."""
        total, squares = (_as_bytes(number) for number in (self._total, self._squares))
        return struct.pack(_HEADER, _VERSION, self.size, len(total), len(squares)) + total + squares

    @classmethod
    def from_bytes(cls, data: bytes) -> MomentsState:
        """Return the state that :meth:`to_bytes` wrote."""
        (size, length, rest), at = header_of(data, _HEADER, _VERSION, "a tensor's moments")
        if at + length + rest != len(data):
            raise damaged("a tensor's moments", "wrong length")
        total, squares = (
            int.from_bytes(part, "little", signed=True)
            for part in (data[at : at + length], data[at + length :])
        )
        return cls(size, total, squares)

    def __repr__(self) -> str:
        return f"MomentsState(mean {self.mean:.6g}, variance {self.variance:.6g}, {self.size} values)"


def _shifted(exponent: npt.NDArray[np.intp], terms: npt.NDArray[Any], times: int) -> int:
    """Return the exact sum of ``terms * 2**(times * (exponent - 1))``."""
    sums = np.bincount(exponent, weights=terms)
    return sum(int(sums[e]) << times * (int(e) - 1) for e in np.flatnonzero(sums))


def _rounded(number: Fraction, unit: int) -> float:
    """Return ``number * 2**-unit``, infinite where float64 ends."""
    try:
        return float(number / (1 << unit))
    except OverflowError:
        return math.inf


def _as_bytes(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
