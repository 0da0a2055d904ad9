"""Tables in blocks: GatherBlockQuantized, which dequantizes only the rows that it looks up.

4 bits are stored in the type of that name, signed without zero points, unsigned with them. 8 bits are
unsigned bytes, with 128 for zero where there are no zero points; the kernel takes them only if rows are
looked up along axis 0 and blocks run along the last.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core.blocks import Array
from octavo.core.granularity import PerBlock
from octavo.core.plan import Key
from octavo.emission import names
from octavo.emission.block_qdq import typed
from octavo.emission.block_weights import PLAIN, stored
from octavo.emission.nbits import put_instead
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model.graph import query
from octavo.ops import GATHER_BLOCKS


def write_lookup(writer: Writer, node: ir.Node, key: Key) -> None:
    """Write GatherBlockQuantized in the place of a Gather."""
    edit, weights = writer.editor, stored(writer, key, PLAIN, GATHER_BLOCKS.op_type)
    matrix, grain = weights.matrix, writer.params[key].granularity
    dims = query.static_shape(writer.values[key.tensor])
    if dims is None or not isinstance(grain, PerBlock) or grain.axis is None:
        raise TableError(f"The plan quantizes the table of {node.name!r}, which has no blocks or no shape.")
    axis, scheme = grain.axis, matrix.scheme
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
    attributes = {
        "block_size": scheme.size,
        "gather_axis": int(query.attribute(node, "axis", 0)) % len(dims),
        "quantize_axis": axis,
    }
    if scheme.bits == 8:
        attributes["bits"] = 8
    new = edit.node(
        GATHER_BLOCKS.op_type,
        operands,
        attributes,
        name=f"{node.name}_Q{scheme.bits}",
        output=f"{node.outputs[0].name}{names.QUANTIZED}",
        domain=GATHER_BLOCKS.domain,
    )
    put_instead(edit, node, [new])
    writer.nodes[node.name or ""] = new
