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

from octavo.algorithms.weights.blocks import Inputs, Solved, by_rows
from octavo.algorithms.weights.k_quant import WeightedSearch
from octavo.core.blocks import Array, Blocks, BlockScheme
from octavo.errors import DataError


@dataclass(frozen=True)
class Importance:
    """A search over ranges, weighted by the mean squares of the inputs.

    ``positive`` keeps scales of symmetric blocks above zero, as some runtimes demand. Where no data is given,
    ``random_tokens`` is how many random token ids a model that reads such is run with instead.
    """

    narrowest: float = 0.6  # part of the plain range that is tried
    candidates: int = 8
    neighbours: int = 1  # zero points tried on either side of that of a range
    fits: int = 2  # of the scale to what a candidate rounds to
    positive: bool = False
    random_tokens: int = 0
    wants: ClassVar[Inputs] = Inputs.SQUARES
    quick: ClassVar[bool] = False

    def blocks(self, rows: Array, scheme: BlockScheme, inputs: Array | None = None) -> Blocks:
        """Quantize rows, block by block."""
        if inputs is None:
            raise DataError("The importance of input channels comes from calibration data; give some.")
        weight = _for_blocks(inputs, scheme)
        return by_rows(rows, scheme, lambda tiles, _: self._solve(tiles, weight, scheme, rows.dtype))

    def _solve(self, tiles: Array, weight: Array, scheme: BlockScheme, dtype: np.dtype[np.generic]) -> Solved:
        search = WeightedSearch(tiles, weight, scheme, dtype, positive=self.positive)
        low, high = search.low, search.high
        for part in np.linspace(1.05, self.narrowest, self.candidates, dtype=np.float32):
            if scheme.symmetric:
                middle = np.full(low.shape, scheme.middle, np.float32)
                for sign in (-1, 1):
                    scale = search.furthest * (part * np.float32(sign / scheme.middle))
                    search.refine(scale, middle, self.fits)
            else:
                scale = (high - low) * (part / np.float32(scheme.top))
                with np.errstate(divide="ignore", invalid="ignore"):
                    zero = np.nan_to_num(np.clip(np.rint(-low * part / scale), 0, scheme.top))
                for step in range(-self.neighbours, self.neighbours + 1):
                    search.refine(scale, np.clip(zero + np.float32(step), 0, scheme.top), self.fits)
        return search.solved()


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
