"""Tables in blocks: GatherBlockQuantized, which dequantizes only the rows that it looks up.

4 bits are stored in the type of that name, signed without zero points, unsigned with them. 2 and 8 bits are
unsigned in bytes, with the middle for zero where there are no zero points; the kernel takes them only if rows
are looked up along axis 0 and blocks run along the last. A table that a MatMulNBits reads too is stored once,
as that one reads it: ``[rows, blocks, bytes]``, which a Reshape turns into ``[rows, bytes]`` for the lookup.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from octavo.core.blocks import Array, BlockScheme
from octavo.core.granularity import PerBlock
from octavo.core.plan import Key, Shared
from octavo.emission import names
from octavo.emission.block_qdq import typed
from octavo.emission.block_weights import GROUPED, PLAIN, StoredBlocks, stored
from octavo.emission.nbits import laid_out, packed_shape, put_instead, zero_points
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model.graph import query
from octavo.ops import GATHER_BLOCKS, MATMUL_NBITS


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
