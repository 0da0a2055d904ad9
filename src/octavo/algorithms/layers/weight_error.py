"""The error that rounded weights give the outputs of a layer, and the rounding with the least.

With the Gram matrix ``H`` an error ``e`` of a row gives the mean squared error ``e (H + λ) eᵀ``; ``λ`` is the
noise of the rounded input, and more where few samples were seen. Without ``H`` products are taken as
independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from octavo.algorithms.layers.error_feedback import Grid, fed_back, nearest, upper_factor
from octavo.core.arrays import Arrays

if TYPE_CHECKING:
    from octavo.algorithms.layers.input_moments import InputMoments

F64 = npt.NDArray[np.float64]

# Parts of the full range that are tried.
RATIOS = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.81, 0.77, 0.73, 0.68, 0.62, 0.55, 0.47, 0.4)
_COMPARED = 2  # ratios with the least rough error, which are compared by the exact one
_DAMPING = 0.01  # a share of the mean of the diagonal
_DAMPING_BY_SAMPLES = 0.1  # more of it, times products / samples: a Gram matrix from few samples is noise


@dataclass(frozen=True)
class WeightError:
    """The output errors of layers that read the same values; arrays of one library, in float32."""

    xp: Arrays
    mean: Any  # [group, product]
    variance: Any
    damping: Any  # [group, 1]
    gram: Any = None  # damped
    upper: Any = None

    @classmethod
    def of(cls, inputs: InputMoments, step: float, xp: Arrays, *, factor: bool) -> WeightError:
        """Return it for inputs rounded in such steps; ``factor``: with what error feedback needs."""
        groups, products = inputs.mean.shape
        damping = np.zeros(groups)
        gram = None
        if inputs.gram is not None:
            share = _DAMPING + _DAMPING_BY_SAMPLES * products / inputs.count
            damping = np.mean(inputs.square, axis=1) * share + step**2 / 12.0
            damping = np.where(damping > 0, damping, 1.0)
            damped = inputs.gram.astype(np.float32)
            diagonal = np.arange(products)
            damped[:, diagonal, diagonal] += damping[:, None].astype(np.float32)
            gram = xp.put(damped)
        return cls(
            xp,
            xp.put(inputs.mean.astype(np.float32)),
            xp.put((inputs.variance + damping[:, None]).astype(np.float32)),
            xp.put(damping[:, None].astype(np.float32)),
            gram,
            upper_factor(gram, xp) if factor and gram is not None else None,
        )

    def rough(self, delta: Any) -> Any:
        """Return the error of each output as if products were independent, which is cheap."""
        return self.xp.dots(delta, self.mean) ** 2 + self.xp.dots(delta**2, self.variance)

    def exact(self, delta: Any) -> Any:
        """Return the error of each output ``[group, output]``."""
        return self.rough(delta) if self.gram is None else ((delta @ self.gram) * delta).sum(axis=2)

    def undamped(self, error: Any, delta: Any) -> F64:
        """Return an error without what damping added."""
        found = self.xp.get(error - self.damping * (delta**2).sum(axis=2)).astype(np.float64)
        return np.asarray(np.maximum(found, 0.0))


@dataclass(frozen=True)
class RoundedRows:
    """Rows on points of a grid, and the errors of the outputs before and after, as numpy arrays."""

    stored: npt.NDArray[np.float32]
    grid: Grid  # the given one where no range was changed
    before: F64
    after: F64


def rounded_rows(
    content: F64, given: Grid, errors: WeightError, least: F64 | None, *, together: bool
) -> RoundedRows:
    """Round rows with the least error found; scales stay above ``least``, and as given where it is None."""
    xp, grid = errors.xp, given
    rows, points = xp.put(content.astype(np.float32)), given.on(errors.xp, content.shape, np.float32)
    stored = nearest(rows, points, xp)
    error = errors.exact(stored - rows)
    before = errors.undamped(error, stored - rows)
    if least is not None:
        ratio = best_ratio(rows, points, errors, least, together=together)
        if np.any(ratio != 1.0):
            grid = given.times(ratio)
            points = grid.on(xp, content.shape, np.float32)
            stored = nearest(rows, points, xp)
            error = errors.exact(stored - rows)
    if errors.upper is not None:
        fed, loss = fed_back(rows, points, errors.upper, xp)
        keep = error <= loss
        stored, error = xp.where(keep[:, :, None], stored, fed), xp.where(keep, error, loss)
    return RoundedRows(xp.get(stored), grid, before, errors.undamped(error, stored - rows))


def best_ratio(rows: Any, grid: Grid, errors: WeightError, least: F64, *, together: bool) -> F64:
    """Return the factor of each output's range with the least error; no scale falls below ``least``."""
    xp, shape = errors.xp, (*rows.shape[:2], 1)
    guesses = np.stack([xp.get(errors.rough(nearest(rows, _times(grid, r, xp), xp) - rows)) for r in RATIOS])
    ratios = np.array(RATIOS)
    allowed = np.broadcast_to(least / xp.get(grid.scale), shape)[:, :, 0]
    guesses[(allowed > ratios[:, None, None]) & (ratios[:, None, None] < 1)] = np.inf
    if together:
        guesses = np.broadcast_to(guesses.sum(axis=(1, 2), keepdims=True), guesses.shape)
    order = ratios[np.argsort(guesses, axis=0, kind="stable")[:_COMPARED]][..., None]
    if errors.gram is None:
        return np.asarray(order[0])
    best, smallest = np.ones(shape), np.full(shape, np.inf)
    for ratio in (np.ones(shape), *order):
        stored = nearest(rows, _times(grid, ratio, xp), xp)
        error = xp.get(errors.exact(stored - rows)).astype(np.float64)[:, :, None]
        error = np.where((np.broadcast_to(allowed[:, :, None], shape) > ratio) & (ratio < 1), np.inf, error)
        if together:
            error = np.full(shape, error.sum())
        best, smallest = np.where(error < smallest, ratio, best), np.minimum(error, smallest)
    return best


def _times(grid: Grid, ratio: Any, xp: Arrays) -> Grid:
    """Return a grid with scales times a ratio, in float32 as they are stored."""
    factor = ratio if isinstance(ratio, float) else xp.put(ratio.astype(np.float32))
    return Grid(grid.scale * factor, grid.zero, grid.low, grid.high)
