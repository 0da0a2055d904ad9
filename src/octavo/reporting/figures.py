"""Numbers as every verb, table and page writes them.

===================  ==========================  =====================================
a share              ``45.1 %``                  accuracy, mAP, agreement
a difference of it   ``−0.3 points ± 0.4``       with its 95 % confidence interval
SQNR                 ``22.5 dB``                 ``exact`` without any error
speed                ``1.85 × (1.80 … 1.91)``    with its 95 % confidence interval
a time               ``1.24 ms``
another metric       ``0.8672``                  four digits
===================  ==========================  =====================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo.core.intervals import wilson_half_width

NONE = "–"  # stands for a number that there is not


def number(value: Any) -> float | None:
    """Return a number, also one that JSON had to write as a word; None for anything else."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def share_text(value: Any) -> str:
    """Return a share in percent with one decimal: ``45.1 %``."""
    found = number(value)
    return NONE if found is None or not math.isfinite(found) else f"{100 * found:.1f} %"


def counted_share_text(value: Any, count: int) -> str:
    """Return a share that was counted in ``count`` samples, with its 95 % interval: ``66.7 % ± 29.9``."""
    found = number(value)
    if found is None or not math.isfinite(found) or count < 1:
        return share_text(value)
    return f"{share_text(found)} ± {100 * wilson_half_width(found, count):.1f}"


def decibels_text(value: Any, unit: str = " dB") -> str:
    """Return an SQNR: ``22.5 dB``, or ``exact`` where there is no error."""
    found = number(value)
    if found is None or math.isnan(found):
        return NONE
    return "exact" if found == math.inf else f"{found:.1f}{unit}"


_WIDEST_RATIO = 1.65  # upper by lower end of an interval of speed, beyond which it says nothing


def speed_text(ratio: Mapping[str, Any] | None, words: str = "") -> str:
    """Return how many times as fast, with its interval: ``1.85 × (1.80 … 1.91)``.

    An interval so wide that it does not tell fast from slow is not shown as if it did.
    """
    if not ratio:
        return NONE
    if not 0 < ratio["high"] <= ratio["low"] * _WIDEST_RATIO:
        return f"about {ratio['value']:.1f} ×{words}, uncertain"
    return f"{ratio['value']:.2f} ×{words} ({ratio['low']:.2f} … {ratio['high']:.2f})"


def time_text(seconds: float | None) -> str:
    """Return a time: ``1.24 ms``, ``85 µs``, ``2.1 s``."""
    if seconds is None:
        return NONE
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e3)) if seconds * s >= 1), ("µs", 1e6))
    value = seconds * scale
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def metric_text(name: str, value: Any, percent: bool) -> str:
    """Return a metric in its unit: a share in percent, an SQNR in dB, another number in four digits."""
    found = number(value)
    if percent:
        return share_text(found)
    if found is None or math.isnan(found):
        return NONE
    if is_decibels(name):
        return decibels_text(found)
    return ("∞" if found > 0 else "−∞") if math.isinf(found) else f"{found:.4g}"


def metric_title(name: str) -> str:
    """Return the name of a metric for people: ``SQNR`` for ``sqnr_db``."""
    return "SQNR" if name == "sqnr_db" else name


def is_decibels(name: str) -> bool:
    """Return whether a metric is in dB, by its name."""
    return name.endswith("_db")


def interval_text(score: Mapping[str, Any]) -> str:
    """Return the 95 % interval of a score without its unit: ``44.0 … 46.2``."""
    texts = [metric_text(score["name"], score[key], bool(score["percent"])) for key in ("low", "high")]
    if NONE in texts:
        return NONE
    return " … ".join(text.removesuffix(" %").removesuffix(" dB") for text in texts)


_SKEWED = 0.2  # of half an interval that its middle may lie beside the value, for ± to be fair


def difference_text(difference: Mapping[str, Any], percent: bool) -> str:
    """Return a difference with half the width of its interval: ``−0.3 points ± 0.4``.

    Of an interval that reaches much further on one side, as resampling may give, both ends are told.
    """
    value, half = number(difference["value"]), number(difference["half_width"])
    if value is None or half is None or not math.isfinite(value):
        return NONE
    low, high = number(difference.get("low")), number(difference.get("high"))
    if low is not None and high is not None and abs((low + high) / 2 - value) > _SKEWED * half:
        factor, form, unit = 1.0, ".3g", ""
        if percent:
            factor, form, unit = 100.0, ".1f", " points"
        elif is_decibels(str(difference["name"])):
            form, unit = ".1f", " dB"
        told, *ends = (signed(factor * one, form) for one in (value, low, high))
        return f"{told}{unit} ({' … '.join(ends)})"
    if percent:
        digits = 1 if 100 * half >= 0.1 else 2
        return f"{signed(100 * value, f'.{digits}f')} points ± {100 * half:.{digits}f}"
    if is_decibels(str(difference["name"])):
        return f"{signed(value, '.1f')} dB ± {half:.1f}"
    return f"{signed(value, '.4g')} ± {half:.2g}"


def signed(value: float, form: str) -> str:
    """Return a number with its sign; zero has none."""
    text = format(abs(value), form)
    if float(text) == 0.0:
        return text
    return f"{'−' if value < 0 else '+'}{text}"
