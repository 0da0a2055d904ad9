"""Importance: choose each block's scale and zero point so that the layer's outputs change least.

The error that rounding the weight of input channel ``k`` gives an output is proportional to the mean square
of that channel, so a block's range is chosen by least squares with that as the weight::

    minimize  Σ_k E[x_k²] · (scale · (q_k - zero_point) - w_k)²

Ranges around and below the plain one are tried, each with its zero point, a whole number, and the two beside
it. For each the values are rounded, and the scale is fitted to what came out; the fit is rounded and fitted
once more.
The best of all candidates is kept; rounding to nearest is among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from octavo.algorithms.weights.blocks import Inputs, Solved, by_rows, nearest
from octavo.algorithms.weights.k_quant import WeightedSearch
from octavo.core.blocks import Array, Blocks, BlockScheme
from octavo.errors import DataError


@dataclass(frozen=True)
class Importance:
    """A search over ranges, weighted by the mean squares of the inputs.

    ``positive`` keeps scales of symmetric blocks above zero, as some runtimes demand.
    """

    narrowest: float = 0.6  # part of the plain range that is tried
    candidates: int = 8
    positive: bool = False
    wants: ClassVar[Inputs] = Inputs.SQUARES
    quick: ClassVar[bool] = False

    def blocks(self, rows: Array, scheme: BlockScheme, inputs: Array | None = None) -> Blocks:
        """Quantize rows, block by block."""
        if inputs is None:
            raise DataError("The importance of input channels comes from calibration data; pass some.")
        weight = _for_blocks(inputs, scheme)
        return by_rows(rows, scheme, lambda tiles, _: self._solve(tiles, weight, scheme, rows.dtype))

    def _solve(self, tiles: Array, weight: Array, scheme: BlockScheme, dtype: np.dtype[np.generic]) -> Solved:
        search = WeightedSearch(tiles, weight, scheme, dtype, positive=self.positive)
        low, high = search.low, search.high
        for part in np.linspace(1.05, self.narrowest, self.candidates, dtype=np.float32):
            if scheme.symmetric:
                furthest = np.where(np.abs(high) > np.abs(low), high, low) * part
                middle = np.full(furthest.shape, scheme.middle, np.float32)
                for sign in (-1, 1):
                    _refine(search, furthest * np.float32(sign / scheme.middle), middle)
            else:
                scale = (high - low) * (part / np.float32(scheme.top))
                with np.errstate(divide="ignore", invalid="ignore"):
                    zero = np.nan_to_num(np.clip(np.rint(-low * part / scale), 0, scheme.top))
                for step in (-1, 0, 1):
                    _refine(search, scale, np.clip(zero + np.float32(step), 0, scheme.top))
        return search.solved()


def _refine(search: WeightedSearch, scale: Array, zero: Array) -> None:
    """Round, and fit the scale to what came out, twice; offer each fit."""
    for _ in range(2):
        q = nearest(search.tiles, scale, zero, search.scheme.top)
        q -= zero
        weighted = search.weight * q
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            fitted = (weighted * search.tiles).sum(axis=0) / (weighted * q).sum(axis=0)
        scale = np.where(np.isfinite(fitted) & (fitted != 0), fitted, scale)
        search.offer(scale, zero)


def _for_blocks(squares: Array, scheme: BlockScheme) -> Array:
    """Return the weight of each value as ``[size, 1, blocks]``, the mean over all channels being 1.

    Each channel keeps a little weight: one that the data does not use may be used later.
    """
    found = np.maximum(np.asarray(squares, np.float64).reshape(-1), 0)
    mean = float(found.mean()) if found.size else 0.0
    found = found / mean if mean > 0 else np.ones_like(found)
    found = np.maximum(found, _LEAST_WEIGHT)
    blocks = -(-found.size // scheme.size)
    padded = np.zeros(blocks * scheme.size, np.float32)
    padded[: found.size] = found
    return padded.reshape(blocks, scheme.size).T[:, None]


_LEAST_WEIGHT = 1e-4  # of a channel, where the mean over all channels is 1
