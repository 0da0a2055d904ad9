"""The symmetric threshold at which the quantized histogram diverges least from the original.

Magnitudes are counted in ``bins`` bins. For a threshold after bin ``i``: the reference ``P`` is the first
``i`` counts, with all that lies above added to the last; the candidate ``Q`` is the first ``i`` counts summed
in ``levels`` groups and spread again evenly over the bins of each group that are not empty in ``P``. Then

    KL(P || Q) = Σ p ln(p / q) = Σ p ln p - Σ_groups (Σ p) ln q      (p, q normalised)

whose sums are differences of running sums: all thresholds at once, without a loop. Zero has a level of its
own whatever the threshold, so the spike of zeros that a Relu leaves must not decide: the first bin counts no
more than the second.

``P`` and ``Q`` are equal where a threshold leaves a single filled bin, however much it cuts off. Therefore
what is cut off counts too: the values that are kept diverge from all values by ``-ln(kept / all)``. And no
threshold is chosen that clips so much that the root of the mean squared error could be more than three times
that of the extremes (see :data:`CLIPPING`).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from octavo.calibration.methods.spread import Spread, within
from octavo.calibration.statistics import HistogramState
from octavo.core import affine
from octavo.core.qtypes import INT8
from octavo.core.scheme import Entropy, Scheme
from octavo.core.stats import Range

F64 = npt.NDArray[np.float64]

# The squared error that clipping may add, as a multiple of the squared error of the extremes. With their
# step s, values that lie evenly between steps err by s²/12; by a narrower range no value that it keeps errs
# by more than s²/4, which is 3 times as much. 6 more make 9, and its root is 3.
CLIPPING = 6.0


def entropy(state: HistogramState, method: Entropy, scheme: Scheme) -> Range:
    """Return the range of the best threshold, within the extremes."""
    counts, width = magnitudes(state, method.bins)
    if len(counts) <= method.levels:
        return Range(state.low, state.high)
    rounded = scheme if not scheme.qtype.is_float else Scheme(INT8, symmetric=True)
    (error,) = Spread.of(state).error(state.low, state.high, rounded)
    step = float(affine.from_range(state.low, state.high, rounded).scale)
    top = best_threshold(counts, width, method.levels, step, float(error))
    return within(-top, top, state.low, state.high)


def best_threshold(counts: F64, width: float, levels: int, step: float, error: float = math.inf) -> float:
    """Return the threshold that diverges least, where the extremes have this step and mean squared error."""
    smoothed = counts.copy()
    smoothed[0] = min(smoothed[0], smoothed[1])
    size = np.arange(levels, len(counts) + 1)
    kept = _running(smoothed)[size] / smoothed.sum()
    with np.errstate(divide="ignore"):
        diverging = divergence(smoothed, levels) - np.log(kept)
    even = step**2 / 12.0 * (1.0 - counts[0] / max(counts.sum(), 1.0))  # zeros in the first bin do not err
    diverging[clipping(counts, width, step)[size] > CLIPPING * min(error, even)] = np.inf
    return float((levels + int(np.argmin(diverging))) * width)


def clipping(counts: F64, width: float, step: float) -> F64:
    """Return the most that clipping at a threshold after 0, 1, … bins can cost as a mean squared error.

    Every value counts as if it lay at the far edge of its bin, and half a step more, by which the rounding of
    the zero point can move the ends of a range.
    """
    ends = np.arange(len(counts) + 1) * width
    far = ends[1:] + step / 2.0
    total, first, second = (
        _running((counts * moment)[::-1])[::-1] for moment in (np.ones_like(far), far, far**2)
    )
    squares = second - 2.0 * ends * first + ends**2 * total
    return np.asarray(np.maximum(squares, 0.0) / max(counts.sum(), 1.0))


def magnitudes(state: HistogramState, bins: int) -> tuple[F64, float]:
    """Return counts of magnitudes in at most ``bins`` bins from zero on, and their width."""
    first, counts = state.bins()
    last = first + len(counts)
    size = max(last, -first, 1)
    result = np.zeros(size)
    if last > 0:
        result[max(first, 0) : last] += counts[max(-first, 0) :]
    if first < 0:
        below = counts[: min(len(counts), -first)]
        result[-first - len(below) : -first] += below[::-1]
    width = state.width
    while len(result) > bins:
        result = np.append(result, np.zeros(len(result) % 2)).reshape(-1, 2).sum(axis=1)
        width *= 2.0
    return result, width


def divergence(counts: F64, levels: int) -> F64:
    """Return KL(P || Q) for thresholds after ``levels``, … bins; infinite where Q lacks one of P."""
    size = np.arange(levels, len(counts) + 1)
    total = counts.sum()
    running = _running(counts)
    inside = running[size]
    clipped = total - inside
    last = counts[size - 1]
    p_log_p = _running(_x_log_x(counts))[size] - _x_log_x(last) + _x_log_x(last + clipped)
    bounds = size[:, None] * np.arange(levels + 1) // levels
    sums = np.diff(running[bounds], axis=1)
    filled = np.diff(_running((counts > 0).astype(np.float64))[bounds], axis=1)
    filled[:, -1] += (last == 0) & (clipped > 0)
    weights = sums.copy()
    weights[:, -1] += clipped
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q = np.log(sums / filled)
        cross = np.where(weights > 0, weights * log_q, 0.0).sum(axis=1)
        result = (p_log_p - cross) / total - np.log(total) + np.log(inside)
    return np.where(np.isfinite(result), result, np.inf)


def _running(values: F64) -> F64:
    return np.concatenate([[0.0], np.cumsum(values)])


def _x_log_x(x: F64) -> F64:
    return x * np.log(np.where(x > 0, x, 1.0))
