"""Counting how many values lie in each bin ``[k w, (k + 1) w)`` of a width ``w = 2**e``.

Passes over the values take as long as the counting. So values are worked on in portions that stay in the
cache, in arrays that are used again, and bins are numbered in 16 bits before they are counted. A count that
is raised twice in a row waits for itself, and after a Relu many values are zero: those of the bin at zero are
spread over many counts, which are added up.
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
        self.spread = (SIDE + np.arange(PORTION) % _SPREAD).astype(np.uint16)


_buffers = _Buffers()


def binned(values: Array, exponent: int) -> Counts:
    """Count how many of at most ``PORTION`` values lie in each of the bins ``-SIDE … SIDE - 1``.

    Where float32 would not be exact float64 is used, in which tiny negative values keep their side.
    """
    if _is_single(values, exponent):
        scaled = np.multiply(values, _scale(exponent), out=_buffers.scaled[: values.size])
        np.floor(scaled, out=scaled)
        short = _buffers.short[: values.size]
        np.copyto(short.view(np.int16), scaled, casting="unsafe")
        np.add(short, SIDE, out=short)
        return _counted(short, 2 * SIDE)
    near = np.floor(np.ldexp(values.astype(np.float64), -exponent))
    near[(values < 0) & (near == 0)] = -1
    np.add(near, SIDE, out=near)
    return np.bincount(near.astype(np.intp), minlength=2 * SIDE)


def binned_above(values: Array, exponent: int) -> Counts:
    """Count values none of which is negative in the bins ``0 … SIDE - 1``, without rounding down."""
    if not _is_single(values, exponent):
        near = np.ldexp(values.astype(np.float64), -exponent)
        return np.bincount(near.astype(np.intp), minlength=SIDE)
    scaled = np.multiply(values, _scale(exponent), out=_buffers.scaled[: values.size])
    short = _buffers.short[: values.size]
    np.copyto(short, scaled, casting="unsafe")
    np.subtract(short, 1, out=short)  # bin 0 is the largest number now, …
    np.minimum(short, _buffers.spread[: values.size], out=short)  # … and then one of many behind the others
    found = _counted(short, SIDE + _SPREAD)
    return np.concatenate([found[SIDE:].sum(keepdims=True), found[: SIDE - 1]])


def _counted(short: Array, size: int) -> Counts:
    index = _buffers.index[: short.size]
    np.copyto(index, short)
    return np.bincount(index, minlength=size)


def _is_single(values: Array, exponent: int) -> bool:
    """Return whether scaling by the width is exact in float32: nothing overflows or underflows."""
    return values.dtype == np.float32 and -126 <= exponent <= 0


def _scale(exponent: int) -> np.float32:
    return np.float32(math.ldexp(1.0, -exponent))
