"""Histograms small enough for a page: at most 128 bins, from calibration or from a weight."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.calibration.statistics.combined import first_of
from octavo.calibration.statistics.histograms import HistogramState
from octavo.core.granularity import PerBlock, PerChannel
from octavo.core.qparams import QParams
from octavo.core.stats import State

BINS = 128  # as many as a chart on the page has pixels to show
MAX_VALUES = 1 << 18  # of a weight that are counted; of a larger one, evenly spaced values

Histogram = dict[str, Any]


def of_state(state: State) -> Histogram | None:
    """Return what calibration counted; None where it kept only the extremes."""
    first = first_of(state)
    if not isinstance(first, HistogramState) or not first.total:
        return None
    start, counts = first.bins()
    joined = max(1, 1 << math.ceil(math.log2(len(counts) / (BINS - 1)))) if len(counts) >= BINS else 1
    offset = start % joined
    padded = np.zeros(-(-(offset + len(counts)) // joined) * joined, np.int64)
    padded[offset : offset + len(counts)] = counts
    wide = padded.reshape(-1, joined).sum(axis=1)
    return _plain((start - offset) * first.width, first.width * joined, wide)


def of_values(values: npt.NDArray[Any]) -> Histogram | None:
    """Return the histogram of an array's finite values."""
    flat = np.asarray(values, np.float64).reshape(-1)
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return None
    low, high = float(flat.min()), float(flat.max())
    if low == high:
        width = abs(low) / 64 or 1 / 64
        return _plain(low - width / 2, width, np.array([flat.size]))
    counts, edges = np.histogram(flat, bins=BINS, range=(low, high))
    return _plain(low, float(edges[1] - edges[0]), counts)


def of_weight(stored: npt.NDArray[Any], params: QParams) -> Histogram | None:
    """Return the histogram of the real values of a quantized weight."""
    return of_values(real_values(stored, params)) if stored.size else None


def real_values(stored: npt.NDArray[Any], params: QParams) -> npt.NDArray[np.float64]:
    """Return ``scale (q − zero point)`` at evenly spaced positions of a weight, at all if it is small."""
    flat = np.arange(0, stored.size, -(-stored.size // MAX_VALUES) or 1)
    at = list(np.unravel_index(flat, stored.shape))
    integers = stored[tuple(at)].astype(np.float64)
    scale, zero = params.scale.astype(np.float64), params.zero_point.astype(np.float64)
    match params.granularity:
        case PerChannel(axis) if scale.size > 1:
            place: tuple[Any, ...] = (at[axis or 0],)
        case PerBlock(size, axis) if scale.size > 1:
            at[axis or 0] = at[axis or 0] // size
            place = tuple(at)
        case _:
            place, scale, zero = (0,), scale.reshape(-1), zero.reshape(-1)
    return np.asarray((integers - (zero[place] if zero.size > 1 else zero.reshape(-1)[0])) * scale[place])


def _plain(low: float, width: float, counts: npt.NDArray[Any]) -> Histogram:
    return {"low": low, "width": width, "counts": [int(count) for count in counts]}
