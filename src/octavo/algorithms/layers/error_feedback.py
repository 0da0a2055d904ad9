"""Rounding with error feedback to given scales: arrays in, arrays out, all groups at once.

With the Gram matrix ``H = G Gᵀ``, ``G`` upper triangular, the error of stored weights is ``|e G|²``,
``e = w - ŵ``. Entry ``j`` of ``e G`` depends on the columns up to ``j`` alone, so that the rounding of column
``j`` can make it as small as one step allows (GPTQ, written without an inverse)::

    ŵ[j] = round(w[j] + Σ e[i] G[i, j] / G[j, j])        over i < j

The columns are rounded in two halves, recursively; the errors of the first half reach the second by one
matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.core.arrays import HOST, Arrays

_ONE_BY_ONE = 8  # columns; a matrix product for fewer costs more than it saves


@dataclass(frozen=True)
class Grid:
    """Scales and zero points that broadcast to rows ``[group, output, product]``, and the integer limits."""

    scale: Any
    zero: Any
    low: int
    high: int

    def times(self, ratio: Any) -> Grid:
        """Return the grid with scales times a ratio, rounded to float32 as they are stored."""
        return replace(self, scale=(self.scale * ratio).astype(np.float32).astype(np.float64))

    def on(self, xp: Arrays, shape: tuple[int, ...], dtype: Any) -> Grid:
        """Return the grid as arrays of a library, with an entry for each output."""
        parts = (np.broadcast_to(part, (*shape[:2], 1)) for part in (self.scale, self.zero))
        scale, zero = (xp.put(np.ascontiguousarray(part, dtype)) for part in parts)
        return replace(self, scale=scale, zero=zero)


def nearest(rows: Any, grid: Grid, xp: Arrays = HOST) -> Any:
    """Round every weight to the nearest point of the grid."""
    return xp.rounded(rows / grid.scale, grid.low - grid.zero, grid.high - grid.zero) * grid.scale


def upper_factor(gram: Any, xp: Arrays = HOST) -> Any:
    """Return ``G``, upper triangular, with ``G Gᵀ = gram`` for each group; in blocks from the last column."""
    found, size = xp.zeros(gram), gram.shape[1]
    for stop in range(size, 0, -xp.block):
        start = max(stop - xp.block, 0)
        done = found[:, :stop, stop:]
        part = gram[:, :stop, start:stop] - done @ done[:, start:].swapaxes(1, 2)
        corner = xp.flipped(xp.cholesky(xp.flipped(part[:, start:])))
        found[:, start:stop, start:stop] = corner
        found[:, :start, start:stop] = part[:, :start] @ xp.inverse(corner).swapaxes(1, 2)
    return found


def fed_back(rows: Any, grid: Grid, upper: Any, xp: Arrays = HOST) -> tuple[Any, Any]:
    """Round with error feedback to points of the grid; return them, and the error of each output."""
    run = _Feedback(rows, grid, upper, xp)
    run.halves(0, rows.shape[2])
    return run.stored.swapaxes(1, 2), run.loss


class _Feedback:
    """One run over the columns; arrays are ``[group, product, output]``, so that columns are contiguous."""

    def __init__(self, rows: Any, grid: Grid, upper: Any, xp: Arrays) -> None:
        self.xp = xp
        self.pivots = xp.diagonal(upper)
        self.unit = upper / self.pivots[:, None, :]
        self.scale = grid.scale[:, :, 0]
        self.low, self.high = (limit - grid.zero[:, :, 0] for limit in (grid.low, grid.high))
        self.given, self.corrected = (xp.copied(rows.swapaxes(1, 2)) for _ in range(2))
        self.stored, self.errors = (xp.zeros(self.given) for _ in range(2))
        self.loss = xp.zeros(rows[:, :, 0])

    def halves(self, start: int, stop: int) -> None:
        """Round columns that have received the errors of all columns before them."""
        if stop - start <= _ONE_BY_ONE:
            self._one_by_one(start, stop)
            return
        middle = (start + stop) // 2
        self.halves(start, middle)
        feedback = self.unit[:, start:middle, middle:stop].swapaxes(1, 2) @ self.errors[:, start:middle]
        self.corrected[:, middle:stop] += feedback
        self.halves(middle, stop)

    def _one_by_one(self, start: int, stop: int) -> None:
        for j in range(start, stop):
            value = self.corrected[:, j]
            if j > start:
                value = value + (self.unit[:, None, start:j, j] @ self.errors[:, start:j])[:, 0]
            point = self.xp.rounded(value / self.scale, self.low, self.high) * self.scale
            self.stored[:, j] = point
            self.errors[:, j] = self.given[:, j] - point
            self.loss += ((value - point) * self.pivots[:, j, None]) ** 2
