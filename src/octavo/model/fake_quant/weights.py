"""Trained weights: their values rounded as training rounded them, carried through data movement.

Moving values and rounding them commute, so that what exporters put behind the fake quantization of a kernel
(Transpose from channels-last, Reshape of a depthwise one) is done to the weight and to its scales instead.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from octavo.core import kernels
from octavo.core.granularity import PerBlock, PerChannel, PerTensor, moved
from octavo.core.qparams import QParams
from octavo.model.fake_quant.found import FakeQuant
from octavo.model.graph import query

_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})


def content_of(found: FakeQuant) -> ir.LazyTensor:
    """Return the float values that readers of a fake-quantized constant see, computed when they are read."""
    tensor = query.constant(found.source)
    if tensor is None:
        raise ValueError(f"{found.source.name!r} is no constant")

    def compute() -> ir.TensorProtocol:
        array = np.asarray(tensor.numpy())
        if found.stored:
            return ir.Tensor(kernels.dequantize(array, found.params).astype(np.float32, copy=False))
        whole = kernels.fake_quantize(array, found.params, limits=found.limits)
        return ir.Tensor(whole.astype(np.float32, copy=False))

    return ir.LazyTensor(compute, dtype=ir.DataType.FLOAT, shape=ir.Shape(tensor.shape.numpy()), cache=True)


def moved_by(
    node: ir.Node, tensor: ir.TensorProtocol, params: QParams
) -> tuple[ir.TensorProtocol, QParams] | None:
    """Return a weight after data movement, with its parameters; None where scales can't follow."""
    if node.domain or len(node.outputs) != 1 or node.outputs[0].is_graph_output():
        return None
    shape = tuple(int(d) for d in tensor.shape.numpy())
    if node.op_type == "Identity":
        return tensor, params
    if node.op_type == "Transpose":
        perm = tuple(query.attribute(node, "perm", None) or reversed(range(len(shape))))
        turned = _lazy(tensor, [shape[i] for i in perm], lambda a: a.transpose(perm))
        return turned, replace(params, granularity=moved(params.granularity, perm))
    if node.op_type in _RESHAPES:
        dims = query.static_shape(node.outputs[0])
        follows = _reshaped(params, shape, dims) if dims is not None else None
        if dims is not None and follows is not None:
            return _lazy(tensor, dims, lambda a: a.reshape(dims)), follows
    return None


def _lazy(tensor: ir.TensorProtocol, dims: object, change: object) -> ir.LazyTensor:
    def compute() -> ir.TensorProtocol:
        return ir.Tensor(np.ascontiguousarray(change(np.asarray(tensor.numpy()))))  # type: ignore[operator]

    return ir.LazyTensor(compute, dtype=tensor.dtype, shape=ir.Shape(dims), cache=True)  # type: ignore[arg-type]


def _reshaped(params: QParams, before: tuple[int, ...], after: tuple[int, ...]) -> QParams | None:
    """Parameters along the axis that the channels have after a Reshape."""
    match params.granularity:
        case PerTensor():
            return params
        case PerBlock():
            return None
        case PerChannel(axis):
            axis = axis or 0
    inside = math.prod(before[axis + 1 :])
    outside = math.prod(before[:axis])
    for here, dim in enumerate(after):
        if math.prod(after[:here]) != outside or dim % before[axis]:
            continue
        times = dim // before[axis]
        if math.prod(after[here + 1 :]) * times == inside:
            scale, zero = (np.repeat(a, times) for a in (params.scale, params.zero_point))
            return QParams(scale, zero, params.qtype, PerChannel(here))
    return None
