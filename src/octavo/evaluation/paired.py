"""Confidence intervals, for one model and for the difference of two on the same samples.

A share of right answers has closed forms: Wilson's interval for one model; for the difference of two, the
adjusted interval of Agresti and Min with half a count added to each of the four cells, and McNemar's exact
test. ``b`` and ``c`` count the samples that only one of both models has right:

    difference = (b − c) / (n + 2)   ± z √(b + c + 1 − (b − c)² / (n + 2)) / (n + 2)

Every other figure is resampled: draws of samples with replacement, the same draw for both models, and the
2.5th and 97.5th percentiles. The seed is fixed, so an interval is as reproducible as the figure itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Z = 1.959963984540054  # two-sided, 95 %
SEED = 20240229


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval and how it was found; ``p_value`` where there is an exact test."""

    low: float
    high: float
    method: str
    p_value: float | None = None


def share(right: npt.NDArray[np.bool_]) -> Interval:
    """Wilson's interval for a share of right answers."""
    n, p = len(right), float(np.mean(right))
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return Interval(max(0.0, centre - half), min(1.0, centre + half), "wilson")


def share_difference(right: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> Interval:
    """The interval of ``mean(right) − mean(other)`` on the same samples, and McNemar's exact p-value."""
    n = len(right)
    only, only_other = int(np.sum(right & ~other)), int(np.sum(other & ~right))
    centre = (only - only_other) / (n + 2)
    spread = only + only_other + 1 - (only - only_other) ** 2 / (n + 2)
    half = Z * math.sqrt(max(0.0, spread)) / (n + 2)
    return Interval(centre - half, centre + half, "agresti-min", mcnemar(only, only_other))


def mcnemar(only: int, only_other: int) -> float:
    """The chance of a split as uneven as this one, if both models were equally good (two-sided, exact)."""
    n, k = only + only_other, min(only, only_other)
    if n == 0:
        return 1.0
    logs = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2)
        for i in range(k + 1)
    ]
    return min(1.0, 2 * math.fsum(math.exp(log) for log in logs))


def draws(samples: int, resamples: int) -> npt.NDArray[np.int64]:
    """Indices of resampled samples, a row for each resample; the same for the same numbers."""
    return np.random.default_rng(SEED).integers(0, samples, (resamples, samples))


def resampled(of: Callable[[Any], float], rows: Any, resamples: int) -> Interval:
    """The interval of one model's figure."""
    values = [of(rows[index]) for index in draws(len(rows), resamples)]
    return _percentiles(values)


def resampled_difference(of: Callable[[Any], float], rows: Any, other: Any, resamples: int) -> Interval:
    """The interval of ``of(rows) − of(other)``, both resampled alike."""
    values = [of(rows[index]) - of(other[index]) for index in draws(len(rows), resamples)]
    return _percentiles(values)


def median_interval(values: npt.ArrayLike, resamples: int = 2000) -> Interval:
    """The interval of a median."""
    array = np.asarray(values, np.float64)
    medians = np.median(array[draws(len(array), resamples)], axis=1)
    return _percentiles(medians)


def _percentiles(values: npt.ArrayLike) -> Interval:
    """Percentiles of what is a number; infinities and NaN come from resamples that say nothing."""
    array = np.asarray(values, np.float64)
    finite = array[np.isfinite(array)]
    if not finite.size:
        return Interval(math.nan, math.nan, "bootstrap")
    low, high = np.percentile(finite, [2.5, 97.5])
    return Interval(float(low), float(high), "bootstrap")
