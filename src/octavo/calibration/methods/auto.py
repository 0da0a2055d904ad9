"""The best of several methods for each tensor: the one whose range has the least expected squared error."""

from __future__ import annotations

import numpy as np

from octavo.calibration.methods.entropy import entropy
from octavo.calibration.methods.mse import mse
from octavo.calibration.methods.percentile import percentile
from octavo.calibration.methods.spread import Spread, distribution
from octavo.calibration.statistics import HistogramState
from octavo.core.scheme import MSE, Auto, Distribution, Entropy, Percentile, Scheme
from octavo.core.stats import Range

_PERCENTS = (99.9999, 99.999, 99.99, 99.9)  # of the values that a range keeps, the widest first


def auto(state: HistogramState, method: Auto, scheme: Scheme) -> Range:
    """Return the extremes, several percentiles, entropy or least squares; the widest of equals."""
    if scheme.qtype.is_float:
        return distribution(state, Distribution(), scheme)
    found = candidates(state, scheme)
    lows, highs = np.array([r.low for r in found]), np.array([r.high for r in found])
    return found[int(np.argmin(Spread.of(state).error(lows, highs, scheme)))]


def candidates(state: HistogramState, scheme: Scheme) -> list[Range]:
    """Return the ranges that are compared."""
    if state.low == state.high:
        return [Range(state.low, state.high)]
    return [
        Range(state.low, state.high),
        *(percentile(state, Percentile(percent), scheme) for percent in _PERCENTS),
        entropy(state, Entropy(), scheme),
        mse(state, MSE(), scheme),
    ]
