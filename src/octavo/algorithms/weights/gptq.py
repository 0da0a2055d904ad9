"""GPTQ: round column by column, and let the columns still to come make up for each error.

With ``H`` the sum of ``x xᵀ`` over a layer's inputs and ``U`` the upper Cholesky factor of its inverse,
column ``j`` is rounded to ``q`` and the others move::

    W[:, j+1:] -= (W[:, j] - q) / U[j, j] * U[j, j+1:]

Columns come in the order of decreasing ``E[x²]`` (``act_order``); scales are those of the weights as they
were, so that blocks stay together in the file. In the order of the file they are taken when their block
begins, from the weights as they are then. With ``weighted`` they are those of :mod:`.importance`, the search
that the diagonal of ``H`` weights. A row for which rounding without feedback leaves the smaller error
``e H eᵀ`` keeps that.

``sequential`` asks for ``H`` of what a layer reads when the layers before it are quantized already; the
pipeline provides it. ``device=gpu`` does the work with CuPy or PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from octavo.algorithms.weights.blocks import Inputs
from octavo.algorithms.weights.importance import Importance
from octavo.algorithms.weights.rtn import Rtn, spread
from octavo.core.arrays import Arrays, arrays, checked_device
from octavo.core.blocks import Array, Blocks, BlockScheme
from octavo.errors import DataError

_SHRINK = np.linspace(1.0, 0.3, 36)  # ranges tried where the best is looked for
_NORM = 2.4  # the power of the error that is summed, as in GPTQ's own search


@dataclass(frozen=True)
class Gptq:
    """Error feedback through the inverse of the input products."""

    damping: float = 0.01
    lazy: int = 128  # columns between two updates of all that follow
    act_order: bool = True
    search: bool = False  # look for the range with the least error
    per_row: bool = True  # else one scale for a block of all rows
    weighted: bool = False  # ranges by the importance of input channels, instead of plain ones
    sequential: bool = False
    device: str = "cpu"  # cpu, gpu, or auto for a GPU where there is one
    wants: ClassVar[Inputs] = Inputs.PRODUCTS
    quick: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checked_device("gptq", self.device)

    def blocks(self, rows: Array, scheme: BlockScheme, inputs: Array | None = None) -> Blocks:
        """Quantize rows, block by block."""
        if inputs is None:
            raise DataError("GPTQ needs the inputs of each layer; pass calibration data.")
        products, squares = inputs, np.maximum(np.diag(inputs), 0)
        plain = Importance().blocks(rows, scheme, squares) if self.weighted else Rtn().blocks(rows, scheme)
        dead = squares <= 0
        if not rows.size or dead.all():
            return plain
        xp = arrays(self.device)
        order = np.argsort(-squares, kind="stable") if self.act_order else np.arange(rows.shape[1])
        upper = factor(products, dead, self.damping, order, xp)
        wide = np.where(dead, 0, rows.astype(np.float64))
        fed = _Feedback(self, wide, scheme, rows.dtype, order, plain if self.weighted else None, xp).run(
            upper
        )
        keep = _loss(rows, plain, products, xp) < _loss(rows, fed, products, xp)
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
        """Return scale and zero point of a block of columns ``[column, row]``, one for each row."""
        tiles = part if self.per_row else part.reshape(-1, 1)
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
        rows = part.shape[1]
        return np.broadcast_to(scale, rows).copy(), np.broadcast_to(zero, rows).copy()


class _Feedback:
    """One run over the columns of a matrix; arrays of the library are ``[column, row]``, in order."""

    def __init__(
        self,
        how: Gptq,
        wide: Array,
        scheme: BlockScheme,
        dtype: np.dtype[np.generic],
        order: Array,
        ranges: Blocks | None,
        xp: Arrays,
    ) -> None:
        self.how, self.scheme, self.dtype, self.order, self.xp = how, scheme, dtype, order, xp
        columns = np.ascontiguousarray(wide.T)
        self.wide = xp.put(np.ascontiguousarray(columns[order]))
        self.integers = xp.zeros(self.wide)
        count = -(-len(columns) // scheme.size)
        self.scale, self.zero = np.empty((count, len(wide))), np.empty((count, len(wide)))
        self.fixed = how.act_order or ranges is not None
        if ranges is not None:
            self.scale[:] = ranges.scale.T
            self.zero[:] = scheme.middle if ranges.zero_point is None else ranges.zero_point.T
        elif self.fixed:
            for block in range(count):
                part = columns[block * scheme.size : (block + 1) * scheme.size]
                self.scale[block], self.zero[block] = how.ranges(part, scheme, dtype)
        self._steps: dict[int, tuple[Any, Any, Any]] = {}

    def run(self, upper: Any) -> Blocks:
        """Round all columns."""
        columns = len(self.order)
        for start in range(0, columns, self.how.lazy):
            stop = min(start + self.how.lazy, columns)
            errors = self._stretch(start, stop, upper)
            self.wide[stop:] -= upper[start:stop, stop:].swapaxes(0, 1) @ errors
        integers = np.empty(tuple(self.wide.shape), np.uint8)
        integers[self.order] = self.xp.get(self.integers).astype(np.uint8)
        zero = None if self.scheme.symmetric else self.zero.T.astype(np.uint8)
        return Blocks(np.ascontiguousarray(integers.T), self.scale.T.astype(self.dtype), zero, self.scheme)

    def _stretch(self, start: int, stop: int, upper: Any) -> Any:
        errors = self.xp.zeros(self.wide[start:stop])
        for j in range(start, stop):
            block = int(self.order[j]) // self.scheme.size
            if not self.fixed and j % self.scheme.size == 0:
                self._begin(block, j, start, errors, upper)
            scale, divisor, zero = self._numbers(block)
            values = self.wide[j]
            q = self.xp.rounded(values / divisor + zero, 0, self.scheme.top)
            self.integers[j] = q
            errors[j - start] = (values - (q - zero) * scale) / upper[j, j]
            self.wide[j + 1 : stop] -= upper[j, j + 1 : stop, None] * errors[j - start]
        return errors

    def _numbers(self, block: int) -> tuple[Any, Any, Any]:
        """Return a block's scale, what to divide by (1 where the scale is 0) and its zero point."""
        if block not in self._steps:
            scale = self.scale[block]
            parts = (scale, np.where(scale != 0, scale, 1), self.zero[block])
            self._steps[block] = tuple(self.xp.put(part) for part in parts)
        return self._steps[block]

    def _begin(self, block: int, j: int, start: int, errors: Any, upper: Any) -> None:
        """Take a block's scale, with what this stretch still owes to columns beyond its end."""
        end = min(j + self.scheme.size, len(self.order))
        part = self.xp.copied(self.wide[j:end])
        beyond = min(start + self.how.lazy, len(self.order))
        if end > beyond and j > start:
            part[beyond - j :] -= upper[start:j, beyond:end].swapaxes(0, 1) @ errors[: j - start]
        self.scale[block], self.zero[block] = self.how.ranges(self.xp.get(part), self.scheme, self.dtype)


def factor(products: Array, dead: Array, damping: float, order: Array, xp: Arrays) -> Any:
    """Return the upper Cholesky factor of the inverse, damped until there is one."""
    h = products.astype(np.float64)
    h[dead, dead] = 1
    h = h[np.ix_(order, order)]
    mean, eye = float(np.mean(np.diag(h))), np.arange(len(h))
    for more in range(8):
        damped = h.copy()
        damped[eye, eye] += damping * 10.0**more * mean
        try:
            inverse = xp.inverse(xp.put(damped))
            return xp.cholesky((inverse + inverse.swapaxes(0, 1)) / 2).swapaxes(0, 1)
        except DataError:
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


def _loss(rows: Array, blocks: Blocks, products: Array, xp: Arrays) -> Array:
    """Return the squared error of each row's outputs."""
    error = xp.put(blocks.real() - rows)
    return xp.get(((error @ xp.put(products.astype(np.float64))) * error).sum(axis=1))
