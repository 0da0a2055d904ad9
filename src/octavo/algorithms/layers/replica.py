"""Replicas: a quantized layer run on float inputs beside the float layer, to measure its local error.

A replica does with plain operators, which no runtime fuses, what quantization does to the layer: its input is
rounded, its weights are those that are stored. The errors of other layers have no part in it, and rounding of
the result belongs to the consumers. Replicas of all layers are in one model and take one pass over the data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers.layer import Layer
from octavo.core.qparams import QParams
from octavo.core.requests import Request

if TYPE_CHECKING:
    from octavo.algorithms.layers.probes import Probes

_FINER = 257  # steps of 16 bits in one of 8: (2¹⁶ - 1) / (2⁸ - 1)


@dataclass(frozen=True)
class Rounding:
    """What values are rounded to: multiples of ``scale`` between two integers."""

    scale: float
    low: int
    high: int

    @classmethod
    def of(cls, params: QParams | None) -> Rounding | None:
        """Return the rounding by one scale and zero point; None where there are several or none."""
        if params is None or params.scale.ndim or params.qtype.is_float:
            return None
        zero = int(params.zero_point.astype(np.int64))
        return cls(float(params.scale), params.qtype.qmin - zero, params.qtype.qmax - zero)

    def in_16_bits(self) -> Rounding:
        """Return the rounding of the same range in 16 bits."""
        return Rounding(self.scale / _FINER, self.low * _FINER, self.high * _FINER)


@dataclass(frozen=True)
class Replica:
    """A copy of a layer, with its input rounded and other weights; None: as in the float layer."""

    name: str
    layer: Layer
    weight: npt.NDArray[Any] | None
    input_rounding: Rounding | None

    @property
    def noise(self) -> str:
        """Return the name of the sum of its squared errors."""
        return f"replica/{self.name}/noise"

    @property
    def signal(self) -> str:
        """Return the name of the sum of the squared float results."""
        return f"replica/{self.layer.name}/signal"

    @property
    def size(self) -> str:
        """Return the name of the number of results."""
        return f"replica/{self.layer.name}/size"

    def in_16_bits(self) -> Replica:
        """Return the replica with 16-bit activations."""
        rounding = self.input_rounding.in_16_bits() if self.input_rounding is not None else None
        return replace(self, name=f"{self.name}/16", input_rounding=rounding)

    def float_layer(self) -> Replica:
        """Return the replica with float weights: a float layer that reads a rounded tensor."""
        return replace(self, name=f"{self.name}/float", weight=None)


def add_replica(replica: Replica, graph: Probes, prefix: str) -> None:
    """Add the copy of a layer to a graph, with probes for its squared errors and the squared results."""
    layer, result = replica.layer, replica.layer.y
    node = layer.node
    x = _rounded(layer.x, replica.input_rounding, graph)
    weight = layer.weight
    if replica.weight is not None:
        weight = graph.editor.constant(f"{prefix}weight", replica.weight)
    attributes: dict[str, object] = {name: found.value for name, found in node.attributes.items()}
    y = graph.node(node.op_type, [x, weight, *node.inputs[2:]], attributes)
    if layer.bias_node is not node and layer.bias is not None:
        y = graph.node("Add", [y, layer.bias])
    error = graph.node("Sub", [result, y])
    request = Request(sums=True, some_samples=True)
    squares = graph.node("Mul", [error, error])
    graph.probe(prefix + replica.noise, "ReduceSum", [squares], {"keepdims": 0}, request)
    if prefix + replica.signal not in graph.requests:
        squares = graph.node("Mul", [result, result])
        graph.probe(prefix + replica.signal, "ReduceSum", [squares], {"keepdims": 0}, request)
        size = graph.node("Size", [result], dtype=ir.DataType.INT64)
        graph.probe(prefix + replica.size, "Cast", [size], {"to": int(ir.DataType.FLOAT)}, request)


def _rounded(value: ir.Value, rounding: Rounding | None, graph: Probes) -> ir.Value:
    if rounding is None:
        return value
    scale, low, high = (
        graph.editor.constant("octavo/number", np.full((), number, np.float32))
        for number in (rounding.scale, rounding.low, rounding.high)
    )
    whole = graph.node("Round", [graph.node("Div", [value, scale])])
    return graph.node("Mul", [graph.node("Clip", [whole, low, high]), scale])
