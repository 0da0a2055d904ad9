"""Mean and standard deviation of the values, taken as evenly spread within each bin."""

from __future__ import annotations

import math

import numpy as np

from octavo.calibration.methods.spread import Spread
from octavo.calibration.statistics import HistogramState
from octavo.core.scheme import Distribution, Scheme
from octavo.core.stats import Range


def distribution(state: HistogramState, method: Distribution, scheme: Scheme) -> Range:
    """Return the extremes and the standard deviation."""
    spread = Spread.of(state)
    total = spread.counts.sum()
    if not total or state.low == state.high:
        return Range(state.low, state.high, 0.0)
    left, right = spread.edges[:-1], spread.edges[1:]
    centres = (left + right) / 2.0
    mean = float(centres @ spread.counts / total)
    squares = (centres - mean) ** 2 + (right - left) ** 2 / 12.0
    return Range(state.low, state.high, math.sqrt(float(np.dot(squares, spread.counts) / total)))
