"""Weights in blocks as standard ONNX: DequantizeLinear with a block size, in front of a plain MatMul or Gemm.

Unsigned integers with zero points, or signed ones without. 4 and 8 bits need opset 21, 2 bits opset 25.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from octavo.core.blocks import Array
from octavo.core.granularity import PerBlock
from octavo.core.plan import Key
from octavo.emission import names
from octavo.emission.block_weights import DEQUANTIZED, stored
from octavo.emission.nbits import put_instead
from octavo.emission.writer import Writer
from octavo.model.graph import query
from octavo.model.graph.edit import share_attributes

_TYPES = {
    (2, True): ("INT2", ml_dtypes.int2),
    (2, False): ("UINT2", ml_dtypes.uint2),
    (4, True): ("INT4", ml_dtypes.int4),
    (4, False): ("UINT4", ml_dtypes.uint4),
    (8, True): ("INT8", np.int8),
    (8, False): ("UINT8", np.uint8),
}


def typed(integers: Array, bits: int, *, signed: bool, name: str | None = None) -> ir.TensorProtocol:
    """Unsigned integers as a tensor of the type that has these bits; signed ones are moved by half."""
    kind, dtype = _TYPES[bits, signed]
    moved = integers.astype(np.int16) - (1 << (bits - 1) if signed else 0)
    return ir.Tensor(np.ascontiguousarray(moved).astype(dtype), dtype=ir.DataType[kind], name=name)


def write_dequantized(writer: Writer, node: ir.Node, key: Key) -> None:
    """Put DequantizeLinear between a weight in blocks and the product that reads it.

    The plan may have symmetric weights stored as [N, K], with a Transpose behind.
    """
    edit = writer.editor
    weights = stored(writer, key, DEQUANTIZED, "DequantizeLinear")
    matrix, grain = weights.matrix, writer.params[key].granularity
    scheme, signed = matrix.scheme, matrix.zero_point is None
    rows_first = isinstance(grain, PerBlock) and grain.axis == 1  # the node reads [N, K]
    turned = writer.plan.writing.columns_transposed and not rows_first and signed
    kind, axis = _TYPES[scheme.bits, signed][0], 1 if turned or rows_first else 0

    def way(array: Array) -> Array:
        return array if turned or rows_first else array.T

    shape = ir.Shape(matrix.shape if turned or rows_first else matrix.shape[::-1])
    operands = [
        weights.integers(edit, lambda q: typed(way(q), scheme.bits, signed=signed), kind, shape),
        weights.scale(edit, np.ascontiguousarray(way(matrix.scale))),
    ]
    if matrix.zero_point is not None:
        operands.append(weights.zero_point(edit, typed(way(matrix.zero_point), scheme.bits, signed=signed)))
    back = edit.node(
        "DequantizeLinear",
        operands,
        {"axis": axis, "block_size": scheme.size},
        name=f"{node.name}_DQ_Q{scheme.bits}",
        output=f"{weights.name}_DQ_Q{scheme.bits}_output",
        dtype=query.element_type(operands[1]),
    )
    new = [back]
    if turned:
        flip = {"perm": [1, 0]}
        output = f"{back.outputs[0].name}_transposed"
        new.append(
            edit.node("Transpose", [back.outputs[0]], flip, name=f"{node.name}_Transpose", output=output)
        )
    product = edit.node(
        node.op_type,
        [node.inputs[0], new[-1].outputs[0], *node.inputs[2:]],
        name=f"{node.name}_{node.op_type.lower()}_Q{scheme.bits}",
        output=f"{node.outputs[0].name}{names.QUANTIZED}",
    )
    share_attributes(product, node)
    put_instead(edit, node, [*new, product])
    writer.nodes[node.name or ""] = product
