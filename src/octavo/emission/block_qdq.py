"""Weights in blocks as standard ONNX: DequantizeLinear with a block size, in front of a plain MatMul or Gemm.

Unsigned integers with zero points, or signed ones without. 4 and 8 bits need opset 21, 2 bits opset 25.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from octavo.core.blocks import Array, BlockScheme
from octavo.core.granularity import PerBlock
from octavo.core.plan import Key, Shared
from octavo.emission import names
from octavo.emission.nbits import (
    DEQUANTIZED,
    GROUPED,
    PLAIN,
    StoredBlocks,
    laid_out,
    packed_shape,
    put_instead,
    stored,
    zero_points,
)
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model.graph import query
from octavo.model.graph.edit import share_attributes
from octavo.ops import GATHER_BLOCKS, MATMUL_NBITS

_TYPES = {
    (2, True): ("INT2", ml_dtypes.int2),
    (2, False): ("UINT2", ml_dtypes.uint2),
    (4, True): ("INT4", ml_dtypes.int4),
    (4, False): ("UINT4", ml_dtypes.uint4),
    (8, True): ("INT8", np.int8),
    (8, False): ("UINT8", np.uint8),
}


def typed(integers: Array, bits: int, *, signed: bool) -> ir.TensorProtocol:
    """Return unsigned integers as a tensor of the type with these bits; signed ones are moved by half."""
    kind, dtype = _TYPES[bits, signed]
    moved = integers.astype(np.int16) - (1 << (bits - 1) if signed else 0)
    return ir.Tensor(np.ascontiguousarray(moved).astype(dtype), dtype=ir.DataType[kind])


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


# ---- Tables in blocks: GatherBlockQuantized, which dequantizes only the rows that it looks up
#
# 4 bits are stored in the type of that name, signed without zero points, unsigned with them. 2 and 8 bits
# are unsigned in bytes, with the middle for zero where there are no zero points; the kernel takes them only
# if rows are looked up along axis 0 and blocks run along the last. A table that a MatMulNBits reads too is
# stored once, as that one reads it: ``[rows, blocks, bytes]``, which a Reshape turns into ``[rows, bytes]``
# for the lookup.


def write_lookup(writer: Writer, node: ir.Node, key: Key) -> None:
    """Write GatherBlockQuantized in the place of a Gather."""
    if isinstance(writer.plan.entries.get(key), Shared):
        _write_tied(writer, node, writer.plan.root(key))
        return
    edit, weights = writer.editor, stored(writer, key, PLAIN, GATHER_BLOCKS.op_type)
    matrix, grain = weights.matrix, writer.params[key].granularity
    dims = query.static_shape(writer.values[key.tensor])
    if dims is None or not isinstance(grain, PerBlock) or grain.axis is None:
        raise TableError(f"The plan quantizes the table of {node.name!r}, which has no blocks or no shape.")
    axis, scheme = grain.axis, matrix.scheme
    if scheme.bits == 2:
        _write_packed(writer, node, weights)
        return
    signed = scheme.bits == 4 and matrix.zero_point is None
    kind = "UINT8" if scheme.bits == 8 else "INT4" if signed else "UINT4"
    others = [d for i, d in enumerate(dims) if i != axis]

    def back(array: Array) -> Array:
        return np.moveaxis(array.reshape(*others, array.shape[1]), -1, axis)

    operands: list[ir.Value | None] = [
        weights.integers(edit, lambda q: typed(back(q), scheme.bits, signed=signed), kind, ir.Shape(dims)),
        node.inputs[1],
        weights.scale(edit, np.ascontiguousarray(back(matrix.scale))),
    ]
    if matrix.zero_point is not None:
        operands.append(weights.zero_point(edit, typed(back(matrix.zero_point), scheme.bits, signed=signed)))
    gathered = int(query.attribute(node, "axis", 0)) % len(dims)
    _put(writer, node, operands, scheme, (gathered, axis))


def _put(
    writer: Writer,
    node: ir.Node,
    operands: Sequence[ir.Value | None],
    scheme: BlockScheme,
    axes: tuple[int, int] = (0, 1),
    before: Sequence[ir.Node] = (),
) -> None:
    """Put GatherBlockQuantized, after the nodes that make its operands, in the place of a Gather."""
    attributes = {"block_size": scheme.size, "gather_axis": axes[0], "quantize_axis": axes[1]}
    if operands[0] is not None and operands[0].dtype is ir.DataType.UINT8:
        attributes["bits"] = scheme.bits
    new = writer.editor.node(
        GATHER_BLOCKS.op_type,
        operands,
        attributes,
        name=f"{node.name}_Q{scheme.bits}",
        output=f"{node.outputs[0].name}{names.QUANTIZED}",
        domain=GATHER_BLOCKS.domain,
    )
    put_instead(writer.editor, node, [*before, new])
    writer.nodes[node.name or ""] = new


def _write_packed(writer: Writer, node: ir.Node, weights: StoredBlocks) -> None:
    """Write a lookup of bytes that hold several integers each."""
    edit, matrix = writer.editor, weights.matrix
    scheme, (rows, width) = matrix.scheme, matrix.shape
    shape = ir.Shape((rows, -(-width // scheme.size) * scheme.size * scheme.bits // 8))
    operands = [
        weights.integers(edit, lambda q: ir.Tensor(laid_out(q, scheme).reshape(rows, -1)), "UINT8", shape),
        node.inputs[1],
        weights.scale(edit, np.ascontiguousarray(matrix.scale)),
    ]
    if matrix.zero_point is not None:
        operands.append(weights.zero_point(edit, zero_points(matrix.zero_point, scheme)))
    _put(writer, node, operands, scheme)


def _write_tied(writer: Writer, node: ir.Node, root: Key) -> None:
    """Write a lookup of the table that a MatMulNBits reads as its weight."""
    edit = writer.editor
    called = GROUPED if writer.plan.writing.group_names else PLAIN
    weights = stored(writer, root, called, MATMUL_NBITS.op_type)
    matrix = weights.matrix
    scheme, (rows, width) = matrix.scheme, matrix.shape
    packed = weights.integers(
        edit, lambda q: ir.Tensor(laid_out(q, scheme)), "UINT8", packed_shape(rows, width, scheme)
    )
    base = node.outputs[0].name or ""
    shape = edit.constant(f"{base}_table_shape", np.array([rows, width * scheme.bits // 8]))
    table = edit.node(
        "Reshape", [packed, shape], {}, name=f"{base}_table", output=f"{base}_table", dtype=packed.dtype
    )
    operands = [table.outputs[0], node.inputs[1], weights.scale(edit, np.ascontiguousarray(matrix.scale))]
    if matrix.zero_point is not None:
        operands.append(weights.zero_point(edit, zero_points(matrix.zero_point, scheme)))
    _put(writer, node, operands, scheme, before=[table])
