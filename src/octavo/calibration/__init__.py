"""Calibration: run a model on samples, record statistics of its tensors, and compute ranges from them.

``collect`` makes :class:`~octavo.core.stats.Stats` in one pass (states of :mod:`.observers`); ``ranges``
reads them with the method of each tensor's scheme (:mod:`.methods`), as often as one likes.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.calibration.gather import gather
from octavo.calibration.methods import need_of, read
from octavo.calibration.methods.spread import narrow_ranges, narrow_ranges_note
from octavo.calibration.observe.collect import collect
from octavo.calibration.observe.sampling import sampled
from octavo.calibration.saved import check_requests
from octavo.calibration.statistics import KINDS
from octavo.core.scheme import Scheme
from octavo.core.stats import Range, Stats

__all__ = [
    "check_requests",
    "collect",
    "gather",
    "load_stats",
    "narrow_ranges",
    "narrow_ranges_note",
    "need_of",
    "ranges",
    "read",
    "sampled",
    "unusable",
]


def ranges(stats: Stats, wanted: Mapping[str, Scheme]) -> dict[str, Range]:
    """Return the range of each tensor by its scheme's method, except those that :func:`unusable` lists."""
    without = unusable(stats, wanted)
    return {tensor: read(stats[tensor], scheme) for tensor, scheme in wanted.items() if tensor not in without}


def unusable(stats: Stats, wanted: Mapping[str, Scheme]) -> dict[str, str]:
    """Return the tensors that have no range, and why."""
    found: dict[str, str] = {}
    for tensor in wanted:
        if tensor not in stats:
            found[tensor] = f"it had no value in any of the {stats.samples} calibration samples"
        elif stats[tensor].non_finite:
            found[tensor] = "it had infinite values in calibration"
    return found


def load_stats(data: bytes) -> Stats:
    """Return the statistics that :meth:`~octavo.core.stats.Stats.to_bytes` gave."""
    return Stats.from_bytes(data, KINDS)
