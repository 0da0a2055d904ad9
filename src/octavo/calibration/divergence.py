"""How far one distribution lies from another: relative entropy, and smoothing that keeps it finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


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
