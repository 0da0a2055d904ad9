"""Small graphs that between them hold every operator that the registries name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from builders import model, node, tensor
from onnx import TensorProto

Array = np.ndarray
Nodes = list[onnx.NodeProto]
IMAGE: tuple[int, ...] = (1, 4, 6, 6)
ROWS: tuple[int, ...] = (2, 8)


def values(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Normally distributed numbers."""
    made = np.random.default_rng(seed).standard_normal(shape) * scale
    return np.asarray(made, np.float32)


def conv_then(
    op: str,
    rest: Sequence[str] = (),
    arrays: dict[str, Array] | None = None,
    outputs: Sequence[str] = ("u",),
    opset: int = 17,
    **attributes: Any,
) -> onnx.ModelProto:
    """``x → Conv → op → Mul``: the operator behind a quantized layer."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["t"], "conv", pads=[1, 1, 1, 1]),
        node(op, ["t", *rest], list(outputs), "op", **attributes),
        node("Mul", [outputs[0], "k"], ["y"], "last"),
    ]
    consts = {"w": values(4, 4, 3, 3), "b": values(4, seed=1), "k": np.float32([1.5]), **(arrays or {})}
    return model(nodes, [tensor("x", IMAGE)], [tensor("y", None)], consts, opset=opset)


def matmul_then(
    op: str,
    rest: Sequence[str] = (),
    arrays: dict[str, Array] | None = None,
    outputs: Sequence[str] = ("u",),
    first: bool = True,
    more_inputs: Sequence[Any] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """``x → MatMul → op → y``."""
    nodes = [
        node("MatMul", ["x", "w"], ["t"], "product"),
        node(op, ["t", *rest] if first else [*rest, "t"], list(outputs), "op", **attributes),
    ]
    consts = {"w": values(8, 8), **(arrays or {})}
    kind = TensorProto.INT64 if op == "ArgMax" else TensorProto.FLOAT
    return model(nodes, [tensor("x", ROWS), *more_inputs], [tensor(outputs[0], None, kind)], consts)


def alone(
    op: str,
    rest: Sequence[str] = (),
    arrays: dict[str, Array] | None = None,
    outputs: Sequence[str] = ("u",),
    shape: Sequence[int] = IMAGE,
    opset: int = 17,
    **attributes: Any,
) -> onnx.ModelProto:
    """``x → op → Mul → y``: the operator at the start, where nothing is quantized yet."""
    nodes = [
        node(op, ["x", *rest], list(outputs), "op", **attributes),
        node("Mul", [outputs[0], "k"], ["y"], "last"),
    ]
    consts = {"k": np.float32([1.5]), **(arrays or {})}
    return model(nodes, [tensor("x", shape)], [tensor("y", None)], consts, opset=opset)


def ints(*numbers: int) -> Array:
    """A vector of int64."""
    return np.asarray(numbers, np.int64)


def gemm(**attributes: Any) -> onnx.ModelProto:
    """A linear layer with a bias."""
    shape = (8, 6) if not attributes.get("transB") else (6, 8)
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], "gemm", **attributes)]
    consts = {"w": values(*shape), "b": values(6, seed=1)}
    return model(nodes, [tensor("x", ROWS)], [tensor("y", None)], consts)


def computed_product(op: str = "MatMul") -> onnx.ModelProto:
    """A product of two activations."""
    nodes = [node(op, ["x", "z"], ["y"], "product")]
    return model(nodes, [tensor("x", ROWS), tensor("z", (8, 5))], [tensor("y", None)])


def tied() -> onnx.ModelProto:
    """One weight, read by two layers and by an operator that stays float."""
    nodes = [
        node("MatMul", ["x", "w"], ["t"], "first"),
        node("MatMul", ["t", "w"], ["u"], "second"),
        node("ReduceMax", ["w"], ["m"], "float"),
        node("Sub", ["u", "m"], ["y"], "sub"),
    ]
    return model(nodes, [tensor("x", ROWS)], [tensor("y", None)], {"w": values(8, 8)})


def shared_bias() -> onnx.ModelProto:
    """One bias for two convolutions."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["t"], "one", pads=[1, 1, 1, 1]),
        node("Conv", ["t", "w2", "b"], ["y"], "two", pads=[1, 1, 1, 1]),
    ]
    consts = {"w": values(4, 4, 3, 3), "w2": values(4, 4, 3, 3, seed=2), "b": values(4, seed=1)}
    return model(nodes, [tensor("x", IMAGE)], [tensor("y", None)], consts)


def branches() -> onnx.ModelProto:
    """A tensor with two readers, one of them float."""
    nodes = [
        node("Conv", ["x", "w"], ["t"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["t"], ["r"], "relu"),
        node("Exp", ["t"], ["e"], "exp"),
        node("Add", ["r", "e"], ["y"], "add"),
    ]
    return model(nodes, [tensor("x", IMAGE)], [tensor("y", None)], {"w": values(4, 4, 3, 3, scale=0.1)})


def two_outputs() -> onnx.ModelProto:
    """A tensor that is read and an output as well."""
    nodes = [
        node("MatMul", ["x", "w"], ["t"], "first"),
        node("MatMul", ["t", "v"], ["y"], "second"),
    ]
    consts = {"w": values(8, 8), "v": values(8, 8, seed=3)}
    return model(nodes, [tensor("x", ROWS)], [tensor("t", None), tensor("y", None)], consts)


def norm(op: str, **attributes: Any) -> onnx.ModelProto:
    """A normalization behind a convolution."""
    names = {
        "BatchNormalization": ["g", "s", "m", "v"], "InstanceNormalization": ["g", "s"],
        "LayerNormalization": ["g", "s"],
    }[op]  # fmt: skip
    size = 6 if op == "LayerNormalization" else 4
    arrays = {"g": values(size, seed=5), "s": values(size, seed=6), "m": values(size, seed=7)}
    arrays["v"] = np.abs(values(size, seed=8)) + 0.5
    return conv_then(op, names, {k: arrays[k] for k in names}, **attributes)


def where(constant: bool) -> onnx.ModelProto:
    """A choice between a layer's result and something else."""
    nodes = [node("MatMul", ["x", "w"], ["t"], "product"), node("Where", ["c", "t", "o"], ["y"], "op")]
    consts = {"w": values(8, 8)}
    inputs = [tensor("x", ROWS), tensor("c", ROWS, TensorProto.BOOL)]
    if constant:
        consts["o"] = values(8, seed=9)
    else:
        inputs.append(tensor("o", ROWS))
    return model(nodes, inputs, [tensor("y", None)], consts)


def attention() -> onnx.ModelProto:
    """The fused operator of the runtime's own domain."""
    nodes = [
        node("Attention", ["x", "w", "b", "mask"], ["y"], "attention", domain="com.microsoft", num_heads=2)
    ]
    consts = {"w": values(8, 24), "b": values(24, seed=1), "mask": np.ones((1, 4), np.int32)}
    return model(
        nodes, [tensor("x", (1, 4, 8))], [tensor("y", (1, 4, 8))], consts, domains={"com.microsoft": 1}
    )


def embedding() -> onnx.ModelProto:
    """The fused embedding of the runtime's own domain."""
    inputs = ["ids", "seg", "word", "pos", "segment", "gamma", "beta"]
    nodes = [
        node("EmbedLayerNormalization", inputs, ["y", "mask"], "embed", domain="com.microsoft"),
    ]
    consts = {
        "word": values(10, 8), "pos": values(6, 8, seed=1), "segment": values(2, 8, seed=2),
        "gamma": values(8, seed=3), "beta": values(8, seed=4),
    }  # fmt: skip
    ids = [tensor("ids", (1, 4), TensorProto.INT32), tensor("seg", (1, 4), TensorProto.INT32)]
    outs = [tensor("y", (1, 4, 8)), tensor("mask", (1,), TensorProto.INT32)]
    return model(nodes, ids, outs, consts, domains={"com.microsoft": 1})


def lstm() -> onnx.ModelProto:
    """A recurrent layer."""
    nodes = [node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], "lstm", hidden_size=4)]
    consts = {"w": values(1, 16, 8), "r": values(1, 16, 4, seed=1), "b": values(1, 32, seed=2)}
    return model(nodes, [tensor("x", (3, 1, 8))], [tensor("y", None)], consts)


def gather(quantized: bool) -> onnx.ModelProto:
    """A look-up in a table, or in what a layer computed."""
    if quantized:
        return matmul_then("Gather", ["i"], {"i": ints(1, 0)}, axis=1)
    nodes = [node("Gather", ["table", "i"], ["t"], "op"), node("MatMul", ["t", "w"], ["y"], "product")]
    consts = {"table": values(10, 8), "w": values(8, 8, seed=1)}
    return model(nodes, [tensor("i", (3,), TensorProto.INT64)], [tensor("y", None)], consts)


def concat() -> onnx.ModelProto:
    """Two results side by side."""
    nodes = [
        node("MatMul", ["x", "w"], ["t"], "product"),
        node("Relu", ["x"], ["r"], "relu"),
        node("Concat", ["t", "r"], ["y"], "op", axis=1),
    ]
    return model(nodes, [tensor("x", ROWS)], [tensor("y", None)], {"w": values(8, 8)})


def residual() -> onnx.ModelProto:
    """Two convolutions, a Relu, an Add and a pool: a small network."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["t"], "one", pads=[1, 1, 1, 1]),
        node("Relu", ["t"], ["r"], "relu"),
        node("Conv", ["r", "w2", "b2"], ["u"], "two", pads=[1, 1, 1, 1]),
        node("Add", ["u", "x"], ["s"], "add"),
        node("Relu", ["s"], ["q"], "relu2"),
        node("GlobalAveragePool", ["q"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flat"),
        node("Gemm", ["f", "v", "c"], ["l"], "gemm", transB=1),
        node("Softmax", ["l"], ["y"], "softmax", axis=1),
    ]
    consts = {
        "w": values(4, 4, 3, 3), "b": values(4, seed=1), "w2": values(4, 4, 3, 3, seed=2),
        "b2": values(4, seed=3),
        "v": values(5, 4, seed=4), "c": values(5, seed=5),
    }  # fmt: skip
    return model(nodes, [tensor("x", IMAGE)], [tensor("y", None)], consts)


def scalar(number: float) -> Array:
    """One float."""
    return np.asarray(number, np.float32)


CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "Conv": lambda: conv_then("Relu"),
    "Conv of computed weight": lambda: model(
        [node("Conv", ["x", "w"], ["y"], "conv")],
        [tensor("x", IMAGE), tensor("w", (4, 4, 3, 3))],
        [tensor("y", None)],
    ),
    "ConvTranspose": lambda: model(
        [node("ConvTranspose", ["x", "w", "b"], ["y"], "conv")],
        [tensor("x", IMAGE)],
        [tensor("y", None)],
        {"w": values(4, 3, 3, 3), "b": values(3, seed=1)},
    ),
    "Gemm": gemm,
    "Gemm transposed": lambda: gemm(transB=1),
    "Gemm with alpha": lambda: gemm(alpha=0.5),
    "Gemm without bias": lambda: model(
        [node("Gemm", ["x", "w"], ["y"], "gemm")],
        [tensor("x", ROWS)],
        [tensor("y", None)],
        {"w": values(8, 6)},
    ),
    "Gemm of computed weight": lambda: computed_product("Gemm"),
    "MatMul": lambda: matmul_then("Relu"),
    "MatMul of two activations": computed_product,
    "MatMul of rank 3 weight": lambda: model(
        [node("MatMul", ["x", "w"], ["y"], "product")],
        [tensor("x", (2, 3, 8))],
        [tensor("y", None)],
        {"w": values(2, 8, 4)},
    ),
    "Clip from zero": lambda: conv_then("Clip", ["lo", "hi"], {"lo": scalar(0), "hi": scalar(6)}),
    "Relu at the start": lambda: alone("Relu"),
    "LeakyRelu": lambda: conv_then("LeakyRelu", alpha=0.1),
    "Sigmoid": lambda: conv_then("Sigmoid"),
    "Sigmoid alone": lambda: alone("Sigmoid"),
    "Tanh": lambda: conv_then("Tanh"),
    "Softmax": lambda: matmul_then("Softmax", axis=1),
    "Add": lambda: conv_then("Add", ["c"], {"c": values(4, 1, 1, seed=4)}),
    "Add alone": lambda: alone("Add", ["c"], {"c": values(4, 1, 1, seed=4)}),
    "Mul": lambda: conv_then("Mul", ["x"]),
    "Sub": lambda: conv_then("Sub", ["x"]),
    "Reshape": lambda: conv_then("Reshape", ["s"], {"s": ints(1, -1)}),
    "Reshape alone": lambda: alone("Reshape", ["s"], {"s": ints(1, -1)}),
    "Transpose": lambda: conv_then("Transpose", perm=[0, 2, 3, 1]),
    "Transpose alone": lambda: alone("Transpose", perm=[0, 2, 3, 1]),
    "Squeeze": lambda: conv_then("Squeeze", ["a"], {"a": ints(0)}),
    "Unsqueeze": lambda: conv_then("Unsqueeze", ["a"], {"a": ints(0)}),
    "Flatten": lambda: conv_then("Flatten"),
    "Resize": lambda: conv_then("Resize", ["", "s"], {"s": np.float32([1, 1, 2, 2])}, mode="nearest"),
    "Resize linear": lambda: conv_then("Resize", ["", "s"], {"s": np.float32([1, 1, 2, 2])}, mode="linear"),
    "MaxPool": lambda: conv_then("MaxPool", kernel_shape=[2, 2]),
    "MaxPool alone": lambda: alone("MaxPool", kernel_shape=[2, 2]),
    "AveragePool": lambda: conv_then("AveragePool", kernel_shape=[2, 2]),
    "GlobalAveragePool": lambda: conv_then("GlobalAveragePool"),
    "Slice": lambda: conv_then("Slice", ["s", "e"], {"s": ints(0, 0), "e": ints(1, 2)}),
    "Pad": lambda: conv_then("Pad", ["p"], {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    "Pad with a value": lambda: conv_then(
        "Pad", ["p", "v"], {"p": ints(0, 0, 1, 1, 0, 0, 1, 1), "v": scalar(0.75)}
    ),
    "Pad reflect": lambda: conv_then("Pad", ["p"], {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)}, mode="reflect"),
    "Split": lambda: conv_then("Split", ["s"], {"s": ints(2, 2)}, outputs=("u", "u2"), axis=1),
    "Gather table": lambda: gather(False),
    "Gather": lambda: gather(True),
    "GatherElements": lambda: matmul_then("GatherElements", ["i"], {"i": np.zeros((2, 8), np.int64)}, axis=1),
    "Where of activations": lambda: where(False),
    "Where of constant": lambda: where(True),
    "InstanceNormalization": lambda: norm("InstanceNormalization"),
    "LayerNormalization": lambda: norm("LayerNormalization", axis=-1),
    "BatchNormalization": lambda: norm("BatchNormalization"),
    "TopK": lambda: matmul_then("TopK", ["n"], {"n": ints(3)}, outputs=("u", "i"), axis=1),
    "CumSum": lambda: matmul_then("CumSum", ["a"], {"a": np.asarray(1, np.int64)}),
    "ArgMax": lambda: matmul_then("ArgMax", axis=1),
    "Concat": concat,
    "Attention": attention,
    "EmbedLayerNormalization": embedding,
    "LSTM": lstm,
    "tied weight": tied,
    "shared bias": shared_bias,
    "two readers": branches,
    "output that is read": two_outputs,
    "network": residual,
}
"""Name → model."""
