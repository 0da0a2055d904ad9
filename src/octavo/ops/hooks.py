"""What a row of the op table can't say in data: axes that follow attributes, and nodes that stay float."""

from __future__ import annotations

import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.operators import CONVERSIONS
from octavo.model.graph.query import array, attribute, constant, is_op, rank, scalar, shape


def is_gate(node: ir.Node) -> bool:
    """Whether a node has one result per channel by which all its consumers multiply a whole feature map.

    Between the two there may be conversions.
    """
    result = node.outputs[0]
    dims = shape(result) or ()
    if len(dims) < 3 or any(d != 1 for d in dims[2:]) or result.is_graph_output():
        return False
    found = list(result.consumers())
    while found and all(one.op_type in CONVERSIONS for one in found):
        found = [consumer for one in found for consumer in one.outputs[0].consumers()]
    return bool(found) and all(is_op(consumer, "Mul") for consumer in found)


def gemm_channel(node: ir.Node) -> int:
    """Return the axis of the output channels of Gemm's B: rows when it is transposed, else columns."""
    return 0 if attribute(node, "transB", 0) else 1


def gemm_sum(node: ir.Node) -> int:
    """Return the axis of Gemm's B that is summed over."""
    return 1 - gemm_channel(node)


def matmul_channel(node: ir.Node) -> int | None:
    """Return the columns of a matrix; the runtime fails on scales per channel of stacks and vectors."""
    return 1 if rank(node.inputs[1]) == 2 else None


def matmul_sum(node: ir.Node) -> int | None:
    """Return the rows of a matrix, which MatMul sums over."""
    return 0 if rank(node.inputs[1]) == 2 else None


def refuse_experts(node: ir.Node) -> str | None:
    """QMoE has no third projection on the CPU, and takes SwiGLU with its two halves interleaved only."""
    if query.operand(node, 6) is not None:
        return "QMoE takes no third projection on the CPU"
    if attribute(node, "activation_type", "relu") == "swiglu" and attribute(node, "swiglu_fusion", 0) != 1:
        return "QMoE takes SwiGLU only with swiglu_fusion 1, the halves of its first projection interleaved"
    return None


def refuse_gemm(node: ir.Node) -> str | None:
    """Gemm's weight has to be a matrix and beta 1: integer kernels do not scale the bias."""
    if rank(node.inputs[1]) not in (2, None):
        return f"its weight has {rank(node.inputs[1])} dimensions and is not a matrix"
    if query.operand(node, 2) is not None and attribute(node, "beta", 1.0) != 1.0:
        return f"beta is {attribute(node, 'beta', 1.0)}, and integer kernels do not scale the bias"
    return None


def unfused_gemm(node: ir.Node) -> str | None:
    """The runtime fuses a Gemm with alpha 1 only."""
    if attribute(node, "alpha", 1.0) != 1.0:
        return "alpha is not 1, so that the runtime does not fuse it"
    return None


def unfused_matmul(node: ir.Node) -> str | None:
    """The runtime fuses a MatMul whose weight is a matrix; it fails on scales per channel of others."""
    if rank(node.inputs[1]) != 2:
        return "its weight is not a matrix, and the runtime fails on scales per channel of others"
    return None


def refuse_bias(node: ir.Node) -> str | None:
    """A bias becomes int32, so that it and the weight have to be constant."""
    bias = query.operand(node, 2)
    if bias is None:
        return None
    if constant(bias) is None:
        return "its bias is not constant, as its integer kernel needs it"
    weight = node.inputs[1]
    producer = weight.producer() if weight is not None else None
    turned = (
        producer is not None and is_op(producer, "Transpose") and constant(producer.inputs[0]) is not None
    )
    if constant(weight) is None and not turned:
        return "its weight is not constant, and the scale of an int32 bias depends on it"
    return None


def refuse_gemm_bias(node: ir.Node) -> str | None:
    """A bias becomes int32, so that it has to be constant with one value per channel, and alpha 1."""
    reason = refuse_bias(node)
    bias = query.operand(node, 2)
    if bias is None or reason is not None:
        return reason
    if attribute(node, "alpha", 1.0) != 1.0:
        return "alpha is not 1, and its integer kernel would scale the bias by it"
    dims, weight = shape(bias) or (), shape(node.inputs[1])
    channels = weight[gemm_channel(node)] if weight is not None and len(weight) == 2 else None
    return None if dims and dims[-1] == channels else "its bias does not have one value per channel"


def refuse_attention(node: ir.Node) -> str | None:
    """QAttention needs a bias, and takes none on the scores, nor other sizes for q, k and v."""
    if query.operand(node, 2) is None:
        return "QAttention needs a bias, and it has none"
    if query.operand(node, 5) is not None or query.operand(node, 6) is not None:
        return "QAttention has no input for a bias on the scores or the length of the past"
    other = [name for name in ("qkv_hidden_sizes", "rotary_embedding_dim") if attribute(node, name)]
    return f"QAttention has no attribute {other[0]}" if other else None


def blends(node: ir.Node) -> bool:
    """Whether Resize makes new values between the old ones instead of copying them."""
    return bool(attribute(node, "mode", "nearest") != "nearest")


def refuse_blending(node: ir.Node) -> str | None:
    """Interpolation on integers drops what lies between them."""
    return "it interpolates, and on integers that drops what lies between them" if blends(node) else None


def refuse_pad(node: ir.Node) -> str | None:
    """A constant fill has to be zero, which every range can represent."""
    if attribute(node, "mode", "constant") != "constant":
        return None
    fill = query.operand(node, 2)
    if fill is None or scalar(fill) == 0.0:
        return None
    return "its fill value is not zero and may lie outside of the quantized range"


def refuse_lstm(node: ir.Node) -> str | None:
    """Weights have to be constant, and layout 0 is the only one with kernels."""
    if constant(node.inputs[1]) is None or constant(node.inputs[2]) is None:
        return "its weights are not constant"
    if attribute(node, "layout", 0):
        return "there is no kernel for layout 1"
    return None


def refuse_single_concat(node: ir.Node) -> str | None:
    """A Concat of one tensor stays float: runtimes differ on it."""
    return "it joins a single tensor" if len(node.inputs) < 2 else None


def refuse_embed(node: ir.Node) -> str | None:
    """All tables have to be constant; positions as input and the sum as output have no integer operator."""
    tables = [t for t in node.inputs[2:7] if t is not None]
    if any(constant(t) is None for t in tables):
        return "one of its tables is not constant"
    if query.operand(node, 8) is not None or (len(node.outputs) > 2 and node.outputs[2].name):
        return "QEmbedLayerNormalization neither takes positions nor returns the sum"
    return None


def clamp_bounds(node: ir.Node) -> tuple[float, float] | None:
    """Return the interval that Relu or Clip maps into, or None where a bound is not constant."""
    if node.op_type == "Relu":
        return 0.0, float("inf")
    bounds = [float("-inf"), float("inf")]
    for i, name in ((1, "min"), (2, "max")):
        bound = query.operand(node, i)
        if bound is not None:
            value = array(bound, limit=1)
            if value is None or value.size != 1:
                return None
            bounds[i - 1] = float(value.reshape(-1)[0])
        elif name in node.attributes:
            bounds[i - 1] = float(attribute(node, name))
    return bounds[0], bounds[1]
