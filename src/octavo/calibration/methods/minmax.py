"""The extremes themselves, their means over the samples, or their moving averages."""

from __future__ import annotations

import math

from octavo.calibration.observers import MinMaxState
from octavo.core.scheme import MinMax
from octavo.core.stats import Range


def minmax(state: MinMaxState, method: MinMax) -> Range:
    """``average``: the mean over samples; ``momentum`` c: ``v ← v + c (new - v)`` from the first one on."""
    records = state.records
    if method.momentum is not None:
        low, high = float(records["low"][0]), float(records["high"][0])
        for _, new_low, new_high in records[1:].tolist():
            low += method.momentum * (new_low - low)
            high += method.momentum * (new_high - high)
        return Range(low, high)
    if method.average:
        return Range(math.fsum(records["low"]) / len(records), math.fsum(records["high"]) / len(records))
    return Range(state.low, state.high)
