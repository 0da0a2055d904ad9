"""Counting how many values lie in each bin ``[k w, (k + 1) w)`` of a width ``w = 2**e``.

Raising the counts takes longer than everything before it. So values are worked on in portions that stay in
the cache, in arrays that are used again, bins are numbered in 16 bits first, and the counts of all samples
are raised in place. A count that is raised twice in a row waits for itself, and after a Relu many values are
zero: those of the bin at zero are spread over many counts, which are added up when the counts are read.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]

SIDE_BITS = 12
SIDE = 1 << SIDE_BITS  # bins on either side of zero
PORTION = 1 << 16  # values worked on at a time, so that they stay in the cache
_SPREAD = 1 << 9  # counts that the values of the bin at zero are spread over


class _Buffers(threading.local):
    """Arrays for one portion; each thread has its own."""

    def __init__(self) -> None:
        self.scaled = np.empty(PORTION, np.float32)
        self.short = np.empty(PORTION, np.uint16)
        self.index = np.empty(PORTION, np.intp)
        self.spread = (SIDE - 1 + np.arange(PORTION) % _SPREAD).astype(np.uint16)


_buffers = _Buffers()


def no_counts() -> Counts:
    """Return counts of nothing: the bins ``-SIDE … SIDE - 1``, and those that bin 0 is spread over."""
    return np.zeros(2 * SIDE + _SPREAD, np.int64)


def gathered(counts: Counts) -> Counts:
    """Return the counts of the bins ``-SIDE … SIDE - 1``; what bin 0 was spread over is added to it."""
    bins, spread = counts[: 2 * SIDE], counts[2 * SIDE :]
    bins[SIDE] += spread.sum()
    spread[:] = 0
    return bins


def count(counts: Counts, values: Array, exponent: int) -> None:
    """Raise the counts by at most ``PORTION`` values.

    Where float32 would not be exact float64 is used, in which tiny negative values keep their side.
    """
    if not _is_single(values, exponent):
        near = np.floor(np.ldexp(values.astype(np.float64), -exponent))
        near[(values < 0) & (near == 0)] = -1
        np.add(near, SIDE, out=near)
        np.add.at(counts, near.astype(np.intp), 1)
        return
    scaled = np.multiply(values, _scale(exponent), out=_buffers.scaled[: values.size])
    np.floor(scaled, out=scaled)
    short = _buffers.short[: values.size]
    np.copyto(short.view(np.int16), scaled, casting="unsafe")
    np.add(short, SIDE, out=short)
    _raise(counts, short)


def count_not_negative(counts: Counts, values: Array, exponent: int) -> None:
    """Raise the counts by values none of which is negative, without rounding down."""
    if not _is_single(values, exponent):
        near = np.ldexp(values.astype(np.float64), -exponent)
        np.add.at(counts[SIDE:], near.astype(np.intp), 1)
        return
    scaled = np.multiply(values, _scale(exponent), out=_buffers.scaled[: values.size])
    short = _buffers.short[: values.size]
    np.copyto(short, scaled, casting="unsafe")
    np.subtract(short, 1, out=short)  # bin 0 is the largest number now, …
    np.minimum(short, _buffers.spread[: values.size], out=short)  # … and then one of many behind the others
    _raise(counts[SIDE + 1 :], short)


def _raise(counts: Counts, short: Array) -> None:
    index = _buffers.index[: short.size]
    np.copyto(index, short)
    np.add.at(counts, index, 1)


def _is_single(values: Array, exponent: int) -> bool:
    """Return whether scaling by the width is exact in float32: nothing overflows or underflows."""
    return values.dtype == np.float32 and -126 <= exponent <= 0


def _scale(exponent: int) -> np.float32:
    return np.float32(math.ldexp(1.0, -exponent))
