"""QuantizeLinear and DequantizeLinear as ONNX Runtime runs them: what the kernels are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from builders import model, node, tensor
from onnx import TensorProto, helper

from octavo.core.granularity import PerBlock, PerTensor
from octavo.core.qparams import QParams


def quantized(x: np.ndarray, params: QParams) -> np.ndarray:
    """QuantizeLinear; the result is cast, exactly, to int32 (float8: to float)."""
    wide = TensorProto.FLOAT if params.qtype.is_float else TensorProto.INT32
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **_attributes(params)),
        node("Cast", ["q"], ["y"], to=wide),
    ]
    return _run(nodes, {"x": x, "scale": params.scale, "zero": params.zero_point}, wide, x.shape)


def dequantized(q: np.ndarray, params: QParams) -> np.ndarray:
    """DequantizeLinear."""
    element = helper.np_dtype_to_tensor_dtype(params.scale.dtype)
    arrays = {"q": q, "scale": params.scale}
    if params.qtype.bits < 32:  # an int32 takes no zero point
        arrays["zero"] = params.zero_point
    nodes = [node("DequantizeLinear", list(arrays), ["y"], **_attributes(params))]
    return _run(nodes, arrays, element, q.shape)


def _attributes(params: QParams) -> dict[str, Any]:
    if isinstance(params.granularity, PerTensor):
        return {}
    attributes = {"axis": params.granularity.axis}
    if isinstance(params.granularity, PerBlock):
        attributes["block_size"] = params.granularity.size
    return attributes


def _run(nodes: list[onnx.NodeProto], arrays: dict[str, np.ndarray], element: int, shape: Any) -> np.ndarray:
    made = model(nodes, [], [tensor("y", shape, element)], arrays, opset=21, ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {})[0]
