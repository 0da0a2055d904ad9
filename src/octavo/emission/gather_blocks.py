"""Tables in blocks: GatherBlockQuantized, which dequantizes only the rows that it looks up.

4 bits are stored in the type of that name, signed without zero points, unsigned with them. 8 bits are
unsigned bytes, with 128 for zero where there are no zero points; the kernel takes them only if rows are
looked up along axis 0 and blocks run along the last.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.algorithms.blocks import Array, Blocks
from octavo.emission import names
from octavo.emission.block_qdq import typed
from octavo.emission.block_weights import BlockWeights
from octavo.emission.nbits import put_instead
from octavo.model import query
from octavo.model.edit import Editor


def refusal(bits: int, size: int, rank: int, gather: int, axis: int) -> str | None:
    """Why a lookup can't be written in blocks, or None."""
    if bits not in (4, 8):
        return f"GatherBlockQuantized has no {bits}-bit kernel"
    if size < 16 or size & (size - 1):
        return f"GatherBlockQuantized takes blocks of a power of two from 16, not {size}"
    if bits == 8 and (gather != 0 or axis != rank - 1):
        return "GatherBlockQuantized takes 8 bits only along axis 0, with blocks along the last axis"
    return None


def write_lookup(
    edit: Editor, node: ir.Node, weights: BlockWeights, dims: tuple[int, ...], axis: int
) -> None:
    """Write GatherBlockQuantized in the place of a Gather; rows of ``weights`` are the table's, axis last."""
    scheme = weights.scheme
    signed = scheme.bits == 4 and not weights.has_zero
    kind = "UINT8" if scheme.bits == 8 else "INT4" if signed else "UINT4"
    others = [d for i, d in enumerate(dims) if i != axis]

    def back(array: Array) -> Array:
        return np.moveaxis(array.reshape(*others, array.shape[1]), -1, axis)

    def integers(blocks: Blocks) -> ir.TensorProtocol:
        return typed(back(blocks.integers), scheme.bits, signed=signed)

    def zeros(blocks: Blocks) -> ir.TensorProtocol | None:
        zero = blocks.zero_point
        return None if zero is None else typed(back(zero), scheme.bits, signed=signed)

    operands: list[ir.Value | None] = [
        weights.integers(edit, integers, kind, ir.Shape(dims)),
        node.inputs[1],
        weights.number(edit, "scale", lambda b: np.ascontiguousarray(back(b.scale))),
    ]
    if weights.has_zero:
        operands.append(weights.number(edit, "zero", zeros))
    attributes = {
        "block_size": scheme.size,
        "gather_axis": int(query.attribute(node, "axis", 0)) % len(dims),
        "quantize_axis": axis,
    }
    if scheme.bits == 8:
        attributes["bits"] = 8
    new = edit.node(
        "GatherBlockQuantized",
        operands,
        attributes,
        name=f"{node.name}_Q{scheme.bits}",
        output=f"{node.outputs[0].name}{names.QUANTIZED}",
        domain="com.microsoft",
    )
    put_instead(edit, node, [new])
