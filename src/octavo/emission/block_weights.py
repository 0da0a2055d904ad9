"""A weight in blocks on its way into a graph: computed once, stored once, however many nodes read it.

Where the algorithm is quick, the integers are computed again when the model is written, so that no quantized
copy of a large model lies in memory; scales and zero points are small and kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.algorithms.blocks import Array, Blocks, BlockScheme
from octavo.model.edit import Editor

LARGE = 1 << 24  # values; the integers of a larger weight are computed when they are written


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
class BlockWeights:
    """One weight, quantized one way; ``compute`` gives its rows [N, K] in blocks."""

    name: str
    shape: tuple[int, int]  # N, K
    scheme: BlockScheme
    compute: Callable[[], Blocks]
    quick: bool
    called: BlockNames = PLAIN
    _made: dict[str, ir.Value] = field(default_factory=dict)
    _blocks: Blocks | None = None
    _has_zero: bool | None = None

    @property
    def has_zero(self) -> bool:
        """Whether there are zero points."""
        if self._has_zero is None:
            self._has_zero = self._now().zero_point is not None
        return self._has_zero

    def _now(self) -> Blocks:
        if self._blocks is None:
            self._blocks = self.compute()
        return self._blocks

    def number(
        self, edit: Editor, part: str, read: Callable[[Blocks], Array | ir.TensorProtocol | None]
    ) -> ir.Value:
        """The scales or zero points as a constant of the graph."""
        if part not in self._made:
            found = read(self._now())
            if found is None:
                raise ValueError(f"{self.name} has no {part}")
            suffix = self.called.scale if part == "scale" else self.called.zero
            self._made[part] = edit.constant(self.name + suffix, found)
        return self._made[part]

    def integers(
        self, edit: Editor, read: Callable[[Blocks], ir.TensorProtocol], dtype: str, shape: ir.Shape
    ) -> ir.Value:
        """The integers as a constant of the graph."""
        if "integers" not in self._made:
            numbers = {"bits": self.scheme.bits, "size": self.scheme.size}
            tensor: ir.TensorProtocol
            if self.quick and int(np.prod(self.shape)) > LARGE:
                again = self.compute
                tensor = ir.LazyTensor(lambda: read(again()), dtype=ir.DataType[dtype], shape=shape)
            else:
                tensor = read(self._now())
            self._made["integers"] = edit.constant(self.name + self.called.integers.format(**numbers), tensor)
        return self._made["integers"]

    def let_go(self) -> None:
        """Forget the arrays; what the graph holds stays."""
        self._blocks = None
