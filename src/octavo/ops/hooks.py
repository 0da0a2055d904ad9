"""What a row can't say in data: axes that follow attributes, and reasons to leave a node float."""

from __future__ import annotations

import onnx_ir as ir

from octavo.model.query import array, attribute, constant, rank, scalar

def gemm_channel(node: ir.Node) -> int:
    """Output channels of Gemm's B: rows when it is transposed, else columns."""
    return 0 if attribute(node, "transB", 0) else 1


def gemm_sum(node: ir.Node) -> int:
    """The axis of Gemm's B that is summed over."""
    return 1 - gemm_channel(node)


def matmul_channel(node: ir.Node) -> int | None:
    """Columns of a matrix; a stack of matrices or a vector has one scale (the runtime fails on more)."""
    return 1 if rank(node.inputs[1]) == 2 else None


def matmul_sum(node: ir.Node) -> int | None:
    """Rows of a matrix."""
    return 0 if rank(node.inputs[1]) == 2 else None


def refuse_gemm(node: ir.Node) -> str | None:
    """Gemm scales its bias by beta; the integer kernels do not."""
    if len(node.inputs) > 2 and node.inputs[2] is not None and attribute(node, "beta", 1.0) != 1.0:
        return f"beta is {attribute(node, 'beta', 1.0)}, and integer kernels take the bias as it is"
    return None


def blends(node: ir.Node) -> bool:
    """Whether Resize makes new values between the old ones instead of copying them."""
    return bool(attribute(node, "mode", "nearest") != "nearest")


def refuse_pad(node: ir.Node) -> str | None:
    """A constant fill has to be representable: zero is, other values may not be."""
    if attribute(node, "mode", "constant") != "constant":
        return None
    fill = node.inputs[2] if len(node.inputs) > 2 else None
    if fill is None or scalar(fill) == 0.0:
        return None
    return "the fill value is not zero, so that padding would need a range of its own"


def refuse_lstm(node: ir.Node) -> str | None:
    """Weights have to be constants, and sequence layout 0 is the only one with kernels."""
    if constant(node.inputs[1]) is None or constant(node.inputs[2]) is None:
        return "its weights are computed, not constant"
    if attribute(node, "layout", 0):
        return "layout 1 has no kernel"
    return None


def refuse_single_concat(node: ir.Node) -> str | None:
    """A Concat of one tensor moves nothing; runtimes differ on it."""
    return "it joins a single tensor" if len(node.inputs) < 2 else None


def refuse_embed(node: ir.Node) -> str | None:
    """All three tables have to be constants."""
    tables = [node.inputs[i] for i in (2, 3, 4) if i < len(node.inputs) and node.inputs[i] is not None]
    return None if all(constant(t) is not None for t in tables) else "a table is computed, not constant"


def clamp_bounds(node: ir.Node) -> tuple[float, float] | None:
    """The interval that Relu or Clip maps into; None where a bound is computed."""
    if node.op_type == "Relu":
        return 0.0, float("inf")
    bounds = [float("-inf"), float("inf")]
    for i, name in ((1, "min"), (2, "max")):
        bound = node.inputs[i] if i < len(node.inputs) else None
        if bound is not None:
            value = array(bound, limit=1)
            if value is None or value.size != 1:
                return None
            bounds[i - 1] = float(value.reshape(-1)[0])
        elif name in node.attributes:
            bounds[i - 1] = float(attribute(node, name))
    return bounds[0], bounds[1]
