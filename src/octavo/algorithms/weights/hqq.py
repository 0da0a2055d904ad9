"""Half-quadratic quantization: move the zero point so that few weights carry the error.

The error is measured in a norm with p < 1, which forgives outliers. Each step takes the outliers out of the
weights (a shrinkage) and puts the zero point where the rest fits best::

    e = w - scale * (q - zero)          shrunk = sign(e) * max(|e| - |e|**(p-1) / beta, 0)
    zero = mean(q - (w - shrunk) / scale)          beta grows by kappa

Each block keeps the best zero point it has seen, the first of which is that of rounding to nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from octavo.algorithms.weights.blocks import Inputs, Solved, by_rows, nearest, stored
from octavo.algorithms.weights.rtn import spread
from octavo.core.blocks import Array, Blocks, BlockScheme
from octavo.errors import RecipeError


@dataclass(frozen=True)
class Hqq:
    """Half-quadratic refinement of the zero points."""

    p: float = 0.7
    beta: float = 10.0
    kappa: float = 1.01
    steps: int = 20
    wants: ClassVar[Inputs] = Inputs.NONE
    quick: ClassVar[bool] = False

    def blocks(self, rows: Array, scheme: BlockScheme, inputs: Array | None = None) -> Blocks:
        """Quantize rows, block by block."""
        if scheme.symmetric:
            raise RecipeError("HQQ moves zero points, and symmetric weights have none; choose asymmetric.")
        return by_rows(rows, scheme, lambda tiles, real: self._solve(tiles, real, scheme, rows.dtype))

    def _solve(self, tiles: Array, real: Array, scheme: BlockScheme, dtype: np.dtype[np.generic]) -> Solved:
        _, kept, start = spread(tiles, scheme, dtype)
        scale = kept.astype(np.float32)
        first = np.zeros(scale.shape, np.float32) if start is None else start.astype(np.float32)
        best, _ = self.refine(tiles, real, scale, first, scheme, dtype)
        integers = nearest(tiles, scale, best, scheme.top).astype(np.uint8)
        return integers, kept, best.astype(np.uint8 if scheme.whole_zero else dtype)

    def refine(
        self,
        tiles: Array,
        real: Array,
        scale: Array,
        zero: Array,
        scheme: BlockScheme,
        dtype: np.dtype[np.generic],
    ) -> tuple[Array, Array]:
        """Return the best zero point of each block, and its error in the norm."""
        count = np.maximum(real.sum(axis=0), 1)
        best, least = zero, np.full(scale.shape, np.inf, np.float32)
        beta = self.beta
        for _ in range(self.steps + 1):
            usable = np.clip(np.rint(zero), 0, scheme.top) if scheme.whole_zero else stored(zero, dtype)
            q = nearest(tiles, scale, usable, scheme.top)
            error = tiles - (q - usable) * scale
            size = np.abs(error)
            powers = size**self.p
            loss = (powers * real).sum(axis=0)
            better = loss < least
            best, least = np.where(better, usable, best), np.where(better, loss, least)
            with np.errstate(divide="ignore", invalid="ignore"):
                powers /= size * np.float32(beta)
                shrunk = np.copysign(np.fmax(size - powers, 0), error)
                zero = (np.where(real, q - (tiles - shrunk) / scale, 0)).sum(axis=0) / count
            beta *= self.kappa
        return best, least


def refined(
    tensor: Array, scale: Array, zero: Array, limits: list[int], axis: int, how: dict[str, float]
) -> Array:
    """Return better zero points of ``clip(round(tensor * scale + zero))`` for groups along an axis."""
    names = {"lp_norm": "p", "beta": "beta", "kappa": "kappa", "iters": "steps"}
    known = {names[key]: value for key, value in how.items() if key in names}
    settings = Hqq(**{**known, "steps": int(known.get("steps", Hqq.steps))})  # type: ignore[arg-type]
    tiles = np.moveaxis(np.asarray(tensor, np.float32), axis, 0)
    step = 1 / np.moveaxis(np.asarray(scale, np.float32), axis, 0)[0]
    start = np.moveaxis(np.asarray(zero, np.float32), axis, 0)[0]
    scheme = BlockScheme(int(limits[1] + 1).bit_length() - 1, len(tiles), whole_zero=False)
    real = np.ones((len(tiles), *[1] * (tiles.ndim - 1)), bool)
    best, _ = settings.refine(tiles, real, step, start, scheme, np.dtype(np.float32))
    return np.moveaxis(best[None], 0, axis)


def grouped(
    tensor: Array, bits: int, size: int, axis: int, *, optimize: bool, whole: bool
) -> tuple[Array, Array, Array]:
    """Return integers in the tensor's shape, with scales and zero points of groups along an axis."""
    turned = tensor if axis else tensor.T
    rows = turned.reshape(-1, size)
    start = BlockScheme(bits, size, whole_zero=whole and not optimize)
    how = Hqq() if optimize else Hqq(steps=0)
    made = how.blocks(rows, start)
    integers = made.integers.reshape(turned.shape)
    zero = made.zero_point
    if zero is None:
        zero = np.full(made.scale.shape, start.middle)
    return (integers if axis else integers.T), made.scale, zero.astype(tensor.dtype)
