"""A histogram as the methods read it: counts between edges, values evenly spread within each bin.

For parameters ``scale, zero`` that represent ``[a, b]`` the expected squared error is exact for such values.
With ``u = x / scale`` the antiderivative of ``(x - Q(x))**2`` is::

    G(x) = scale**3 (round(u) / 12 + (u - round(u))**3 / 3)      within [a, b]
    G(x) = G(b) + (x - b)**3 / 3                                   above, and likewise below

so a bin ``[l, r]`` of ``n`` values adds ``n (G(r) - G(l)) / (r - l)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.calibration.statistics import HistogramState, first_of
from octavo.core import affine
from octavo.core.granularity import PerChannel
from octavo.core.scheme import Distribution, Scheme
from octavo.core.stats import Range, State

F64 = npt.NDArray[np.float64]


def within(low: float, high: float, lowest: float, highest: float) -> Range:
    """This range, no wider than the extremes: where it lies outside of them, an empty one at their end."""
    return Range(min(max(low, lowest), highest), max(min(high, highest), lowest))


@dataclass(frozen=True)
class Spread:
    """``counts[i]`` values lie evenly between ``edges[i]`` and ``edges[i + 1]``."""

    edges: F64
    counts: F64

    @classmethod
    def of(cls, state: HistogramState) -> Spread:
        """Return the values of a histogram; the outermost bins end at the extremes, and have a width."""
        first, counts = state.bins()
        edges = np.arange(first, first + len(counts) + 1, dtype=np.float64) * state.width
        if edges[0] < state.low < edges[1]:
            edges[0] = state.low
        if edges[-2] < state.high < edges[-1]:
            edges[-1] = state.high
        return cls(edges, counts.astype(np.float64))

    def share(self, found: Range) -> float:
        """Return the share of the values that lie in a range, widened to hold zero."""
        below = np.concatenate([[0.0], np.cumsum(self.counts)])
        low, high = np.interp([min(found.low, 0.0), max(found.high, 0.0)], self.edges, below)
        return float((high - low) / below[-1])

    def folded(self) -> Spread:
        """Return the magnitudes of the values."""
        edges = np.unique(np.abs(np.append(self.edges, 0.0)))
        below = np.concatenate([[0.0], np.cumsum(self.counts)])

        def up_to(x: F64) -> F64:
            return np.asarray(np.interp(x, self.edges, below))

        counts = np.diff(up_to(edges) - up_to(-edges))
        return Spread(edges, counts)

    def coarse(self, bins: int) -> Spread:
        """Return the same in at most this many bins."""
        starts = np.arange(0, len(self.counts), -(-len(self.counts) // bins))
        return Spread(np.append(self.edges[starts], self.edges[-1]), np.add.reduceat(self.counts, starts))

    def error(self, low: npt.ArrayLike, high: npt.ArrayLike, scheme: Scheme) -> F64:
        """Return the expected squared error of a value, for each of several ranges."""
        several = scheme.but(granularity=PerChannel(0))
        params = affine.from_range(np.atleast_1d(low), np.atleast_1d(high), several)
        scale, zero = params.scale.astype(np.float64), params.zero_point.astype(np.float64)
        qmin, qmax = scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
        bottom, top = ((qmin - zero) * scale)[:, None], ((qmax - zero) * scale)[:, None]
        scale = scale[:, None]
        inside = np.clip(self.edges, bottom, top)
        steps = inside / scale
        near = np.rint(steps)
        area = scale**3 * (near / 12.0 + _cube(steps - near) / 3.0) + _cube(self.edges - inside) / 3.0
        per_bin = np.diff(area, axis=1) / np.diff(self.edges)
        return np.asarray(per_bin @ self.counts / max(self.counts.sum(), 1.0))


def _cube(x: F64) -> F64:
    """Return the third power, many times as fast as ``x**3``."""
    return np.asarray(x * x * x)


# ---- Mean and standard deviation of the values, or of a signed power of them, off a histogram


def moments(state: HistogramState, power: float = 1.0) -> tuple[float, float]:
    """Return mean and standard deviation of ``sign(x) |x|**power``, each bin taken at its centre."""
    if state.low == state.high:
        return math.copysign(abs(state.low) ** power, state.low), 0.0
    spread = Spread.of(state)
    centres = (spread.edges[:-1] + spread.edges[1:]) / 2.0
    values = np.sign(centres) * np.abs(centres) ** power
    mean = float(np.average(values, weights=spread.counts))
    return mean, math.sqrt(float(np.average((values - mean) ** 2, weights=spread.counts)))


# ---- Mean and standard deviation of the values, taken as evenly spread within each bin


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


# ---- How much of a tensor's values a range keeps; what lies outside of it is clipped

LEAST_SHARE = 0.5  # a range that keeps less is almost certainly a mistake, and the user is told


def kept_share(state: State, found: Range) -> float:
    """Return the share of values in a range, widened to hold zero; 1 where only extremes are known."""
    state = first_of(state)
    if not isinstance(state, HistogramState) or not state.total or state.low == state.high:
        return 1.0
    return Spread.of(state).share(found)


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
