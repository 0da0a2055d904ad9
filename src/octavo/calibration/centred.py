"""Histograms centred on zero, and the distance between two, as other tools exchange them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.calibration.methods.entropy import best_threshold
from octavo.calibration.methods.spread import within
from octavo.calibration.statistics import HistogramState
from octavo.core.stats import Range

# ---- How far one distribution lies from another: relative entropy, and smoothing that keeps it finite


def smooth_distribution(p: npt.ArrayLike, eps: float = 0.0001) -> npt.NDArray[np.float32] | None:
    """Give each zero the weight ``eps``, taken in equal parts from what is not zero.

    None where nothing is left to take from: no count at all, or too little of it.
    """
    counts = np.asarray(p, np.float64)
    empty = counts == 0
    filled = int(counts.size - np.count_nonzero(empty))
    if not filled:
        return None
    taken = eps * np.count_nonzero(empty) / filled
    smooth = np.where(empty, eps, counts - taken)
    return smooth.astype(np.float32) if bool(np.all(smooth > 0)) else None


def rel_entr(pk: npt.ArrayLike, qk: npt.ArrayLike) -> Array:
    """Return ``p ln(p / q)`` element by element: 0 where p is 0, infinite where q is or one is negative."""
    p, q = np.asarray(pk), np.asarray(qk)
    with np.errstate(divide="ignore", invalid="ignore"):
        defined = np.where((p > 0) & (q > 0), p * np.log(p / q), np.inf)
    return np.where((p == 0) & (q >= 0), 0.0, defined).astype(np.result_type(p, q, np.float32))


def entropy(pk: npt.ArrayLike, qk: npt.ArrayLike, base: float | None = None, axis: int = 0) -> Array:
    """Return the Kullback-Leibler divergence of two distributions, which need not be normalised."""
    p, q = (np.asarray(v, np.float64) for v in (pk, qk))
    parts = rel_entr(p / p.sum(axis=axis, keepdims=True), q / q.sum(axis=axis, keepdims=True))
    total = np.sum(parts, axis=axis)
    return np.asarray(total if base is None else total / np.log(base))


# ---- Histograms centred on zero, ``(counts, edges, low, high, threshold)``, as other tools exchange them
#
# Bins are equally wide and lie on either side of zero up to the threshold. There are never more than
# ``MAX_BINS``: where values far beyond the threshold come, pairs of bins are added up instead of appending
# bins without end.

Array: TypeAlias = npt.NDArray[Any]
Centred: TypeAlias = tuple[Array, Array, float, float, float]

MAX_BINS = 1 << 13  # 64 KiB of counts


def centred(state: HistogramState, bins: int) -> Centred:
    """Return a state's counts in at most this many bins (at least two), as many on either side of zero."""
    first, counts = state.bins()
    side = max(first + len(counts), -first, 1)
    whole = np.zeros(2 * side, np.int64)
    whole[side + first : side + first + len(counts)] = counts
    width = state.width
    while len(whole) > max(bins, 2):
        whole, width = _halved(whole), 2.0 * width
    side = len(whole) // 2
    return whole, np.arange(-side, side + 1) * width, state.low, state.high, side * width


def _halved(counts: Array) -> Array:
    """Return pairs of bins added up, with those on either side of zero kept apart."""
    if len(counts) // 2 % 2:
        counts = np.concatenate([[0], counts, [0]])
    return np.asarray(counts.reshape(-1, 2).sum(axis=1))


def merge(old: Centred, values: Array, low: float, high: float, threshold: float) -> Centred:
    """Return a histogram with more values counted in; ``low``, ``high`` and ``threshold`` are theirs."""
    counts, edges, old_low, old_high, top = old
    width = (float(edges[-1]) - float(edges[0])) / len(counts)
    more = max(0, int(np.ceil((threshold - top) / width - 1e-9))) if width else 0
    while len(counts) + 2 * more > MAX_BINS and len(counts) % 2 == 0:
        counts = _halved(counts)
        width *= 2.0
        top = len(counts) // 2 * width
        more = max(0, int(np.ceil((threshold - top) / width - 1e-9)))
    wide = np.pad(counts, more)
    limit = len(wide) / 2 * width
    added, edges = np.histogram(values, len(wide), range=(-limit, limit))
    return wide + added, edges, min(old_low, low), max(old_high, high), limit


def threshold(histogram: Centred, levels: int) -> Range:
    """Return the range whose quantized histogram diverges least; ``levels`` counts both sides of zero."""
    counts, edges, low, high, _ = histogram
    side = len(counts) // 2
    width = (float(edges[-1]) - float(edges[0])) / len(counts)
    folded = (counts[len(counts) - side :] + counts[:side][::-1]).astype(np.float64)
    half = max(levels // 2, 1)
    if len(folded) <= half or not folded.sum():
        return Range(float(low), float(high))
    step = (max(float(high), 0.0) - min(float(low), 0.0)) / 255.0
    top = best_threshold(folded, width, half, step)
    return within(-top, top, float(low), float(high))
