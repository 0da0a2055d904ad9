"""GPTQ: round column by column, and let the columns still to come make up for each error.

With ``H`` the sum of ``x xᵀ`` over a layer's inputs and ``U`` the upper Cholesky factor of its inverse,
column ``j`` is rounded to ``q`` and the others move::

    W[:, j+1:] -= (W[:, j] - q) / U[j, j] * U[j, j+1:]

Scales are taken when their block begins, from the weights as they are then; in order of activation, from the
weights as they were. With ``weighted=yes`` they are those of :mod:`.importance`, the search that the diagonal
of ``H`` weights. A row for which plain rounding leaves the smaller error ``e H eᵀ`` keeps that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from octavo.algorithms.weights.blocks import Inputs
from octavo.algorithms.weights.importance import Importance
from octavo.algorithms.weights.rtn import Rtn, spread
from octavo.core.blocks import Array, Blocks, BlockScheme
from octavo.errors import DataError

_SHRINK = np.linspace(1.0, 0.3, 36)  # ranges tried where the best is looked for
_NORM = 2.4  # the power of the error that is summed, as in GPTQ's own search


@dataclass(frozen=True)
class Gptq:
    """Error feedback through the inverse of the input products."""

    damping: float = 0.01
    lazy: int = 128  # columns between two updates of all that follow
    by_activation: bool = False
    search: bool = False  # look for the range with the least error
    per_row: bool = True  # else one scale for a block of all rows
    weighted: bool = False  # ranges by the importance of input channels, instead of plain ones
    wants: ClassVar[Inputs] = Inputs.PRODUCTS
    quick: ClassVar[bool] = False

    def blocks(self, rows: Array, scheme: BlockScheme, inputs: Array | None = None) -> Blocks:
        """Quantize rows, block by block."""
        if inputs is None:
            raise DataError("GPTQ needs the inputs of each layer; pass calibration data.")
        products = inputs
        squares = np.maximum(np.diag(products), 0)
        plain = Importance().blocks(rows, scheme, squares) if self.weighted else Rtn().blocks(rows, scheme)
        wide, dead = rows.astype(np.float64), np.diag(products) <= 0
        wide[:, dead] = 0
        if not wide.size or dead.all():
            return plain
        order = np.argsort(-np.diag(products), kind="stable") if self.by_activation else None
        fed = _Feedback(self, wide, scheme, rows.dtype, order, plain if self.weighted else None).run(
            factor(products, dead, self.damping, order)
        )
        keep = _loss(rows, plain, products) < _loss(rows, fed, products)
        zero = fed.zero_point
        if zero is not None and plain.zero_point is not None:
            zero = np.where(keep[:, None], plain.zero_point, zero)
        return Blocks(
            np.where(keep[:, None], plain.integers, fed.integers),
            np.where(keep[:, None], plain.scale, fed.scale),
            zero,
            scheme,
        )

    def ranges(self, part: Array, scheme: BlockScheme, dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
        """Return scale and zero point of a block of columns, one for each row."""
        tiles = part.T if self.per_row else part.reshape(-1, 1)
        count = tiles.shape[1]
        ratio = np.ones(count)
        if self.search:
            ratio = _best_ratio(tiles, scheme, dtype)
        scale, zero = np.empty(count), np.empty(count)
        for value in np.unique(ratio):
            mine = ratio == value
            _, s, z = spread(tiles[:, mine], scheme, dtype, float(value))
            scale[mine] = s.astype(np.float64)
            zero[mine] = scheme.middle if z is None else z
        return np.broadcast_to(scale, len(part)).copy(), np.broadcast_to(zero, len(part)).copy()


class _Feedback:
    """One run over the columns of a matrix."""

    def __init__(
        self,
        how: Gptq,
        wide: Array,
        scheme: BlockScheme,
        dtype: np.dtype[np.generic],
        order: Array | None,
        ranges: Blocks | None = None,
    ) -> None:
        self.how, self.scheme, self.dtype = how, scheme, dtype
        self.order = np.arange(wide.shape[1]) if order is None else order
        self.wide = wide[:, self.order]
        count = -(-wide.shape[1] // scheme.size)
        self.scale, self.zero = np.empty((len(wide), count)), np.empty((len(wide), count))
        self.integers = np.empty(wide.shape, np.uint8)
        self.fixed = order is not None or ranges is not None
        if ranges is not None:
            self.scale[:] = ranges.scale
            self.zero[:] = scheme.middle if ranges.zero_point is None else ranges.zero_point
        elif self.fixed:
            for block in range(count):
                part = wide[:, block * scheme.size : (block + 1) * scheme.size]
                self.scale[:, block], self.zero[:, block] = how.ranges(part, scheme, dtype)

    def run(self, upper: Array) -> Blocks:
        """Round all columns."""
        columns = self.wide.shape[1]
        for start in range(0, columns, self.how.lazy):
            stop = min(start + self.how.lazy, columns)
            errors = self._stretch(start, stop, upper)
            self.wide[:, stop:] -= errors @ upper[start:stop, stop:]
        zero = None if self.scheme.symmetric else self.zero.astype(np.uint8)
        return Blocks(self.integers, self.scale.astype(self.dtype), zero, self.scheme)

    def _stretch(self, start: int, stop: int, upper: Array) -> Array:
        errors = np.zeros((len(self.wide), stop - start))
        for j in range(start, stop):
            column = int(self.order[j])
            block = column // self.scheme.size
            if not self.fixed and column % self.scheme.size == 0:
                self._begin(block, j, start, errors, upper)
            scale, zero = self.scale[:, block], self.zero[:, block]
            values = self.wide[:, j]
            with np.errstate(divide="ignore", invalid="ignore"):
                steps = np.where(scale != 0, values / scale, 0)
            q = np.clip(np.rint(steps + zero), 0, self.scheme.top)
            self.integers[:, column] = q
            errors[:, j - start] = (values - (q - zero) * scale) / upper[j, j]
            self.wide[:, j + 1 : stop] -= errors[:, j - start, None] * upper[j, None, j + 1 : stop]
        return errors

    def _begin(self, block: int, j: int, start: int, errors: Array, upper: Array) -> None:
        """Take a block's scale, with what this stretch still owes to columns beyond its end."""
        end = min(j + self.scheme.size, self.wide.shape[1])
        part = self.wide[:, j:end].copy()
        beyond = min(start + self.how.lazy, self.wide.shape[1])
        if end > beyond and j > start:
            part[:, beyond - j :] -= errors[:, : j - start] @ upper[start:j, beyond:end]
        self.scale[:, block], self.zero[:, block] = self.how.ranges(part, self.scheme, self.dtype)


def factor(products: Array, dead: Array, damping: float, order: Array | None = None) -> Array:
    """Return the upper Cholesky factor of the inverse, damped until there is one."""
    h = products.astype(np.float64).copy()
    h[dead, dead] = 1
    if order is not None:
        h = h[np.ix_(order, order)]
    mean, eye = float(np.mean(np.diag(h))), np.arange(len(h))
    for more in range(8):
        damped = h.copy()
        damped[eye, eye] += damping * 10.0**more * mean
        try:
            inverse = np.linalg.inv(damped)
            return np.asarray(np.linalg.cholesky((inverse + inverse.T) / 2).T)
        except np.linalg.LinAlgError:
            continue
    raise DataError("The inputs of a layer give no usable products for GPTQ; check the calibration data.")


def _best_ratio(tiles: Array, scheme: BlockScheme, dtype: np.dtype[np.generic]) -> Array:
    best, least = np.ones(tiles.shape[1]), np.full(tiles.shape[1], np.inf)
    for ratio in _SHRINK:
        q, scale, zero = spread(tiles, scheme, dtype, float(ratio))
        middle = float(scheme.middle) if zero is None else zero.astype(np.float64)
        error = np.abs((q - middle) * scale.astype(np.float64) - tiles)
        loss = (error**_NORM).sum(axis=0)
        best, least = np.where(loss < least, ratio, best), np.minimum(loss, least)
    return best


def _loss(rows: Array, blocks: Blocks, products: Array) -> Array:
    """Return the squared error of each row's outputs."""
    error = blocks.real() - rows
    return np.asarray(((error @ products) * error).sum(axis=1))
