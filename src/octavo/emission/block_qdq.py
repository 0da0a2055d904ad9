"""Weights in blocks as standard ONNX: DequantizeLinear with a block size, in front of a plain MatMul.

Unsigned integers with zero points, or signed ones without. 4 and 8 bits need opset 21, 2 bits opset 25.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from octavo.algorithms.blocks import Array, Blocks
from octavo.emission import names
from octavo.emission.block_weights import BlockWeights
from octavo.emission.nbits import put_instead
from octavo.model import query
from octavo.model.edit import Editor

_TYPES = {
    (2, True): ("INT2", ml_dtypes.int2),
    (2, False): ("UINT2", ml_dtypes.uint2),
    (4, True): ("INT4", ml_dtypes.int4),
    (4, False): ("UINT4", ml_dtypes.uint4),
    (8, True): ("INT8", np.int8),
    (8, False): ("UINT8", np.uint8),
}
_MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Identity"})


def least_opset(bits: int) -> int:
    """The opset from which DequantizeLinear takes blocks of this width."""
    return 25 if bits == 2 else 21


def typed(integers: Array, bits: int, *, signed: bool, name: str | None = None) -> ir.TensorProtocol:
    """Unsigned integers as a tensor of the type that has these bits; signed ones are moved by half."""
    kind, dtype = _TYPES[bits, signed]
    moved = integers.astype(np.int16) - (1 << (bits - 1) if signed else 0)
    return ir.Tensor(np.ascontiguousarray(moved).astype(dtype), dtype=ir.DataType[kind], name=name)


def fed_by_integers(node: ir.Node) -> bool:
    """Whether the input comes from DequantizeLinear, perhaps through moves.

    The runtime would then fuse 8-bit blocks into an integer product that has no blocks, and fail.
    """
    value = node.inputs[0]
    while value is not None:
        producer = value.producer()
        if producer is None:
            return False
        if producer.op_type == "DequantizeLinear":
            return True
        if producer.op_type not in _MOVES or producer.domain:
            return False
        value = producer.inputs[0]
    return False


def misread(node: ir.Node, bits: int, columns: int, *, inner: bool) -> bool:
    """Whether the runtime would get this product wrong, so that it has to be spelled MatMulNBits.

    It fails on 8-bit blocks behind DequantizeLinear and on any in a subgraph (``inner``), whose weights lie
    outside, and fuses 2-bit rows that do not fill bytes wrongly.
    """
    return inner or (bits == 8 and fed_by_integers(node)) or (bits == 2 and columns % 4 != 0)


def write_dequantized(edit: Editor, node: ir.Node, weights: BlockWeights, *, turned: bool = False) -> None:
    """Put DequantizeLinear between a weight in blocks and its MatMul.

    ``turned`` stores the weight as [N, K], with a Transpose behind it.
    """
    scheme = weights.scheme
    signed = not weights.has_zero
    kind = _TYPES[scheme.bits, signed][0]
    axis = 1 if turned else 0

    def way(array: Array) -> Array:
        return array if turned else array.T

    def integers(blocks: Blocks) -> ir.TensorProtocol:
        return typed(way(blocks.integers), scheme.bits, signed=signed)

    def zeros(blocks: Blocks) -> ir.TensorProtocol | None:
        zero = blocks.zero_point
        return None if zero is None else typed(way(zero), scheme.bits, signed=signed)

    shape = ir.Shape(weights.shape if turned else weights.shape[::-1])
    operands = [
        weights.integers(edit, integers, kind, shape),
        weights.number(edit, "scale", lambda b: np.ascontiguousarray(way(b.scale))),
    ]
    if not signed:
        operands.append(weights.number(edit, "zero", zeros))
    dtype = query.element_type(operands[1])
    back = edit.node(
        "DequantizeLinear",
        operands,
        {"axis": axis, "block_size": scheme.size},
        name=f"{node.name}_DQ_Q{scheme.bits}",
        output=f"{weights.name}_DQ_Q{scheme.bits}_output",
        dtype=dtype,
    )
    new = [back]
    if turned:
        flip = {"perm": [1, 0]}
        output = f"{back.outputs[0].name}_transposed"
        new.append(
            edit.node("Transpose", [back.outputs[0]], flip, name=f"{node.name}_Transpose", output=output)
        )
    product = edit.node(
        "MatMul",
        [node.inputs[0], new[-1].outputs[0]],
        name=f"{node.name}_matmul_Q{scheme.bits}",
        output=f"{node.outputs[0].name}{names.QUANTIZED}",
    )
    put_instead(edit, node, [*new, product])
