"""The symmetric threshold at which the quantized histogram diverges least from the original.

Magnitudes are counted in ``bins`` bins. For a threshold after bin ``i``: the reference ``P`` is the first
``i`` counts, with all that lies above added to the last; the candidate ``Q`` is the first ``i`` counts summed
in ``levels`` groups and spread again evenly over the bins of each group that are not empty in ``P``. Then

    KL(P || Q) = Σ p ln(p / q) = Σ p ln p - Σ_groups (Σ p) ln q      (p, q normalised)

whose sums are differences of running sums: all thresholds at once, without a loop. Zero has a level of its
own whatever the threshold, so the spike of zeros that a Relu leaves must not decide: the first bin counts no
more than the second.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.calibration.methods.spread import within
from octavo.calibration.observers import HistogramState
from octavo.core.scheme import Entropy
from octavo.core.stats import Range

F64 = npt.NDArray[np.float64]


def entropy(state: HistogramState, method: Entropy) -> Range:
    """The range of the best threshold, within the extremes."""
    counts, width = magnitudes(state, method.bins)
    if len(counts) <= method.levels:
        return Range(state.low, state.high)
    counts[0] = min(counts[0], counts[1])
    divergences = divergence(counts, method.levels)
    top = (method.levels + int(np.argmin(divergences))) * width
    return within(-top, top, state.low, state.high)


def magnitudes(state: HistogramState, bins: int) -> tuple[F64, float]:
    """Counts of magnitudes in at most ``bins`` bins from zero on, and their width."""
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
    """KL(P || Q) for thresholds after ``levels``, ``levels + 1``, … bins; infinite where Q lacks one of P."""
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
