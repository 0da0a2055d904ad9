"""Models with matrix products and lookups, and the weights of quantized ones taken apart by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from builders import graph, model, node, tensor
from onnx import TensorProto, helper, numpy_helper

from octavo.model.runtime.session import Session

Array = np.ndarray


def weights(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def product(rows: int = 96, columns: int = 8, dtype: Any = np.float32, opset: int = 17) -> onnx.ModelProto:
    """One MatMul ``mm0`` with the weight W."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model(
        [node("MatMul", ["x", "W"], ["y"], "mm0")],
        [tensor("x", ["batch", rows], kind)],
        [tensor("y", ["batch", columns], kind)],
        {"W": weights(rows, columns, dtype=dtype)},
        opset=opset,
    )


def three(width: int = 32) -> onnx.ModelProto:
    """Three MatMuls in a row, ``mm0`` to ``mm2``."""
    nodes = [node("MatMul", [f"t{i}", f"W{i}"], [f"t{i + 1}"], f"mm{i}") for i in range(3)]
    arrays = {f"W{i}": weights(width, width, seed=i) / 6 for i in range(3)}
    return model(nodes, [tensor("t0", ["batch", width])], [tensor("t3", ["batch", width])], arrays)


def lookup(rows: int = 20, columns: int = 64, dtype: Any = np.float32, opset: int = 17, axis: int = 0) -> Any:
    """One Gather ``g0`` from the table W."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model(
        [node("Gather", ["W", "i"], ["y"], "g0", axis=axis)],
        [tensor("i", [3], TensorProto.INT64)],
        [tensor("y", None, kind)],
        {"W": weights(rows, columns, dtype=dtype)},
        opset=opset,
    )


def branches() -> onnx.ModelProto:
    """An If: one branch multiplies by a weight of the main graph, one by a weight of its own; names clash."""

    def branch(weight: str, own: dict[str, Array]) -> onnx.GraphProto:
        nodes = [node("MatMul", ["x", weight], ["out"], "mm")]
        return graph(nodes, [], [tensor("out", None)], own, name=weight)

    then = branch("outer", {})
    other = branch("inner", {"inner": weights(32, 16, seed=4)})
    return model(
        [node("If", ["cond"], ["y"], "If_0", then_branch=then, else_branch=other)],
        [tensor("x", [3, 32]), tensor("cond", [], TensorProto.BOOL)],
        [tensor("y", [3, 16])],
        {"outer": weights(32, 16, seed=3)},
    )


def run(proto: onnx.ModelProto, feeds: dict[str, Array], *, optimize: bool = True) -> Array:
    """The first output."""
    return next(iter(Session.open(proto.SerializeToString(), optimize=optimize).run(feeds).values()))


def constant(proto: onnx.ModelProto, name: str) -> Array:
    """An initializer."""
    return numpy_helper.to_array(next(t for t in proto.graph.initializer if t.name == name))


def attribute(found: onnx.NodeProto, name: str) -> Any:
    """An attribute, or None."""
    return next((helper.get_attribute_value(a) for a in found.attribute if a.name == name), None)


def unpacked(packed: Array, bits: int, count: int) -> Array:
    """Values of the last axis, lowest bits first."""
    each = 8 // bits
    parts = [(packed >> (bits * i)) & (2**bits - 1) for i in range(each)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1)[..., :count]


def stored_weight(proto: onnx.ModelProto, found: onnx.NodeProto) -> Array:
    """The weight [K, N] that a MatMulNBits or DequantizeLinear node stands for, in float64."""
    parts = [constant(proto, name) for name in list(found.input)[(found.op_type == "MatMulNBits") :]]
    size = attribute(found, "block_size")
    if found.op_type == "DequantizeLinear":
        axis, wide = attribute(found, "axis"), [p.astype(np.float64) for p in parts]
        keep = [slice(None)] * 2
        keep[axis] = slice(0, wide[0].shape[axis])
        spread = [np.repeat(p, size, axis)[tuple(keep)] for p in wide[1:]]
        back = (wide[0] - (spread[1] if len(spread) > 1 else 0)) * spread[0]
        return back.T if axis == 1 else back
    rows, bits = attribute(found, "K"), attribute(found, "bits")
    integers = unpacked(parts[0], bits, size).astype(np.float64)
    blocks = integers.shape[1]
    zero = np.full(integers.shape[:2], 2.0 ** (bits - 1))
    if len(parts) > 2:
        packed = parts[2].dtype == np.uint8
        zero = (unpacked(parts[2], bits, blocks) if packed else parts[2].reshape(-1, blocks)).astype(
            np.float64
        )
    real = (integers - zero[..., None]) * parts[1].reshape(-1, blocks).astype(np.float64)[..., None]
    return real.reshape(len(real), -1)[:, :rows].T
