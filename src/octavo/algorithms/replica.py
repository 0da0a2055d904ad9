"""A quantized layer replayed on float inputs, beside the float layer: its local error, measured.

What quantization does to one layer is done to a copy of it, with plain operators that no runtime fuses: its
input rounded, its weights as they are stored. Nothing of what other layers do comes in, and how its result is
rounded is left to those who read it. Copies of all layers stand in one model and take one pass over the data.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers import Layer
from octavo.core.qparams import QParams
from octavo.core.stats import Need
from octavo.model.edit import Editor

_WIDER = 257  # steps of 16 bits in one of 8


@dataclass(frozen=True)
class Steps:
    """Numbers that a value is rounded to: multiples of ``size`` between two integers."""

    size: float
    low: int
    high: int

    @classmethod
    def of(cls, params: QParams | None) -> Steps | None:
        """From one scale and zero point; None where there is no such."""
        if params is None or params.scale.ndim or params.qtype.is_float:
            return None
        zero = int(params.zero_point.astype(np.int64))
        return cls(float(params.scale), params.qtype.qmin - zero, params.qtype.qmax - zero)

    def wider(self) -> Steps:
        """The same range in 16 bits."""
        return Steps(self.size / _WIDER, self.low * _WIDER, self.high * _WIDER)


@dataclass(frozen=True)
class Replica:
    """A copy of a layer: what it reads rounded, and the weights that it holds; None: its own."""

    name: str
    layer: Layer
    weight: npt.NDArray[Any] | None
    reads: Steps | None

    @property
    def noise(self) -> str:
        """What the sum of its squared errors is called."""
        return f"replica/{self.name}/noise"

    @property
    def signal(self) -> str:
        """What the sum of its squared float results is called."""
        return f"replica/{self.layer.name}/signal"

    @property
    def size(self) -> str:
        """What the number of its results is called."""
        return f"replica/{self.layer.name}/size"

    def wider(self) -> Replica:
        """The same with activations of 16 bits."""
        reads = self.reads.wider() if self.reads is not None else None
        return replace(self, name=f"{self.name}/16", reads=reads)

    def float_layer(self) -> Replica:
        """The same with float weights: a float layer that reads a rounded tensor."""
        return replace(self, name=f"{self.name}/float", weight=None)


class Graph(Protocol):
    """Where copies are put."""

    editor: Editor

    @property
    def needs(self) -> Collection[str]:
        """What is noted already."""
        ...

    def note(
        self,
        name: str,
        op: str,
        operands: Sequence[ir.Value | None],
        attributes: dict[str, object],
        need: Need | None = None,
    ) -> None:
        """Add a node whose result is wanted."""
        ...

    def node(
        self,
        op: str,
        operands: Sequence[ir.Value | None],
        attributes: dict[str, object] | None = None,
        *,
        output: str | None = None,
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        """Add a node."""
        ...


def placed(replica: Replica, graph: Graph, prefix: str) -> None:
    """Put the copy of a layer into a graph, to note its squared errors and what they are compared with."""
    layer, result = replica.layer, replica.layer.y
    node = layer.node
    x = _rounded(layer.x, replica.reads, graph)
    weight = layer.weight
    if replica.weight is not None:
        weight = graph.editor.constant(f"{prefix}weight", replica.weight)
    attributes: dict[str, object] = {name: found.value for name, found in node.attributes.items()}
    y = graph.node(node.op_type, [x, weight, *node.inputs[2:]], attributes)
    if layer.bias_node is not node and layer.bias is not None:
        y = graph.node("Add", [y, layer.bias])
    off = graph.node("Sub", [result, y])
    need = Need(totals=True, some=True)
    graph.note(prefix + replica.noise, "ReduceSum", [graph.node("Mul", [off, off])], {"keepdims": 0}, need)
    if prefix + replica.signal not in graph.needs:
        squares = graph.node("Mul", [result, result])
        graph.note(prefix + replica.signal, "ReduceSum", [squares], {"keepdims": 0}, need)
        size = graph.node("Size", [result], dtype=ir.DataType.INT64)
        graph.note(prefix + replica.size, "Cast", [size], {"to": int(ir.DataType.FLOAT)}, need)


def _rounded(value: ir.Value, steps: Steps | None, graph: Graph) -> ir.Value:
    if steps is None:
        return value
    size, low, high = (
        graph.editor.constant("octavo/number", np.full((), number, np.float32))
        for number in (steps.size, steps.low, steps.high)
    )
    whole = graph.node("Round", [graph.node("Div", [value, size])])
    return graph.node("Mul", [graph.node("Clip", [whole, low, high]), size])
