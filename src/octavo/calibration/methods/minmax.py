"""The extremes themselves, their means over the samples, or their moving averages."""

from __future__ import annotations

import math

from octavo.calibration.statistics import ExtremesState, SampleExtremesState
from octavo.core.scheme import MinMax
from octavo.core.stats import Range
from octavo.errors import TableError


def minmax(state: ExtremesState | SampleExtremesState, method: MinMax) -> Range:
    """Return the extremes, their ``average``, or with a ``momentum`` c ``v ← v + c (new - v)``."""
    if method.momentum is None and not method.average:
        return Range(state.low, state.high)
    if not isinstance(state, SampleExtremesState):
        raise TableError(
            "An average of extremes needs the extremes of each sample, and these statistics hold only those "
            "of all samples; calibrate again with the method that averages."
        )
    records = state.records
    if method.momentum is None:
        return Range(math.fsum(records["low"]) / len(records), math.fsum(records["high"]) / len(records))
    low, high = float(records["low"][0]), float(records["high"][0])
    for _, new_low, new_high in records[1:].tolist():
        low += method.momentum * (new_low - low)
        high += method.momentum * (new_high - high)
    return Range(low, high)
