"""Small valid models that mutated ones are made from."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Shape = Sequence[int | str | None] | None


def _weights(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), outputs.split()[0] + "_node", **attributes)


def _model(
    nodes: Sequence[NodeProto],
    arrays: dict[str, Any],
    inputs: dict[str, Any],
    outputs: Sequence[str],
    **more: Any,
) -> ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    domains = {"": 17, **more.pop("domains", {})}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)


def dense() -> ModelProto:
    """Two layers and a sum of both ends."""
    nodes = [
        _node("MatMul", "x w", "m"),
        _node("Add", "m b", "a"),
        _node("Relu", "a", "h"),
        _node("Gemm", "h v c", "g", transB=1, alpha=0.5),
        _node("Add", "g x", "s"),
        _node("Softmax", "s", "y", axis=-1),
    ]
    arrays = {"w": _weights(8, 8), "b": _weights(8), "v": _weights(8, 8), "c": _weights(8)}
    return _model(nodes, arrays, {"x": (1, ["n", 8])}, ["y"])


def images() -> ModelProto:
    """Convolutions, normalization, pooling, a classifier."""
    nodes = [
        _node("Conv", "x w b", "conv", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        _node("BatchNormalization", "conv gamma beta mean var", "bn"),
        _node("Clip", "bn low high", "relu"),
        _node("MaxPool", "relu", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        _node("Conv", "pool d", "deep", group=4, kernel_shape=[1, 1]),
        _node("LeakyRelu", "deep", "leak", alpha=0.1),
        _node("Concat", "pool leak", "cat", axis=1),
        _node("GlobalAveragePool", "cat", "mean_out"),
        _node("Flatten", "mean_out", "flat"),
        _node("Gemm", "flat fc fb", "y"),
    ]
    arrays = {
        "w": _weights(4, 2, 3, 3), "b": _weights(4), "gamma": _weights(4), "beta": _weights(4),
        "mean": _weights(4), "var": np.abs(_weights(4)) + 1, "low": np.float32(0), "high": np.float32(6),
        "d": _weights(4, 1, 1, 1), "fc": _weights(8, 3), "fb": _weights(3),
    }  # fmt: skip
    return _model(nodes, arrays, {"x": (1, ["n", 2, 6, 6])}, ["y"])


def attention() -> ModelProto:
    """Token ids to an attention block."""
    nodes = [
        _node("Gather", "table ids", "e"),
        _node("ReduceMean", "e", "mu", axes=[-1], keepdims=1),
        _node("Sub", "e mu", "d"),
        _node("Pow", "d two", "p"),
        _node("ReduceMean", "p", "v", axes=[-1], keepdims=1),
        _node("Add", "v eps", "ve"),
        _node("Sqrt", "ve", "sd"),
        _node("Div", "d sd", "z"),
        _node("Mul", "z gain", "zg"),
        _node("Add", "zg shift", "ln"),
        _node("MatMul", "ln wq", "q"),
        _node("MatMul", "ln wk", "k"),
        _node("Transpose", "k", "kt", perm=[0, 2, 1]),
        _node("MatMul", "q kt", "scores"),
        _node("Softmax", "scores", "soft", axis=-1),
        _node("MatMul", "soft ln", "mixed"),
        _node("Reshape", "mixed shape", "r"),
        _node("Erf", "r", "erf"),
        _node("Sigmoid", "erf", "y"),
    ]
    arrays = {
        "table": _weights(10, 8), "two": np.float32(2), "eps": np.float32(1e-5), "gain": _weights(8),
        "shift": _weights(8), "wq": _weights(8, 8), "wk": _weights(8, 8), "shape": np.int64([0, -1]),
    }  # fmt: skip
    return _model(nodes, arrays, {"ids": (7, ["n", 3])}, ["y"])


def _branch(op: str) -> GraphProto:
    nodes = [
        _node("Constant", "", "k", value=numpy_helper.from_array(_weights(4, 4), "k")),
        _node(op, "h k", "t"),
        _node("Add", "t c", "out"),
    ]
    inside = [numpy_helper.from_array(_weights(4), "c")]
    return helper.make_graph(nodes, op, [], [helper.make_tensor_value_info("out", 1, None)], inside)


def branches() -> ModelProto:
    """An If, and a Loop that adds up."""
    body = helper.make_graph(
        [_node("MatMul", "s w", "s2"), _node("Identity", "go", "go2")],
        "body",
        [
            helper.make_tensor_value_info("i", 7, []),
            helper.make_tensor_value_info("go", 9, []),
            helper.make_tensor_value_info("s", 1, None),
        ],
        [helper.make_tensor_value_info("go2", 9, []), helper.make_tensor_value_info("s2", 1, None)],
    )
    nodes = [
        _node("Relu", "x", "h"),
        _node("If", "cond", "chosen", then_branch=_branch("MatMul"), else_branch=_branch("Add")),
        _node("Loop", "trips cond chosen", "y", body=body),
    ]
    arrays = {"w": _weights(4, 4), "trips": np.int64(2)}
    return _model(nodes, arrays, {"x": (1, [4, 4]), "cond": (9, [])}, ["y"])


def functions() -> ModelProto:
    """A function that calls another, with an attribute handed on."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = helper.make_node("LeakyRelu", ["a"], ["b"])
    inner.attribute.add(name="alpha", type=1, ref_attr_name="slope")
    leaky = helper.make_function("own", "Leaky", ["a"], ["b"], [inner], opsets, ["slope"])
    call = helper.make_node("Leaky", ["m"], ["r"], domain="own")
    call.attribute.add(name="slope", type=1, ref_attr_name="slope")
    layer = helper.make_function(
        "own", "Layer", ["x", "w"], ["r"], [_node("MatMul", "x w", "m"), call], opsets, ["slope"]
    )
    nodes = [
        _node("Layer", "x w", "h", domain="own", slope=0.2),
        _node("Layer", "h w", "y", domain="own", slope=0.3),
    ]
    inputs = {"x": (1, [2, 4])}
    return _model(nodes, {"w": _weights(4, 4)}, inputs, ["y"], domains={"own": 1}, functions=[leaky, layer])


def trained() -> ModelProto:
    """A model with QuantizeLinear and DequantizeLinear in it, as training leaves them."""
    nodes = [
        _node("QuantizeLinear", "x xs xz", "xq"),
        _node("DequantizeLinear", "xq xs xz", "xd"),
        _node("DequantizeLinear", "wq ws wz", "wd", axis=1),
        _node("MatMul", "xd wd", "m"),
        _node("QuantizeLinear", "m ys yz", "mq"),
        _node("DequantizeLinear", "mq ys yz", "y"),
    ]
    arrays = { "xs": np.float32(0.05), "xz": np.uint8(128), "wq": np.arange(-8, 8,
              dtype=np.int8).reshape(4, 4), "ws": np.full(4, 0.1, np.float32), "wz": np.zeros(4,
              np.int8), "ys": np.float32(0.1), "yz": np.uint8(120), }  # fmt: skip
    return _model(nodes, arrays, {"x": (1, ["n", 4])}, ["y"])


def movement() -> ModelProto:
    """Data moved about: Split, Slice, Pad, Resize, Expand, Where, a transposed convolution."""
    nodes = [
        _node("Split", "x sizes", "left right", axis=1),
        _node("Pad", "left pads zero", "padded"),
        _node("Slice", "padded from to along", "cut"),
        _node("ConvTranspose", "cut w", "up", strides=[2, 2], output_padding=[1, 1]),
        _node("Resize", "right  scales", "bigger", mode="nearest"),
        _node("Shape", "up", "shape"),
        _node("Expand", "zero1 shape", "zeros"),
        _node("Greater", "up zeros", "mask"),
        _node("Where", "mask up zeros", "y"),
        _node("Tanh", "bigger", "z"),
    ]
    nodes[4].input[:] = ["right", "", "scales"]
    arrays = { "sizes": np.int64([1, 1]), "pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]),
              "zero": np.float32(0), "from": np.int64([1, 1]), "to": np.int64([4, 4]),
              "along": np.int64([2, 3]), "w": _weights(1, 2, 2, 2), "scales": np.float32([1, 1,
              2, 2]), "zero1": np.zeros(1, np.float32), }  # fmt: skip
    return _model(nodes, arrays, {"x": (1, [1, 2, 4, 4])}, ["y", "z"])


def recurrent() -> ModelProto:
    """An LSTM."""
    nodes = [
        _node("LSTM", "x w r b", "s h c", hidden_size=3),
        _node("Squeeze", "s one", "q"),
        _node("MatMul", "q v", "y"),
    ]
    arrays = {"w": _weights(1, 12, 4), "r": _weights(1, 12, 3), "b": _weights(1, 24), "one": np.int64([1]),
              "v": _weights(3, 2)}  # fmt: skip
    return _model(nodes, arrays, {"x": (1, [2, 1, 4])}, ["y"])


@functools.cache
def models() -> tuple[bytes, ...]:
    """All of them, serialized."""
    made = (dense, images, attention, branches, functions, trained, movement, recurrent)
    return tuple(one().SerializeToString() for one in made)
