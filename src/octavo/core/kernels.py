"""Quantize, dequantize and pack arrays, whole: no loop over elements, channels or blocks.

``quantize`` rounds half to even after dividing in the tensor's own precision, as the ONNX operator
does (NaN becomes the lowest integer, as there); an int32 bias, for which there is no such operator, is
divided in float64. ``dequantize`` multiplies in the scale's precision. Arrays go through in slabs: what
is at work stays in the cache, and temporaries stay small beside a memory-mapped source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.core.granularity import (
    Granularity,
    PerBlock,
    PerTensor,
    Shape,
    checked,
    normal_axis,
    parameter_shape,
    spread,
)
from octavo.core.qparams import QParams
from octavo.core.qtypes import FLOAT8_MAX, QType

Array = npt.NDArray[Any]
SLAB = 1 << 18  # elements handled at a time: one megabyte of float32


def quantize(x: Array, params: QParams, *, limits: tuple[int, int] | None = None) -> Array:
    """Return the array in the quantized type; ``limits`` narrows the integers (symmetric, reduced range)."""
    x = np.asarray(x)
    kind = params.qtype
    wide = np.float64 if kind.bits == 32 else _wide_type(x.dtype)
    out = np.empty(x.shape, kind.dtype)
    scale, zero = params.scale.astype(wide), params.zero_point.astype(wide)
    low, high = limits or (kind.qmin, kind.qmax)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for real, stored, s, z in _slabs(params.granularity, [x, _as_bytes(out, kind)], [scale, zero]):
            steps = np.asarray(real.astype(wide, copy=False) / s)
            if kind.is_float:
                stored[...] = np.clip(steps, -FLOAT8_MAX, FLOAT8_MAX, out=steps)
                continue
            np.rint(steps, out=steps)
            steps += z
            np.clip(steps, wide(low), wide(high), out=steps)  # six times as fast as fmax and minimum
            if np.isnan(steps.min()):
                np.fmax(steps, wide(low), out=steps)
            stored[...] = steps
    return out


def dequantize(q: Array, params: QParams) -> Array:
    """``scale * (q - zero_point)`` in the scale's float type."""
    q = np.asarray(q)
    kind = params.qtype
    wide = _wide_type(params.scale.dtype)
    exact = np.float64 if kind.bits == 32 else wide  # float32 holds every difference of 16-bit integers
    out = np.empty(q.shape, params.scale.dtype)
    scale, zero = params.scale.astype(wide), params.zero_point.astype(exact)
    for stored, real, s, z in _slabs(params.granularity, [q, out], [scale, zero]):
        real[...] = (stored.astype(exact) - z).astype(wide, copy=False) * s
    return out


def fake_quantize(x: Array, params: QParams, *, limits: tuple[int, int] | None = None) -> Array:
    """Return the array after a round trip through the quantized type."""
    return dequantize(quantize(x, params, limits=limits), params)


def extremes(x: Array, granularity: Granularity) -> tuple[Array, Array]:
    """Minimum and maximum for each scale that the tensor will have, in float64; NaN where there is one."""
    x = np.asarray(x)
    shape = parameter_shape(x.shape, granularity)
    if x.size == 0:
        return np.zeros(shape), np.zeros(shape)
    if not shape and x.size <= SLAB:
        wide = x.astype(_wide_type(x.dtype), copy=False)
        return np.asarray(wide.min(), np.float64), np.asarray(wide.max(), np.float64)
    lows, highs = np.full(shape, np.inf), np.full(shape, -np.inf)
    for real, low, high in _slabs(granularity, [x], [lows, highs]):
        wide = real.astype(_wide_type(real.dtype), copy=False)
        over = tuple(i for i, n in enumerate(low.shape) if n == 1) if low.ndim else None
        if over == (wide.ndim - 1,) and wide.shape[-1] < 128:  # numpy is slow to reduce many short rows
            wide, over = np.ascontiguousarray(np.moveaxis(wide, -1, 0)), (0,)
        np.minimum(low, wide.min(axis=over).reshape(low.shape), out=low)
        np.maximum(high, wide.max(axis=over).reshape(low.shape), out=high)
    return lows, highs


def slabs(shape: Shape, size: int = SLAB) -> Iterator[tuple[slice, ...]]:
    """Slices, of the leading axes, that hold at most ``size`` elements each and together all of them."""
    count = math.prod(shape)
    if count <= size:
        yield ()
        return
    step = max(1, size * shape[0] // count)
    for start in range(0, shape[0], step):
        for rest in slabs(shape[1:], size):
            yield (slice(start, min(start + step, shape[0])), *rest)


def _slabs(granularity: Granularity, tensors: list[Array], params: list[Array]) -> Iterator[list[Array]]:
    """Views of tensors of one shape and of their parameters, slab by slab, that broadcast together.

    A blocked axis is split into (blocks, size), so that parameters are never repeated in memory; a last,
    shorter block comes by itself.
    """
    for group in _groups(granularity, tensors, params):
        if 0 < group[0].size <= SLAB:
            yield group
        elif group[0].size:
            for part in slabs(group[0].shape):
                yield [_cut(array, part) for array in group]


def _groups(granularity: Granularity, tensors: list[Array], params: list[Array]) -> list[list[Array]]:
    shape = tensors[0].shape
    if isinstance(granularity, PerTensor) and not any(p.ndim for p in params):
        return [[*tensors, *params]]
    if not isinstance(granularity, PerBlock):
        return [[*tensors, *(spread(p, shape, granularity) for p in params)]]
    axis = normal_axis(granularity.axis, len(shape))
    size = min(granularity.size, max(shape[axis], 1))  # a longer block is the whole axis
    whole = shape[axis] // size
    data = [np.split(t, [whole * size], axis) for t in tensors]
    numbers = [
        np.split(np.expand_dims(checked(p, shape, granularity), axis + 1), [whole], axis) for p in params
    ]
    return [
        [*(blocked(t[0], size, axis) for t in data), *(p[0] for p in numbers)],
        [*(np.expand_dims(t[1], axis) for t in data), *(p[1] for p in numbers)],
    ]


def _cut(array: Array, part: tuple[slice, ...]) -> Array:
    """Return what belongs to a slab: an axis along which the array is broadcast is never cut."""
    if not array.ndim:
        return array
    return array[tuple(s if n > 1 else slice(None) for s, n in zip(part, array.shape, strict=False))]


def _wide_type(dtype: np.dtype[Any]) -> type[np.float32] | type[np.float64]:
    """float16 and bfloat16 are computed in float32, everything else in its own precision."""
    return np.float64 if dtype == np.float64 else np.float32


def _as_bytes(q: Array, kind: QType) -> Array:
    """4-bit types lie in a byte each, and numpy converts to bytes much faster."""
    return q.view(np.int8 if kind.signed else np.uint8) if kind.bits < 8 else q


def blocked(x: Array, size: int, axis: int) -> Array:
    """Split ``axis`` into (blocks, size); a last, shorter block is filled with its edge value.

    A view wherever ``size`` divides.
    """
    short = -x.shape[axis] % size
    if short:
        widths = [(0, short if i == axis else 0) for i in range(x.ndim)]
        x = np.pad(x, widths, mode="edge")
    return x.reshape(*x.shape[:axis], x.shape[axis] // size, size, *x.shape[axis + 1 :])


def pack_flat(q: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Pack values of 2 or 4 bits into bytes, the first in the lowest bits; zeros fill the last byte."""
    flat = q.reshape(-1)
    flat = (flat if flat.dtype.itemsize == 1 else flat.astype(np.int8)).view(np.uint8) & ((1 << bits) - 1)
    each = 8 // bits
    packed = np.zeros(-(-flat.size // each), np.uint8)
    for position in range(each):
        part = flat[position::each]
        packed[: part.size] |= part << (position * bits)
    return packed


def pack(q: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Pack values of 2, 4 or 8 bits into bytes, each row of the last axis by itself."""
    if bits == 8:
        return np.ascontiguousarray(q).view(np.uint8)
    each = 8 // bits
    short = -q.shape[-1] % each
    if short:
        q = np.pad(q, [(0, 0)] * (q.ndim - 1) + [(0, short)])
    return pack_flat(q, bits).reshape(*q.shape[:-1], q.shape[-1] // each)


def unpack(packed: npt.NDArray[np.uint8], bits: int, count: int) -> npt.NDArray[np.uint8]:
    """Return the first ``count`` unsigned values of 2, 4 or 8 bits in packed bytes."""
    packed, each = packed.reshape(-1), 8 // bits
    values = np.empty(packed.size * each, np.uint8)
    for position in range(each):
        values[position::each] = packed >> (position * bits) & ((1 << bits) - 1)
    return values[:count]
