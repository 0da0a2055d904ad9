"""Distances that are added up sample by sample: a few numbers for each tensor, however much data there is.

Sums are kept in float64; arrays go through in slabs that stay in the cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SLAB = 1 << 15  # values at a time: 128 KiB, which stay in the cache

Row = npt.NDArray[np.float32]


def row(array: npt.NDArray[Any]) -> Row:
    """Return the values of an array as one row of float32."""
    return np.ascontiguousarray(array, np.float32).reshape(-1)


@dataclass
class Power:
    """What is known of a float tensor by itself: its energy and its extremes."""

    energy: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    count: int = 0

    def add(self, x: Row) -> tuple[float, float]:
        """Take in the values of one sample; returns their extremes."""
        if not x.size:
            return 0.0, 0.0
        for start in range(0, x.size, SLAB):
            part = x[start : start + SLAB]
            self.energy += float(np.dot(part, part))
        low, high = float(x.min()), float(x.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.count += x.size
        return low, high


@dataclass
class Gap:
    """The distance between a tensor and its twin; the tensor's own energy is in its :class:`Power`."""

    noise: float = 0.0
    cross: float = 0.0  # of the tensor with the difference
    worst: float = 0.0
    count: int = 0
    unlike: bool = False  # a sample had another number of values

    def add(self, x: Row, y: Row) -> None:
        """Add one sample."""
        if x.size != y.size:
            self.unlike = True
            return
        buffer = np.empty(min(SLAB, x.size), np.float32)
        for start in range(0, x.size, SLAB):
            part = x[start : start + SLAB]
            with np.errstate(invalid="ignore"):
                d = np.subtract(y[start : start + SLAB], part, out=buffer[: part.size])
                self.noise += float(np.dot(d, d))
                self.cross += float(np.dot(part, d))
            self.worst = max(self.worst, float(d.max()), -float(d.min()))
        if not math.isfinite(self.noise):
            self.noise = self.worst = math.inf
        self.count += x.size

    def errors(self, power: Power) -> Errors | None:
        """Return the figures; None where nothing could be compared."""
        if self.unlike or not self.count:
            return None
        return Errors(
            sqnr=sqnr(power.energy, self.noise),
            cosine=_cosine(power.energy, self.cross, self.noise),
            max_error=self.worst,
        )


@dataclass(frozen=True)
class Errors:
    """How far a tensor is from its twin: SQNR in dB, cosine of the angle, the largest difference."""

    sqnr: float
    cosine: float
    max_error: float


@dataclass
class Clipping:
    """What a fixed range does to a tensor: how many values it cuts off, and the energy of what is cut."""

    low: float
    high: float
    step: float
    cut: int = 0
    energy: float = 0.0
    count: int = 0

    def add(self, x: Row, low: float, high: float) -> None:
        """Take in one sample, whose extremes are known."""
        self.count += x.size
        if low >= self.low - self.step / 2 and high <= self.high + self.step / 2:
            return
        over = x - np.clip(x, np.float32(self.low), np.float32(self.high))
        self.cut += int(np.count_nonzero(np.abs(over) > self.step / 2))
        self.energy += float(np.dot(over, over))

    @property
    def share(self) -> float:
        """Return the share of values that are cut off."""
        return self.cut / self.count if self.count else 0.0

    @property
    def noise(self) -> float:
        """Return the energy lost by cutting and, by its expectation, by rounding."""
        return self.energy + (self.count - self.cut) * self.step**2 / 12

    @property
    def rounding(self) -> float:
        """Return the share of that energy which is rounding's."""
        return 1.0 - self.energy / self.noise if self.noise > 0 else 1.0

    def excess(self, power: Power) -> float:
        """Return by how many dB the range is worse than one of as many levels that just holds the values."""
        levels = round((self.high - self.low) / self.step) if self.step > 0 else 0
        if not self.count or not levels or power.high <= power.low:
            return 0.0
        step = (max(power.high, 0.0) - min(power.low, 0.0)) / levels
        return max(0.0, sqnr(self.noise, self.count * step**2 / 12))

    def used(self, power: Power) -> float:
        """Return the share of the range that the values reach."""
        width = self.high - self.low
        inside = min(power.high, self.high) - max(power.low, self.low)
        return max(0.0, min(1.0, inside / width)) if width > 0 and power.count else 0.0


def sqnr(signal: float, noise: float) -> float:
    """Return ``10 log10`` of two energies; infinite without noise."""
    if noise <= 0.0:
        return math.inf
    if not math.isfinite(noise):
        return -math.inf
    return 10.0 * math.log10(max(signal, 1e-300) / noise)


def _cosine(energy: float, cross: float, noise: float) -> float:
    """Return the cosine from ``|x|²``, ``x·d`` and ``|d|²`` with ``y = x + d``."""
    if not math.isfinite(noise):
        return 0.0
    other = energy + 2.0 * cross + noise
    if energy <= 0.0 or other <= 0.0:
        return float(energy <= 0.0 and other <= 0.0)
    return max(-1.0, min(1.0, (energy + cross) / math.sqrt(energy * other)))


def between(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> Errors | None:
    """Return the distance of two arrays."""
    power, gap = Power(), Gap()
    power.add(row(x))
    gap.add(row(x), row(y))
    return gap.errors(power)
