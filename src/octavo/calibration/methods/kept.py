"""How much of a tensor's values a range keeps; what lies outside of it is clipped."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.calibration.methods.spread import Spread
from octavo.calibration.statistics import CombinedState, HistogramState
from octavo.core.stats import Range, State

LEAST_SHARE = 0.5  # a range that keeps less is almost certainly a mistake, and the user is told


def kept_share(state: State, found: Range) -> float:
    """The share of the values that lie in a range, widened to hold zero; 1 where only extremes are known."""
    if isinstance(state, CombinedState):
        state = state.first
    if not isinstance(state, HistogramState) or not state.total or state.low == state.high:
        return 1.0
    spread = Spread.of(state)
    below = np.concatenate([[0.0], np.cumsum(spread.counts)])
    low, high = np.interp([min(found.low, 0.0), max(found.high, 0.0)], spread.edges, below)
    return float((high - low) / below[-1])


def narrow_ranges(stats: Mapping[str, State], ranges: Mapping[str, Range]) -> dict[str, float]:
    """Return the tensors whose ranges keep less than half of their values, and what share of them."""
    shares = {name: kept_share(stats[name], found) for name, found in ranges.items() if name in stats}
    return {name: share for name, share in shares.items() if share < LEAST_SHARE}


def narrow_ranges_note(narrow: Mapping[str, float]) -> str:
    """Return the sentence that tells the user which tensors are clipped so much."""
    named = ", ".join(f"{name!r} ({share:.0%})" for name, share in sorted(narrow.items(), key=lambda n: n[1]))
    return (
        f"The ranges of these tensors keep less than half of their values: {named}; choose another"
        " calibration method, such as min-max, or a higher percentile."
    )
