"""From a range to scale and zero point: the only place where that is computed.

With integer limits ``qmin, qmax`` and a range ``[a, b]`` widened to hold zero::

    asymmetric   scale = (b - a) / (qmax - qmin)          zero_point = round(qmin - a / scale)
    symmetric    m = max(|a|, |b|); scale = 2 m / (qmax - qmin)   zero_point = round((qmin + qmax) / 2)
    restricted   zero_point = qmin where a = 0, else the middle; scale = the least that holds a and b
    float8       scale = std(values) / std(all finite float8 values)     zero_point = 0
    bias         scale = x_scale * w_scale                zero_point = 0, int32

All in float64, cast once to the tensor's float type. Zero is always exactly representable. A scale
below the smallest normal number of that type is no scale: it becomes 1, with zero point 0.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from octavo.core.granularity import PerChannel, PerTensor
from octavo.core.qparams import QParams
from octavo.core.qtypes import FLOAT8E4M3FN, INT32, QType
from octavo.core.scheme import Scheme
from octavo.errors import DataError, RecipeError

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
_finfo: Any = ml_dtypes.finfo  # unlike numpy's, it knows bfloat16


@cache
def _float_limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the smallest normal and the largest number of a float type."""
    info = _finfo(dtype)
    return float(info.tiny), float(info.max)


def from_range(
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    scheme: Scheme,
    dtype: npt.DTypeLike = np.float32,
    *,
    limits: tuple[int, int] | None = None,
) -> QParams:
    """Return scale and zero point of a tensor with values in ``[low, high]`` (arrays per channel or block).

    ``limits`` are the integers to use instead of those that the scheme allows.
    """
    a, b = widened(np.asarray(low, np.float64), np.asarray(high, np.float64), scheme.min_range)
    qmin, qmax = limits or scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
    if scheme.symmetric:
        top = np.maximum(np.abs(a), np.abs(b))
        a, b = -top, top
    if scheme.restricted and not scheme.symmetric:
        return _cast(*_restricted(a, b, qmin, qmax), scheme, dtype)
    with np.errstate(over="ignore"):
        scale = (b - a) / np.float64(qmax - qmin)
    if scheme.symmetric:
        zero = np.full(np.shape(scale), np.rint((qmin + qmax) / 2.0))
    else:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            zero = np.clip(np.rint(qmin - a / scale), qmin, qmax)
    return _cast(scale, zero, scheme, dtype)


def from_ranges(low: npt.ArrayLike, high: npt.ArrayLike, scheme: Scheme) -> list[QParams]:
    """Return what :func:`from_range` gives for each of many tensors that have one scheme, per tensor."""
    whole = from_range(low, high, replace(scheme, granularity=PerChannel(0)))
    return [
        QParams(whole.scale[i, ...], whole.zero_point[i, ...], whole.qtype, scheme.granularity)
        for i in range(len(whole.scale))
    ]


def widened(low: F64, high: F64, min_range: float | None) -> tuple[F64, F64]:
    """Return the range with zero inside it, and at least ``min_range`` wide."""
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise DataError("A range is not finite: NaN or infinity reached a scale. Check the calibration data.")
    if np.any(low > high):
        worst = np.argmax(low - high)
        ends = [float(np.broadcast_to(v, np.shape(low - high)).flat[worst]) for v in (low, high)]
        raise DataError(f"A range goes from {ends[0]:g} down to {ends[1]:g}; give the smaller number first.")
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    if min_range is not None:
        high = np.maximum(high, low + min_range)
    return low, high


def _restricted(a: F64, b: F64, qmin: int, qmax: int) -> tuple[F64, F64]:
    """Zero point at qmin where nothing is negative, else at the middle; the scale follows from it."""
    middle = np.float64((qmin + qmax + 1) // 2)
    one_sided = a >= 0
    centred = np.maximum(-a / (middle - qmin), b / (qmax - middle))
    scale = np.where(one_sided, b / np.float64(qmax - qmin), centred)
    return scale, np.where(one_sided, np.float64(qmin), middle)


def _cast(scale: F64, zero: F64, scheme: Scheme, dtype: npt.DTypeLike) -> QParams:
    """Return the parameters in the types in which they are stored; what is too small for a scale is none."""
    scale, zero = np.asarray(scale), np.asarray(zero)
    if isinstance(scheme.granularity, PerTensor):
        if scale.size != 1:
            raise RecipeError(
                f"{scale.size} ranges were given for a tensor that is quantized per tensor; give one range,"
                " or choose the granularity channel:AXIS."
            )
        scale, zero = scale.reshape(()), zero.reshape(())
    dtype = np.dtype(dtype)
    tiny, largest = _float_limits(dtype)
    dead = ~(scale >= tiny)
    scale = np.where(dead, 1.0, np.minimum(scale, largest))
    zero = np.where(dead, 0.0, zero)
    return QParams(
        scale=scale.astype(dtype),
        zero_point=zero.astype(np.int64).astype(scheme.qtype.dtype),
        qtype=scheme.qtype,
        granularity=scheme.granularity,
    )


@cache
def float8_std() -> float:
    """Standard deviation of all finite float8 (e4m3fn) values."""
    every = np.arange(256, dtype=np.uint8).view(FLOAT8E4M3FN.dtype).astype(np.float64)
    return float(np.std(every[np.isfinite(every)]))


def from_std(std: npt.ArrayLike, scheme: Scheme, dtype: npt.DTypeLike = np.float32) -> QParams:
    """Return the scale of a float8 tensor from the standard deviation of its values."""
    spread = np.asarray(std, np.float64)
    if not np.all(np.isfinite(spread) & (spread >= 0)):
        raise DataError(
            "A standard deviation is not a finite number: NaN or infinity reached a scale. Check the "
            "calibration data."
        )
    scale = spread / float8_std()
    return _cast(scale, np.zeros_like(scale), scheme, dtype)


def bias_params(x: QParams, w: QParams) -> QParams:
    """Return the parameters of an int32 bias, whose scale is exactly that of the kernel's sums.

    The product is taken in float32, as the runtime takes it, so that its check of the bias scale is exact.
    """
    if w.scale.ndim > 1:
        raise RecipeError(
            f"A weight quantized per {w.granularity} has no single scale per output, so its bias can't be"
            " int32; leave the bias in float, or quantize the weight per channel."
        )
    dtype = w.scale.dtype
    product = np.atleast_1d(x.scale.astype(np.float32) * w.scale.astype(np.float32)).astype(dtype)
    scale = np.maximum(product, np.array(_finfo(dtype).smallest_subnormal, dtype))  # never zero, in float16
    if scale.size == 1:
        return QParams(scale.reshape(()), np.zeros((), np.int32), INT32, PerTensor())
    return QParams(scale, np.zeros(scale.shape, np.int32), INT32, PerChannel(0))


def least_weight_scale(bias: Array, x_scale: Array) -> F64:
    """Return the smallest weight scale at which this bias still fits int32: per element of the bias.

    ``|bias| / (x_scale * w_scale) <= 2**30``: the other half of int32 is left to the sum of products that the
    bias is added to, 30,000 of them at the least; the integer kernel does not notice an overflow. There is
    a little room for the rounding of both scales and of their product, which stays a normal number, since
    rounding has no bound below.
    """
    x = x_scale.astype(np.float64)
    room = 1.0 - 4.0 * float(_finfo(x_scale.dtype).eps)
    size = np.abs(bias.astype(np.float64))
    normal = np.where(size > 0, float(np.finfo(np.float32).tiny), 0.0)
    return np.asarray(np.maximum(size / 2**30, normal) / (x * room))


def narrowed(params: QParams, qtype: QType) -> QParams:
    """Return the same mapping in the other signedness of its width: zero points move by half the range."""
    if params.qtype == qtype:
        return params
    if params.qtype.bits != qtype.bits or params.qtype.is_float or qtype.is_float:
        raise RecipeError(
            f"{params.qtype} and {qtype} hold different numbers, so that no zero point maps one to the other;"
            " quantize again from float."
        )
    shift = qtype.qmin - params.qtype.qmin
    zero = (params.zero_point.astype(np.int64) + shift).astype(qtype.dtype)
    return QParams(params.scale, zero, qtype, params.granularity)
