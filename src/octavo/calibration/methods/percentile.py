"""The range that holds the given part of the values.

What is left out is cut off in equal parts at both ends; for a symmetric scheme, at the largest magnitudes.
Within a bin, values are taken as evenly spread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.calibration.methods.spread import Spread, within
from octavo.calibration.statistics import HistogramState
from octavo.core.scheme import Percentile, Scheme
from octavo.core.stats import Range


def percentile(state: HistogramState, method: Percentile, scheme: Scheme) -> Range:
    """Return the interval of the central ``method.percent`` of the values, never wider than the extremes."""
    if method.percent >= 100.0 or state.low == state.high:
        return Range(state.low, state.high)
    part = method.percent / 100.0
    spread = Spread.of(state)
    if scheme.symmetric:
        top = float(quantile(spread.folded(), part))
        return within(-top, top, state.low, state.high)
    low, high = quantile(spread, np.array([(1.0 - part) / 2.0, (1.0 + part) / 2.0]))
    return within(float(low), float(high), state.low, state.high)


def quantile(spread: Spread, part: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the values below which these parts of all values lie."""
    below = np.concatenate([[0.0], np.cumsum(spread.counts, dtype=np.float64)])
    return np.asarray(np.interp(np.asarray(part) * below[-1], below, spread.edges), np.float64)
