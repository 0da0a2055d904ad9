"""Mean and standard deviation of the values, or of a signed power of them, off a histogram."""

from __future__ import annotations

import math

import numpy as np

from octavo.calibration.methods.spread import Spread
from octavo.calibration.statistics import HistogramState


def moments(state: HistogramState, power: float = 1.0) -> tuple[float, float]:
    """Mean and standard deviation of ``sign(x) |x|**power``, each bin taken at its centre."""
    if state.low == state.high:
        return math.copysign(abs(state.low) ** power, state.low), 0.0
    spread = Spread.of(state)
    centres = (spread.edges[:-1] + spread.edges[1:]) / 2.0
    values = np.sign(centres) * np.abs(centres) ** power
    mean = float(np.average(values, weights=spread.counts))
    return mean, math.sqrt(float(np.average((values - mean) ** 2, weights=spread.counts)))
