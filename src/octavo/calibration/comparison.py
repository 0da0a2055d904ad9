"""Methods side by side: what each would make of the same statistics. The model does not run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.calibration.methods import read
from octavo.calibration.methods.spread import Spread
from octavo.calibration.statistics import HistogramState, first_of
from octavo.core.scheme import MSE, Entropy, Method, MinMax, Percentile, Scheme
from octavo.core.stats import Range, State, Stats

METHODS: tuple[Method, ...] = (MinMax(), Percentile(99.999), Percentile(99.99), Entropy(), MSE())


@dataclass(frozen=True)
class Reading:
    """What a method makes of a tensor: its range, and the expected squared error of a value in it.

    ``error`` is None where no histogram tells, and for floating-point types.
    """

    method: Method
    range: Range
    error: float | None


def compare_methods(
    stats: Stats, wanted: Mapping[str, Scheme], methods: Sequence[Method] = METHODS
) -> dict[str, list[Reading]]:
    """For each tensor that was seen, what the methods would make of it; of its scheme all but the method."""
    return {
        tensor: [_reading(stats[tensor], scheme.but(method=method)) for method in methods]
        for tensor, scheme in wanted.items()
        if tensor in stats and not stats[tensor].non_finite
    }


def _reading(state: State, scheme: Scheme) -> Reading:
    first = first_of(state)
    found = read(first, scheme)
    error: float | None = None
    if isinstance(first, HistogramState) and not scheme.qtype.is_float:
        error = float(Spread.of(first).error(found.low, found.high, scheme)[0])
    return Reading(scheme.method, found, error)
