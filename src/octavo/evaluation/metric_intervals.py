"""95 % confidence intervals, for one model and for the difference of two models on the same samples.

A share of correct answers has closed forms: Wilson's interval for one model; for the difference of two, the
adjusted interval of Agresti and Min with half a count added to each of the four cells, and McNemar's exact
test. ``b`` and ``c`` count the samples that only one of the two models answers correctly:

    difference = (b − c) / (n + 2)   ± z √(b + c + 1 − (b − c)² / (n + 2)) / (n + 2)

Every other metric is resampled: samples are drawn with replacement, the same draws for both models, and the
2.5th and 97.5th percentiles are taken. The seed is fixed, so an interval is as reproducible as its metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.core.intervals import Z_95, draws, wilson


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval and how it was found; ``p_value`` where there is an exact test."""

    low: float
    high: float
    method: str
    p_value: float | None = None


def share(correct: npt.NDArray[np.bool_]) -> Interval:
    """Return Wilson's interval for a share of correct answers."""
    return Interval(*wilson(float(np.mean(correct)), len(correct)), "wilson")


def share_difference(correct: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> Interval:
    """Return the interval of ``mean(correct) − mean(other)`` on the same samples, and McNemar's p-value."""
    n = len(correct)
    only, only_other = int(np.sum(correct & ~other)), int(np.sum(other & ~correct))
    centre = (only - only_other) / (n + 2)
    spread = only + only_other + 1 - (only - only_other) ** 2 / (n + 2)
    half = Z_95 * math.sqrt(max(0.0, spread)) / (n + 2)
    return Interval(centre - half, centre + half, "agresti-min", mcnemar(only, only_other))


def mcnemar(only: int, only_other: int) -> float:
    """Return the chance of a split as uneven as this one if both models were equally good (two-sided)."""
    n, k = only + only_other, min(only, only_other)
    if n == 0:
        return 1.0
    logs = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2)
        for i in range(k + 1)
    ]
    return min(1.0, 2 * math.fsum(math.exp(log) for log in logs))


def resampled(compute: Callable[[Any], float], rows: Any, resamples: int) -> Interval:
    """Return the interval of one model's metric."""
    return _percentiles([compute(rows[index]) for index in draws(len(rows), resamples)])


def resampled_difference(compute: Callable[[Any], float], rows: Any, other: Any, resamples: int) -> Interval:
    """Return the interval of ``compute(rows) − compute(other)``, both with the same draws."""
    return _percentiles(
        [compute(rows[index]) - compute(other[index]) for index in draws(len(rows), resamples)]
    )


def median_interval(values: npt.ArrayLike) -> Interval:
    """Return the interval of a median."""
    array = np.asarray(values, np.float64)
    return _percentiles(np.median(array[draws(len(array), 2000)], axis=1))


def _percentiles(values: npt.ArrayLike) -> Interval:
    """Return percentiles of the finite values: a resample that gives infinity or NaN says nothing."""
    array = np.asarray(values, np.float64)
    finite = array[np.isfinite(array)]
    if not finite.size:
        return Interval(math.nan, math.nan, "bootstrap")
    low, high = np.percentile(finite, [2.5, 97.5])
    return Interval(float(low), float(high), "bootstrap")
