"""Scales, zero points and quantized arrays under their stock names; the core computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from octavo.core import affine, kernels
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.qparams import QParams
from octavo.core.qtypes import FLOAT8E4M3FN, INT8, INT16, INT32, QTYPES, UINT8, UINT16, QType
from octavo.core.scheme import Scheme
from octavo.quantization._types import QuantType
from octavo.quantization._values import QuantizationParams

Array = npt.NDArray[Any]
Tensors = list[TensorProto]


def qtype_of(quant_type: Any) -> QType:
    """Return the core's type for a TensorProto element type or a QuantType."""
    return QuantType.of(quant_type).qtype


def get_qmin_qmax_for_qType(  # noqa: N802
    qType: Any,  # noqa: N803
    reduce_range: bool = False,
    symmetric: bool = False,
) -> tuple[Array, Array]:
    """Return the smallest and the largest integer that is used of a type."""
    kind = qtype_of(qType)
    if kind.is_float:
        raise NotImplementedError(f"{kind} is a float type and has no integer limits.")
    low, high = kind.limits(symmetric=symmetric, reduced=reduce_range)
    return np.array(low, kind.dtype), np.array(high, kind.dtype)


def get_qrange_for_qType(qType: Any, reduce_range: bool = False, symmetric: bool = False) -> int:  # noqa: N802, N803
    """Return the number of steps between the smallest and the largest integer."""
    low, high = get_qmin_qmax_for_qType(qType, reduce_range, symmetric)
    return int(high) - int(low)


def _type_of_limits(qmin: Any, qmax: Any) -> QType:
    """Return the type that limits are of: that of the array, or the narrowest that holds plain integers."""
    dtype = getattr(qmin, "dtype", None)
    for kind in QTYPES.values():
        if dtype == kind.dtype:
            return kind
    for kind in (UINT8, INT8, UINT16, INT16):
        if kind.qmin <= int(qmin) and int(qmax) <= kind.qmax:
            return kind
    raise ValueError(f"No quantized type holds the integers from {qmin} to {qmax}.")


def _float_type(*values: Any) -> np.dtype[Any]:
    """Return the float type of the first array; plain numbers are float32."""
    for value in values:
        dtype = getattr(value, "dtype", None)
        if dtype is not None and dtype.kind in "fV":
            found: np.dtype[Any] = dtype
            return found
    return np.dtype(np.float32)


def _from_range(
    rmin: Any, rmax: Any, scheme: Scheme, limits: tuple[int, int] | None, dtype: np.dtype[Any]
) -> QParams:
    if np.size(rmin) > 1 or np.size(rmax) > 1:
        scheme = scheme.but(granularity=PerChannel(0))
    return affine.from_range(rmin, rmax, scheme, dtype, limits=limits)


def compute_scale_zp(
    rmin: Any, rmax: Any, qmin: Any, qmax: Any, symmetric: bool = False, min_real_range: float | None = None
) -> list[Array]:
    """``[zero point, scale]`` of a range and integer limits; arrays of ranges give arrays."""
    kind = _type_of_limits(qmin, qmax)
    scheme = Scheme(kind, symmetric=symmetric, min_range=min_real_range)
    found = _from_range(rmin, rmax, scheme, (int(qmin), int(qmax)), _float_type(rmin, rmax))
    return [found.zero_point, found.scale]


def snap_zero_point_to_uint8(
    rmin: Any, rmax: Any, qmin: int = 0, qmax: int = 255, min_real_range: float | None = None
) -> tuple[Array, Array]:
    """``(zero point, scale)`` with the zero point at ``qmin`` (nothing negative) or at the middle."""
    scheme = Scheme(UINT8, restricted=True, min_range=min_real_range)
    found = _from_range(rmin, rmax, scheme, (int(qmin), int(qmax)), _float_type(rmin, rmax))
    return found.zero_point, found.scale


def compute_scale_zp_float8(element_type: int, std: Any) -> list[Array]:
    """``[zero point, scale]`` of a float8 tensor from the standard deviation of its values."""
    if int(element_type) != FLOAT8E4M3FN.onnx:
        raise ValueError(
            f"Element type {element_type} is not float8e4m3fn, the only float8 type that is quantized to."
        )
    found = affine.from_std(np.max(std), Scheme(FLOAT8E4M3FN), _float_type(std))
    return [found.zero_point, found.scale]


def compute_scale_zp_blocked(
    weight: Array, quant_type: Any, axis: int, block_size: int, symmetric: bool
) -> tuple[Array, Array]:
    """Zero points and scales of a matrix quantized in blocks along an axis."""
    if weight.ndim != 2:
        raise NotImplementedError(
            f"Blocks are for matrices, and the weight has the shape {list(weight.shape)};"
            " quantize it per channel."
        )
    scheme = Scheme(qtype_of(quant_type), PerBlock(block_size, axis), symmetric)
    found = affine.from_range(*kernels.extremes(weight, scheme.granularity), scheme, weight.dtype)
    return found.zero_point, found.scale


def compute_data_quant_params(
    data: Array,
    quant_type: Any,
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: float | None = None,
    rmax_override: float | None = None,
) -> tuple[Array, Array]:
    """``(zero point, scale)`` for quantizing this array as a whole."""
    if not isinstance(data, np.ndarray):
        raise TypeError(f"Weights are given as an array, not as a {type(data).__name__}.")
    scheme = Scheme(
        qtype_of(quant_type), symmetric=symmetric, min_range=min_real_range, reduce_range=reduce_range
    )
    found = _of_data(data, scheme, rmin_override, rmax_override)
    return found.zero_point, found.scale


def _of_data(data: Array, scheme: Scheme, low: Any, high: Any) -> QParams:
    dtype = _float_type(data)
    if scheme.qtype.is_float:
        return affine.from_std(np.std(data.astype(np.float64)) if data.size else 0.0, scheme, dtype)
    found = kernels.extremes(data, PerTensor())
    return affine.from_range(
        found[0] if low is None else low, found[1] if high is None else high, scheme, dtype
    )


def quantize_data(
    data: Any,
    qType: Any,  # noqa: N803
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: float | None = None,
    rmax_override: float | None = None,
) -> tuple[Array, Array, Array]:
    """``(zero point, scale, quantized data)`` of an array as a whole."""
    kind = qtype_of(qType)
    array = np.asarray(data) if hasattr(data, "dtype") else np.asarray(data, np.float32)
    scheme = Scheme(kind, symmetric=symmetric, min_range=min_real_range, reduce_range=reduce_range)
    found = _of_data(array, scheme, rmin_override, rmax_override)
    limits = None if kind.is_float else kind.limits(symmetric=symmetric, reduced=reduce_range)
    return found.zero_point, found.scale, kernels.quantize(array, found, limits=limits)


def quantize_nparray(
    qType: Any,  # noqa: N803
    arr: Array,
    scale: Any,
    zero_point: Any,
    low: int | None = None,
    high: int | None = None,
) -> Array:
    """Return the array in a quantized type, within ``low`` and ``high`` where they are given."""
    kind = qtype_of(qType)
    params = _params(kind, scale, zero_point, PerTensor(), _float_type(scale, arr))
    if kind.is_float:
        return kernels.quantize(arr, params)
    limits = (kind.qmin if low is None else int(low), kind.qmax if high is None else int(high))
    return kernels.quantize(arr, params, limits=limits)


def _params(
    kind: QType, scale: Any, zero_point: Any, granularity: Granularity, dtype: np.dtype[Any]
) -> QParams:
    zero = np.asarray(zero_point)
    if zero.dtype != kind.dtype:
        zero = zero.astype(np.float32 if kind.is_float else np.int64).astype(kind.dtype)
    return QParams(np.asarray(scale, dtype), zero, kind, granularity)


def quantize_onnx_initializer(
    weight: TensorProto,
    quant_type: Any,
    zero_point: Array,
    scale: Array,
    axis: int | None = None,
    quant_weight_name: str | None = None,
    block_size: int = 0,
) -> TensorProto:
    """The initializer in a quantized type, per tensor, channel or block, under ``<name>_quantized``."""
    kind = qtype_of(quant_type)
    array = tensor_proto_to_array(weight)
    granularity: Granularity = PerTensor()
    if axis is not None:
        granularity = PerBlock(block_size, axis) if block_size else PerChannel(axis)
    params = _params(kind, scale, zero_point, granularity, _float_type(scale))
    stored = kernels.quantize(array, params)
    raw = kernels.pack_flat(stored, 4) if kind.bits == 4 else stored
    return onnx.TensorProto(
        name=quant_weight_name or f"{weight.name}_quantized",
        data_type=kind.onnx,
        dims=weight.dims,
        raw_data=raw.tobytes(),
    )


def tensor_proto_to_array(initializer: TensorProto) -> Array:
    """Return the values of a float initializer."""
    if initializer.data_type not in _FLOATS:
        kind = TensorProto.DataType.Name(initializer.data_type)
        raise ValueError(f"The initializer {initializer.name!r} holds {kind}; only floats can be quantized.")
    return np.asarray(onnx.numpy_helper.to_array(initializer))


_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def normalize_axis(axis: int, rank: int) -> tuple[bool, int]:
    """Whether a tensor of this rank has the axis, and the axis counted from the front."""
    positive = axis + rank if axis < 0 else axis
    return 0 <= positive < rank, positive


def pack_bytes_to_4bit(src_8bit: bytes) -> bytearray:
    """Two 4-bit numbers in a byte, the first in the low half."""
    return bytearray(kernels.pack_flat(np.frombuffer(src_8bit, np.uint8), 4).tobytes())


# ---- Initializers of single quantized tensors


def weight_tensors(
    weight: TensorProto,
    kind: Any,
    symmetric: bool,
    reduce_range: bool,
    min_range: float | None,
    axis: int | None = None,
) -> Tensors:
    """Integers, zero point and scale of a weight: with one scale, or one for each index along an axis."""
    grain: Granularity = PerTensor() if axis is None else PerChannel(axis)
    scheme = Scheme(qtype_of(kind), grain, symmetric, min_range=min_range, reduce_range=reduce_range)
    content = onnx.numpy_helper.to_array(weight)
    params = affine.from_range(*kernels.extremes(content, grain), scheme, content.dtype)
    integers = quantize_onnx_initializer(
        weight, scheme.qtype.onnx, params.zero_point, params.scale, axis, f"{weight.name}_quantized"
    )
    return [
        integers,
        _typed(f"{weight.name}_zero_point", params.zero_point, scheme.qtype.onnx),
        _typed(f"{weight.name}_scale", params.scale, weight.data_type),
    ]


def params_tensors(name: str, params: QuantizationParams) -> Tensors:
    """Zero point and scale of an activation."""
    scale = np.asarray(params["scale"])
    kind = onnx.helper.np_dtype_to_tensor_dtype(scale.dtype)
    return [
        _typed(f"{name}_zero_point", np.asarray(params["zero_point"]), params["quant_type"]),
        _typed(f"{name}_scale", scale, kind),
    ]


def bias_tensors(
    bias: TensorProto, input_scale: Any, weight_scale: Any, beta: float
) -> tuple[Tensors, Array]:
    """Integers, scale and zero point of an int32 bias, and the scale; ``beta`` goes with the input."""
    scales = [np.asarray(s, np.float32).reshape(-1) for s in (input_scale, weight_scale)]
    x = QParams((scales[0] * np.float32(beta)).reshape(()), np.zeros((), np.int8), INT8)
    grain: Granularity = PerTensor() if scales[1].size == 1 else PerChannel(0)
    own = scales[1].reshape(()) if scales[1].size == 1 else scales[1]
    w = QParams(own, np.zeros((), np.int8), INT8, grain)
    params = affine.bias_params(x, w)
    integers = kernels.quantize(onnx.numpy_helper.to_array(bias), params)
    scale = np.atleast_1d(params.scale)
    made = [
        onnx.numpy_helper.from_array(integers, f"{bias.name}_quantized"),
        onnx.numpy_helper.from_array(scale, f"{bias.name}_quantized_scale"),
        _typed(f"{bias.name}_quantized_zero_point", params.zero_point, INT32.onnx),
    ]
    return made, scale


def _typed(name: str, content: Array, kind: int) -> TensorProto:
    return onnx.helper.make_tensor(name, kind, content.shape, np.asarray(content).reshape(-1).tolist())
