"""Weights in blocks: MatMulNBits, which scales each run of weights by itself.

W[K, N] is stored as [N, blocks, bytes], unsigned, and scales as [N, blocks]; zero points, where there are
any, as [N, bytes], or in the float type of the scales. With accuracy level 4 the kernel quantizes activations
in blocks too, so that one outlier costs its block and not the whole tensor its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.core import kernels
from octavo.core.blocks import Array, BlockMatrix, BlockScheme
from octavo.core.plan import Key
from octavo.emission import names
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model.graph.edit import Editor
from octavo.ops import MATMUL_NBITS
from octavo.planning.weights import weight_of

# ---- Weights in blocks as constants of a graph: stored once, however many nodes read them


@dataclass(frozen=True)
class BlockNames:
    """How the parts of a weight are called, after the weight's own name."""

    integers: str = "_Q{bits}"
    scale: str = "_scales"
    zero: str = "_zero_points"


PLAIN = BlockNames()
GROUPED = BlockNames("_Q{bits}G{size}", "_scale", "_zp")
DEQUANTIZED = BlockNames("_DQ_Q{bits}", "_DQ_scales", "_DQ_zero_points")


@dataclass(eq=False)
class StoredBlocks:
    """One weight in blocks, and the constants that hold it."""

    name: str
    matrix: BlockMatrix
    called: BlockNames
    _made: dict[str, ir.Value] = field(default_factory=dict)

    def scale(self, edit: Editor, content: Array) -> ir.Value:
        """Return the scales as a constant."""
        return self._once("scale", lambda: edit.constant(self.name + self.called.scale, content))

    def zero_point(self, edit: Editor, content: Array | ir.TensorProtocol) -> ir.Value:
        """Return the zero points as a constant."""
        return self._once("zero", lambda: edit.constant(self.name + self.called.zero, content))

    def integers(
        self, edit: Editor, read: Callable[[Array], ir.TensorProtocol], dtype: str, shape: ir.Shape
    ) -> ir.Value:
        """Return the integers as a constant, laid out by ``read`` when they are written."""
        matrix, scheme = self.matrix, self.matrix.scheme

        def made() -> ir.Value:
            name = self.name + self.called.integers.format(bits=scheme.bits, size=scheme.size)
            lazy = ir.LazyTensor(lambda: read(matrix.integers), dtype=ir.DataType[dtype], shape=shape)
            return edit.constant(name, lazy)

        return self._once("integers", made)

    def _once(self, part: str, make: Callable[[], ir.Value]) -> ir.Value:
        if part not in self._made:
            self._made[part] = make()
        return self._made[part]


def stored(writer: Writer, key: Key, called: BlockNames, how: str) -> StoredBlocks:
    """Return the weight of a key as it is stored for one kind of operator, once for all that read it so."""
    params, source = writer.params[key], weight_of(writer.values[key.tensor])
    if params.matrix is None or source is None:
        raise TableError(f"The plan quantizes {key} in blocks, which needs a weight algorithm; name one.")
    slot = (StoredBlocks, params.matrix, called, how)
    if slot not in writer.shared:
        writer.shared[slot] = StoredBlocks(source[0].name or "", params.matrix, called)
    found: StoredBlocks = writer.shared[slot]
    return found


def block_product(writer: Writer, node: ir.Node, key: Key) -> None:
    """Write MatMulNBits in the place of a MatMul or Gemm, with the integers that a weight algorithm chose."""
    edit, planned = writer.editor, writer.plan.nodes[node.name or ""]
    weights = stored(writer, key, GROUPED if writer.plan.writing.group_names else PLAIN, MATMUL_NBITS.op_type)
    matrix = weights.matrix
    scheme, (columns, rows) = matrix.scheme, matrix.shape
    operands: list[ir.Value | None] = [
        node.inputs[0],
        weights.integers(
            edit, lambda q: ir.Tensor(laid_out(q, scheme)), "UINT8", packed_shape(columns, rows, scheme)
        ),
        weights.scale(edit, np.ascontiguousarray(matrix.scale)),
    ]
    if matrix.zero_point is not None:
        operands.append(weights.zero_point(edit, zero_points(matrix.zero_point, scheme)))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        operands += [None] * (5 - len(operands)) + [node.inputs[2]]
    new = edit.node(
        MATMUL_NBITS.op_type,
        operands,
        numbers(rows, columns, scheme, planned.accuracy_level),
        name=f"{node.name}_Q{scheme.bits}",
        output=f"{node.outputs[0].name}{names.QUANTIZED}",
        domain=MATMUL_NBITS.domain,
    )
    put_instead(edit, node, [new])
    writer.nodes[node.name or ""] = new


def numbers(rows: int, columns: int, scheme: BlockScheme, accuracy_level: int) -> dict[str, int]:
    """Return the attributes of a node; level 0 leaves the choice to the runtime."""
    found = {"K": rows, "N": columns, "bits": scheme.bits, "block_size": scheme.size}
    return {**found, "accuracy_level": accuracy_level} if accuracy_level else found


def packed_shape(columns: int, rows: int, scheme: BlockScheme) -> ir.Shape:
    """Return the shape of the stored weight."""
    return ir.Shape((columns, -(-rows // scheme.size), scheme.size * scheme.bits // 8))


def laid_out(integers: Array, scheme: BlockScheme) -> Array:
    """Lay integers [N, K] out as [N, blocks, bytes]; the kernel does not read the zeros beyond K."""
    count, columns = integers.shape
    blocks = -(-columns // scheme.size)
    padded = np.zeros((count, blocks * scheme.size), np.uint8)
    padded[:, :columns] = integers
    return kernels.pack(padded.reshape(count, blocks, scheme.size), scheme.bits)


def zero_points(zero: Array, scheme: BlockScheme) -> Array:
    """Return zero points as the kernel reads them: packed row by row, filled with middles; or fractions."""
    if zero.dtype != np.uint8:
        return zero
    short = -zero.shape[1] % (8 // scheme.bits)
    filled = np.pad(zero, ((0, 0), (0, short)), constant_values=scheme.middle)
    return kernels.pack(filled, scheme.bits)


def put_instead(edit: Editor, old: ir.Node, new: Sequence[ir.Node]) -> None:
    """Put nodes in the place of one; the output of the last takes over that of the old node."""
    if old.graph is None:
        raise TableError(f"The node {old.name!r} was removed already.")
    old.graph.insert_before(old, new)
    edit.take_over(new[-1].outputs[0], old.outputs[0])
    edit.remove([old])
    for node in new:
        if node.domain:
            edit.model.opset_imports.setdefault(node.domain, 1)
