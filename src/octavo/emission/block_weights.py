"""Weights in blocks as constants of a graph: stored once, however many nodes read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_ir as ir

from octavo.core.blocks import Array, BlockMatrix
from octavo.core.plan import Key
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model.graph.edit import Editor
from octavo.planning.weights import weight_of


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
