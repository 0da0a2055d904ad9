"""Initializers of single quantized tensors, made by the core."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from octavo.core import affine, kernels
from octavo.core.granularity import PerChannel, PerTensor
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT8, INT32
from octavo.core.scheme import Scheme
from octavo.quantization._numbers import qtype_of, quantize_onnx_initializer
from octavo.quantization._values import QuantizationParams

Tensors = list[onnx.TensorProto]


def weight_tensors(
    weight: onnx.TensorProto, kind: Any, symmetric: bool, reduce_range: bool, min_range: float | None
) -> Tensors:
    """Integers, zero point and scale of a weight with one scale."""
    scheme = Scheme(qtype_of(kind), PerTensor(), symmetric, min_range=min_range, reduce_range=reduce_range)
    return _stored(weight, scheme)


def channel_tensors(
    weight: onnx.TensorProto,
    kind: Any,
    axis: int,
    symmetric: bool,
    reduce_range: bool,
    min_range: float | None,
) -> Tensors:
    """Integers, zero points and scales of a weight with a scale for each index along an axis."""
    scheme = Scheme(
        qtype_of(kind), PerChannel(axis), symmetric, min_range=min_range, reduce_range=reduce_range
    )
    return _stored(weight, scheme)


def _stored(weight: onnx.TensorProto, scheme: Scheme) -> Tensors:
    content = numpy_helper.to_array(weight)
    params = affine.from_range(*kernels.extremes(content, scheme.granularity), scheme, content.dtype)
    axis = scheme.granularity.axis if isinstance(scheme.granularity, PerChannel) else None
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
    bias: onnx.TensorProto, input_scale: Any, weight_scale: Any, beta: float
) -> tuple[Tensors, np.ndarray]:
    """Integers, scale and zero point of an int32 bias, and the scale; ``beta`` goes with the input."""
    scales = [np.asarray(s, np.float32).reshape(-1) for s in (input_scale, weight_scale)]
    x = QParams((scales[0] * np.float32(beta)).reshape(()), np.zeros((), np.int8), INT8)
    grain: Any = PerTensor() if scales[1].size == 1 else PerChannel(0)
    w = QParams(
        scales[1].reshape(()) if scales[1].size == 1 else scales[1], np.zeros((), np.int8), INT8, grain
    )
    params = affine.bias_params(x, w)
    integers = kernels.quantize(numpy_helper.to_array(bias), params)
    scale = np.atleast_1d(params.scale)
    made = [
        numpy_helper.from_array(integers, f"{bias.name}_quantized"),
        numpy_helper.from_array(scale, f"{bias.name}_quantized_scale"),
        _typed(f"{bias.name}_quantized_zero_point", params.zero_point, INT32.onnx),
    ]
    return made, scale


def _typed(name: str, content: np.ndarray, kind: int) -> onnx.TensorProto:
    return onnx.helper.make_tensor(name, kind, content.shape, np.asarray(content).reshape(-1).tolist())
