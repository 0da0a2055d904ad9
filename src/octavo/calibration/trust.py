"""What is known of tensors without looking: where no NaN can come about, and what is never negative.

Samples are finite. An operator of the list below makes no NaN of finite numbers, unless they overflow on the
way, which the extremes around it show. Whatever lies behind any other operator, or behind a constant that is
not finite, is looked at.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.model import query

CALM = frozenset(
    (
        "Abs", "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv",
        "ConvTranspose", "DepthToSpace", "Elu", "Erf", "Expand", "Flatten", "Gather", "Gelu",
        "Gemm", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity",
        "LayerNormalization", "LeakyRelu", "MatMul", "Max", "MaxPool", "Min", "Mish", "Mul", "Neg",
        "PRelu", "Pad", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape",
        "Resize", "Sigmoid", "Slice", "Softmax", "Softplus", "SpaceToDepth", "Split", "Squeeze",
        "Sub", "Tanh", "Tile", "Transpose", "Unsqueeze"
    )
)  # fmt: skip
OVERFLOWING = 1e30  # extremes beyond this may go with an overflow
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Gather")


def calm(model: ir.Model) -> set[str]:
    """The tensors of the main graph that hold no NaN as long as nothing overflows."""
    found = {value.name or "" for value in model.graph.inputs}
    found |= {name for name, value in model.graph.initializers.items() if _is_finite(value)}
    found.add("")
    for node in model.graph:
        if node.op_type in CALM and node.domain in ("", "ai.onnx"):
            names = [value.name or "" if value is not None else "" for value in node.inputs]
            if all(name in found for name in names):
                found.update(value.name or "" for value in node.outputs)
    return found


def maps(model: ir.Model) -> set[str]:
    """Float32 tensors of four axes that are never below zero: what a Relu, or a Clip at zero, gives."""
    found: set[str] = set()
    for node in model.graph:
        relu = node.op_type == "Relu"
        clip = node.op_type == "Clip" and len(node.inputs) > 1 and query.scalar(node.inputs[1]) == 0
        value = node.outputs[0] if relu or clip else None
        if value is not None and query.rank(value) == 4 and query.element_type(value) == ir.DataType.FLOAT:
            found.add(value.name or "")
    return found


def _is_finite(value: ir.Value) -> bool:
    """Whether a constant holds finite numbers; the weights of products are not read for it."""
    tensor = value.const_value
    if tensor is None or not query.is_float(value):
        return True
    if all(use.node.op_type in _PRODUCTS for use in value.uses()):
        return True
    return bool(np.all(np.isfinite(np.asarray(tensor.numpy(), np.float32))))
