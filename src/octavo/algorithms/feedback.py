"""Rounding with error feedback on a grid that is given: arrays in, arrays out, all groups at once.

With the Gram matrix ``H = G Gᵀ``, ``G`` upper, the error of stored weights is ``|e G|²``, ``e = w - ŵ``.
Entry ``j`` of ``e G`` knows the columns up to ``j`` alone, so that column ``j`` can make it as small as its
own rounding allows (GPTQ, written without an inverse)::

    ŵ[j] = round(w[j] + Σ e[i] G[i, j] / G[j, j])        over i < j

Halves of the columns are done one after the other, and the first reaches the second by one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.algorithms.arrays import HOST, Arrays

_FEW = 8  # columns that are rounded one by one


@dataclass(frozen=True)
class Grid:
    """Scales and zero points, laid out like rows ``[group, output, product]``, and the integers used."""

    scale: Any
    zero: Any
    low: int
    high: int

    def times(self, ratio: Any) -> Grid:
        """The same with other scales, as they are stored: in float32."""
        return replace(self, scale=(self.scale * ratio).astype(np.float32).astype(np.float64))

    def on(self, xp: Arrays, shape: tuple[int, ...], dtype: Any) -> Grid:
        """The same as arrays of a library, with an entry for each output."""
        parts = (np.broadcast_to(part, (*shape[:2], 1)) for part in (self.scale, self.zero))
        scale, zero = (xp.put(np.ascontiguousarray(part, dtype)) for part in parts)
        return replace(self, scale=scale, zero=zero)


def nearest(rows: Any, grid: Grid, xp: Arrays = HOST) -> Any:
    """Every weight on the nearest point of the grid."""
    return xp.rounded(rows / grid.scale, grid.low - grid.zero, grid.high - grid.zero) * grid.scale


def upper_factor(gram: Any, xp: Arrays = HOST) -> Any:
    """The upper ``G`` with ``G Gᵀ`` the matrix, for each group; in blocks of columns from the last one on."""
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
    """Every weight on a point of the grid, made up for by the columns that follow; and the error of each."""
    run = _Feedback(rows, grid, upper, xp)
    run.halves(0, rows.shape[2])
    return run.stored.swapaxes(1, 2), run.loss


class _Feedback:
    """One run over the columns; arrays are ``[group, product, output]``, so that a column lies together."""

    def __init__(self, rows: Any, grid: Grid, upper: Any, xp: Arrays) -> None:
        self.xp = xp
        self.pivots = xp.diagonal(upper)
        self.unit = upper / self.pivots[:, None, :]
        self.scale = grid.scale[:, :, 0]
        self.low, self.high = (limit - grid.zero[:, :, 0] for limit in (grid.low, grid.high))
        self.given, self.wanted = (xp.copied(rows.swapaxes(1, 2)) for _ in range(2))
        self.stored, self.errors = (xp.zeros(self.given) for _ in range(2))
        self.loss = xp.zeros(rows[:, :, 0])

    def halves(self, start: int, stop: int) -> None:
        """Round the columns of a stretch that has all it is owed by those before."""
        if stop - start <= _FEW:
            self._one_by_one(start, stop)
            return
        middle = (start + stop) // 2
        self.halves(start, middle)
        owed = self.unit[:, start:middle, middle:stop].swapaxes(1, 2) @ self.errors[:, start:middle]
        self.wanted[:, middle:stop] += owed
        self.halves(middle, stop)

    def _one_by_one(self, start: int, stop: int) -> None:
        for j in range(start, stop):
            value = self.wanted[:, j]
            if j > start:
                value = value + (self.unit[:, None, start:j, j] @ self.errors[:, start:j])[:, 0]
            point = self.xp.rounded(value / self.scale, self.low, self.high) * self.scale
            self.stored[:, j] = point
            self.errors[:, j] = self.given[:, j] - point
            self.loss += ((value - point) * self.pivots[:, j, None]) ** 2
