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

from octavo.algorithms.weights.blocks import Inputs, Solved, by_rows, inverse_of, nearest, stored
from octavo.algorithms.weights.rtn import furthest_range, spread_range
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

    It begins with rounding to nearest. Blocks are columns here, whatever rows they are of. With ``q`` the
    integers less the zero point, the error and the scale that fits them best come from the same two sums::

        Σ weight · (scale · q - w)² = Σ weight · w² - 2 · scale · Σ weight · w · q + scale² · Σ weight · q²
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
        self.scheme, self.dtype, self.positive = scheme, dtype, positive
        self._shape = tiles.shape[1:]
        self.tiles = tiles.reshape(len(tiles), -1)
        self.weight = np.broadcast_to(weight, tiles.shape).reshape(self.tiles.shape)
        self.low, self.high = self.tiles.min(axis=0, initial=0.0), self.tiles.max(axis=0, initial=0.0)
        self._weighted = self.weight * self.tiles
        self._squares = _dot(self._weighted, self.tiles)
        self._steps, self._products = np.empty_like(self.tiles), np.empty_like(self.tiles)
        self.scale = np.ones(self.low.shape, np.float32)
        self.zero = np.full(self.low.shape, scheme.middle, np.float32)
        self._least = np.full(self.low.shape, np.inf, np.float32)
        for start in (spread_range, furthest_range):
            scale, zero, *_ = start(self.tiles, scheme, dtype)
            middle = np.full(scale.shape, scheme.middle, np.float32)
            self.offer(scale.astype(np.float32), middle if scheme.symmetric else zero.astype(np.float32))

    def solved(self) -> Solved:
        """Return integers, scales and zero points of the best."""
        integers = nearest(self.tiles, self.scale, self.zero, self.scheme.top).astype(np.uint8)
        zero = None if self.scheme.symmetric else self.zero.astype(np.uint8).reshape(self._shape)
        return integers.reshape(-1, *self._shape), self.scale.astype(self.dtype).reshape(self._shape), zero

    def offer(self, scale: Array, zero: Array) -> Array:
        """Take these numbers for the blocks in which they are better; return the scales that fit best.

        Zero points are whole numbers.
        """
        scale = stored(scale, self.dtype)
        q = self._rounded(inverse_of(scale), -zero, self.scheme.top - zero)
        across, along = self._sums(q)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            loss = self._squares + scale * (scale * along - 2 * across)
            fitted = across / along
        better = (loss < self._least) & np.isfinite(scale)
        if self.positive:
            better &= scale > 0
        np.copyto(self._least, loss, where=better)
        np.copyto(self.scale, scale, where=better)
        np.copyto(self.zero, zero, where=better)
        return np.where(np.isfinite(fitted) & (fitted != 0), fitted, scale)

    def refine(self, scale: Array, zero: Array, rounds: int) -> None:
        """Offer these numbers, then as often the scale that fits what they round to."""
        for _ in range(rounds + 1):
            scale = self.offer(scale, zero)

    def _rounded(self, inverse: Array, low: Array | np.float32, high: Array | np.float32) -> Array:
        """Return the values in steps, rounded and clipped; the array is used again by the next call."""
        with np.errstate(invalid="ignore", over="ignore"):
            np.multiply(self.tiles, inverse, out=self._steps)
            np.rint(self._steps, out=self._steps)
        np.maximum(self._steps, low, out=self._steps)  # np.clip takes three times as long with arrays
        np.minimum(self._steps, high, out=self._steps)
        return self._steps

    def _sums(self, q: Array) -> tuple[Array, Array]:
        """Return ``Σ weight · w · q`` and ``Σ weight · q²``."""
        np.multiply(self.weight, q, out=self._products)
        return _dot(self._weighted, q), _dot(self._products, q)

    def asymmetric(self, extra: float) -> None:
        """Round with a range wider or narrower by ``extra`` integers, fit, and offer the fit."""
        ones, summed = self.weight.sum(axis=0), self._weighted.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            inverse = _finite(np.float32(self.scheme.top + extra) / (self.high - self.low))
            bottom = np.rint(-self.low * inverse)
            q = self._rounded(inverse, -bottom, self.scheme.top - bottom)
            q += bottom
            across, along = self._sums(q)
            sq = self._products.sum(axis=0)
            shared = ones * along - sq * sq
            scale = (ones * across - summed * sq) / shared
            offset = np.minimum((along * summed - sq * across) / shared, 0)
            zero = np.clip(np.rint(-offset / scale), 0, self.scheme.top)
        usable = np.isfinite(scale) & (scale > 0) & np.isfinite(zero)
        self.offer(np.where(usable, scale, self.scale), np.where(usable, zero, self.zero))

    def symmetric(self, extra: float) -> None:
        """Do the same with the zero point in the middle, for either sign of the scale."""
        middle = np.float32(self.scheme.middle)
        for sign in (-1, 1):
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                inverse = _finite(np.float32(sign * (self.scheme.middle + extra)) / self.furthest)
                across, along = self._sums(self._rounded(inverse, -middle, middle - 1))
                scale = across / along
            usable = np.isfinite(scale) & (scale != 0)
            self.offer(np.where(usable, scale, self.scale), np.full(scale.shape, middle))

    @property
    def furthest(self) -> Array:
        """Return the value of each block that is furthest from zero."""
        return np.asarray(np.where(np.abs(self.high) > np.abs(self.low), self.high, self.low))


def _dot(one: Array, other: Array) -> Array:
    """Return the sums of products over the first axis."""
    return np.asarray(np.einsum("ij,ij->j", one, other))


def _finite(numbers: Array) -> Array:
    return np.where(np.isfinite(numbers), numbers, np.float32(0))


def importance(tiles: Array, real: Array) -> Array:
    """Return how much each value counts: the root mean square of its block plus its own magnitude."""
    count = np.maximum(real.sum(axis=0), 1)
    rms = np.sqrt((tiles.astype(np.float32) ** 2).sum(axis=0) / count)
    return np.asarray((rms + np.abs(tiles)) * real)
