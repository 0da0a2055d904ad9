"""K-quant: choose each block's scale and zero point by weighted least squares.

Large weights count more, ``weight = rms + |w|``. For a number of steps around the plain range the values are
rounded, and scale and offset fitted to what came out::

    minimize  Σ weight * (scale * q + offset - w)**2        zero_point = round(-offset / scale)

Each candidate is judged as it will be stored, zero point rounded and values rounded again, and the best is
kept; rounding to nearest is among the candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from octavo.algorithms.weights.blocks import Inputs, Solved, by_rows, nearest, stored
from octavo.algorithms.weights.rtn import furthest, spread
from octavo.core.blocks import Array, Blocks, BlockScheme


@dataclass(frozen=True)
class KQuant:
    """A search over ranges with a weighted fit; ``reach`` and ``step`` are in integers.

    A symmetric block may get a negative scale, which lets either end of its range take the integer furthest
    from zero; ``positive`` is for runtimes that refuse one.
    """

    reach: float = 1.0
    step: float = 0.1
    positive: bool = False
    wants: ClassVar[Inputs] = Inputs.NONE
    quick: ClassVar[bool] = False

    def blocks(self, rows: Array, scheme: BlockScheme, inputs: Array | None = None) -> Blocks:
        """Quantize rows, block by block."""
        return by_rows(rows, scheme, lambda tiles, real: self._solve(tiles, real, scheme, rows.dtype))

    def _solve(self, tiles: Array, real: Array, scheme: BlockScheme, dtype: np.dtype[np.generic]) -> Solved:
        search = WeightedSearch(tiles, importance(tiles, real), scheme, dtype, positive=self.positive)
        for extra in np.arange(-self.reach, self.reach, self.step):
            search.symmetric(float(extra)) if scheme.symmetric else search.asymmetric(float(extra))
        return search.solved()


class WeightedSearch:
    """The best scale and zero point of each block so far, by the squared error times ``weight``.

    It begins with rounding to nearest.
    """

    def __init__(
        self,
        tiles: Array,
        weight: Array,
        scheme: BlockScheme,
        dtype: np.dtype[np.generic],
        *,
        positive: bool = False,
    ) -> None:
        self.tiles, self.scheme, self.dtype, self.positive = tiles, scheme, dtype, positive
        self.weight = weight
        self.low, self.high = tiles.min(axis=0, initial=0.0), tiles.max(axis=0, initial=0.0)
        self._ones, self._sum = self.weight.sum(axis=0), (self.weight * tiles).sum(axis=0)
        self.scale = np.ones(tiles.shape[1:], np.float32)
        self.zero = np.full(tiles.shape[1:], scheme.middle, np.float32)
        self._least = np.full(tiles.shape[1:], np.inf)
        for start in (spread, furthest):
            _, scale, zero = start(tiles, scheme, dtype)
            middle = np.full(scale.shape, scheme.middle, np.float32)
            self.offer(scale.astype(np.float32), middle if zero is None else zero.astype(np.float32))

    def solved(self) -> Solved:
        """Return integers, scales and zero points of the best."""
        integers = nearest(self.tiles, self.scale, self.zero, self.scheme.top).astype(np.uint8)
        zero = None if self.scheme.symmetric else self.zero.astype(np.uint8)
        return integers, self.scale.astype(self.dtype), zero

    def offer(self, scale: Array, zero: Array) -> None:
        """Take these numbers for the blocks in which they are better."""
        scale = stored(scale, self.dtype)
        error = nearest(self.tiles, scale, zero, self.scheme.top)
        error -= zero
        error *= scale
        error -= self.tiles
        error *= error
        error *= self.weight
        loss = error.sum(axis=0)
        better = (loss < self._least) & np.isfinite(scale)
        if self.positive:
            better &= scale > 0
        self._least = np.where(better, loss, self._least)
        self.scale, self.zero = np.where(better, scale, self.scale), np.where(better, zero, self.zero)

    def asymmetric(self, extra: float) -> None:
        """Round with a range wider or narrower by ``extra`` integers, fit, and offer the fit."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            inverse = _finite(np.float32(self.scheme.top + extra) / (self.high - self.low))
            q = self.tiles - self.low
            q *= inverse
            np.clip(np.rint(q, out=q), 0, self.scheme.top, out=q)
            s1, sx = self._ones, self._sum
            wq = self.weight * q
            sq, sxq = wq.sum(axis=0), (wq * self.tiles).sum(axis=0)
            wq *= q
            sqq = wq.sum(axis=0)
            bottom = s1 * sqq - sq * sq
            scale = (s1 * sxq - sx * sq) / bottom
            offset = np.minimum((sqq * sx - sq * sxq) / bottom, 0)
            zero = np.clip(np.rint(-offset / scale), 0, self.scheme.top)
        usable = np.isfinite(scale) & (scale > 0) & np.isfinite(zero)
        self.offer(np.where(usable, scale, self.scale), np.where(usable, zero, self.zero))

    def symmetric(self, extra: float) -> None:
        """The same with the zero point in the middle, for either sign of the scale."""
        middle = np.float32(self.scheme.middle)
        furthest_value = np.where(np.abs(self.high) > np.abs(self.low), self.high, self.low)
        for sign in (-1, 1):
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                inverse = _finite(np.float32(sign * (self.scheme.middle + extra)) / furthest_value)
                q = np.rint(self.tiles * inverse)
                np.clip(q, -self.scheme.middle, self.scheme.middle - 1, out=q)
                wq = self.weight * q
                scale = (wq * self.tiles).sum(axis=0) / (wq * q).sum(axis=0)
            usable = np.isfinite(scale) & (scale != 0)
            self.offer(np.where(usable, scale, self.scale), np.full(scale.shape, middle))


def _finite(numbers: Array) -> Array:
    return np.where(np.isfinite(numbers), numbers, np.float32(0))


def importance(tiles: Array, real: Array) -> Array:
    """Return how much each value counts: the root mean square of its block plus its own magnitude."""
    count = np.maximum(real.sum(axis=0), 1)
    rms = np.sqrt((tiles.astype(np.float32) ** 2).sum(axis=0) / count)
    return np.asarray((rms + np.abs(tiles)) * real)
