"""Rounding with error feedback on a grid that is given: arrays in, arrays out, all groups at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError

F64 = npt.NDArray[np.float64]

_LAZY = 128  # columns between two updates of all that follow


@dataclass(frozen=True)
class Grid:
    """Scales and zero points, laid out like rows ``[group, output, product]``, and the integers used."""

    scale: F64
    zero: F64
    low: int
    high: int

    def times(self, ratio: Any) -> Grid:
        """The same with other scales, as they are stored: in float32."""
        return replace(self, scale=(self.scale * ratio).astype(np.float32).astype(np.float64))


def nearest(rows: F64, grid: Grid) -> F64:
    """Every weight on the nearest point of the grid."""
    steps = np.clip(np.rint(rows / grid.scale) + grid.zero, grid.low, grid.high)
    return np.asarray((steps - grid.zero) * grid.scale)


def upper_factor(gram: F64) -> F64:
    """The upper Cholesky factor of the inverse of each matrix."""
    try:
        inverse = np.linalg.inv(gram)
        lower = np.linalg.cholesky((inverse + inverse.swapaxes(1, 2)) / 2)
    except np.linalg.LinAlgError as error:
        raise DataError(
            "The inputs of a layer give no usable Gram matrix; look at the calibration data."
        ) from error
    return np.asarray(lower.swapaxes(1, 2), np.float64)


def fed_back(rows: F64, grid: Grid, upper: F64) -> F64:
    """Every weight on a point of the grid, with each column making up for the errors of those before."""
    work, result = rows.copy(), np.empty(rows.shape)
    scale, zero = (np.broadcast_to(part, (*rows.shape[:2], 1))[:, :, 0] for part in (grid.scale, grid.zero))
    products = rows.shape[2]
    for start in range(0, products, _LAZY):
        stop = min(start + _LAZY, products)
        errors = np.empty((*rows.shape[:2], stop - start))
        for j in range(start, stop):
            column = work[:, :, j]
            steps = np.clip(np.rint(column / scale) + zero, grid.low, grid.high)
            result[:, :, j] = (steps - zero) * scale
            error = (column - result[:, :, j]) / upper[:, j, j, None]
            work[:, :, j + 1 : stop] -= error[:, :, None] * upper[:, None, j, j + 1 : stop]
            errors[:, :, j - start] = error
        work[:, :, stop:] -= errors @ upper[:, start:stop, stop:]
    return result
