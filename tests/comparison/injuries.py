"""Models with a known injury, made by hand in the quantized graph."""

from __future__ import annotations

import numpy as np
import onnx
from builders import model, node, tensor
from onnx import numpy_helper
from quantizing import weights

Feeds = dict[str, np.ndarray]


def attention(width: int = 16, length: int = 6, mask: float = -1e4) -> onnx.ModelProto:
    """One head of attention with a constant mask that hides the future."""
    hidden = np.triu(np.full((length, length), mask, np.float32), 1)
    arrays = {
        "wq": weights(width, width, seed=1) / 4,
        "wk": weights(width, width, seed=2) / 4,
        "wv": weights(width, width, seed=3) / 4,
        "wo": weights(width, width, seed=4) / 4,
        "mask": hidden[None],
    }
    nodes = [
        node("MatMul", ["x", "wq"], ["q"], "query"),
        node("MatMul", ["x", "wk"], ["k"], "key"),
        node("MatMul", ["x", "wv"], ["v"], "value"),
        node("Transpose", ["k"], ["kt"], "turn", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"], "scores"),
        node("Add", ["scores", "mask"], ["masked"], "masking"),
        node("Softmax", ["masked"], ["p"], "softmax", axis=-1),
        node("MatMul", ["p", "v"], ["mixed"], "mix"),
        node("MatMul", ["mixed", "wo"], ["y"], "out"),
    ]
    shape = ["batch", length, width]
    return model(nodes, [tensor("x", shape)], [tensor("y", shape)], arrays)


def initializer(proto: onnx.ModelProto, name: str) -> onnx.TensorProto:
    """The initializer of this name."""
    return next(t for t in proto.graph.initializer if t.name == name)


def content(proto: onnx.ModelProto, name: str) -> np.ndarray:
    """Its values."""
    return numpy_helper.to_array(initializer(proto, name))


def put(proto: onnx.ModelProto, name: str, array: np.ndarray) -> None:
    """Give it other values."""
    initializer(proto, name).CopyFrom(numpy_helper.from_array(np.asarray(array), name))


def coarsen(proto: onnx.ModelProto, weight: str, factor: float) -> None:
    """Give one quantized weight a scale that is many times too coarse, its integers to match."""
    stored = content(proto, f"{weight}_quantized")
    scale = content(proto, f"{weight}_scale")
    rounded = np.clip(np.rint(stored.astype(np.float64) / factor), -128, 127).astype(stored.dtype)
    put(proto, f"{weight}_quantized", rounded)
    put(proto, f"{weight}_scale", (scale * factor).astype(scale.dtype))
    bias = weight.replace("w", "b")  # its scale is that of input times weight
    names = {array.name for array in proto.graph.initializer}
    if f"{bias}_quantized" in names:
        put(
            proto, f"{bias}_quantized", np.rint(content(proto, f"{bias}_quantized") / factor).astype(np.int32)
        )
    if f"{bias}_quantized_scale" in names:
        own = content(proto, f"{bias}_quantized_scale")
        put(proto, f"{bias}_quantized_scale", (own * factor).astype(own.dtype))


def clip_at_half(proto: onnx.ModelProto, name: str) -> None:
    """Halve the range that an activation is quantized to."""
    scale = content(proto, f"{name}_scale")
    put(proto, f"{name}_scale", (scale / 2).astype(scale.dtype))


def quantize_mask(proto: onnx.ModelProto, name: str, integer_operator: bool = False) -> None:
    """Store the mask as integers, and quantize its sum with the scores by one scale for both."""
    mask = content(proto, name)
    low = float(mask.min())
    proto.graph.initializer.remove(initializer(proto, name))
    step = np.float32(-low / 255)
    arrays = {
        "mask_int": np.where(mask < 0, 0, 255).astype(np.uint8),
        "mask_step": step,
        "mask_zero": np.uint8(255),
        "sum_zero": np.uint8(252),  # room for positive scores
        "score_step": np.float32(0.1),
        "score_zero": np.uint8(128),
    }
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    add = next(n for n in proto.graph.node if "mask" in n.input)
    scores = next(i for i in add.input if i != "mask")
    index = list(proto.graph.node).index(add)
    after = list(proto.graph.node)[index + 1 :]
    before = list(proto.graph.node)[:index]
    if integer_operator:
        new = [
            node("QuantizeLinear", [scores, "score_step", "score_zero"], ["scores_int"], "q_scores"),
            node(
                "QLinearAdd",
                ["scores_int", "score_step", "score_zero", "mask_int", "mask_step", "mask_zero",
                 "mask_step", "sum_zero"],
                ["sum_int"], "integer_add", domain="com.microsoft",
            ),
            node("DequantizeLinear", ["sum_int", "mask_step", "sum_zero"], [add.output[0]], "dq_sum"),
        ]  # fmt: skip
        if not any(o.domain == "com.microsoft" for o in proto.opset_import):
            proto.opset_import.add(domain="com.microsoft", version=1)
    else:
        new = [
            node("DequantizeLinear", ["mask_int", "mask_step", "mask_zero"], ["mask_real"], "dq_mask"),
            node("Add", [scores, "mask_real"], ["plain_sum"], "masking"),
            node("QuantizeLinear", ["plain_sum", "mask_step", "sum_zero"], ["sum_int"], "q_sum"),
            node("DequantizeLinear", ["sum_int", "mask_step", "sum_zero"], [add.output[0]], "dq_sum"),
        ]
    del proto.graph.node[:]
    proto.graph.node.extend([*before, *new, *after])


def rename_all(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with other names for everything but its inputs and outputs."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    kept = {v.name for v in (*copy.graph.input, *copy.graph.output)} | {""}
    names: dict[str, str] = {}

    def fresh(name: str) -> str:
        return name if name in kept else names.setdefault(name, f"t{len(names)}")

    for i, one in enumerate(copy.graph.node):
        one.name = f"n{i}"
        one.input[:] = [fresh(name) for name in one.input]
        one.output[:] = [fresh(name) for name in one.output]
    for array in copy.graph.initializer:
        array.name = fresh(array.name)
    del copy.graph.value_info[:]
    return copy
