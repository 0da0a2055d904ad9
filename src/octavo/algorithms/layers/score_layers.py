"""Layers whose results become the probabilities that a model returns, by a Softmax over their outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers.layer import Layer, layers
from octavo.algorithms.layers.quantized_layers import QuantizedLayer, quantized_layers
from octavo.algorithms.layers.score_fit import probabilities
from octavo.algorithms.layers.subject import Subject
from octavo.model.graph import query
from octavo.ops.patterns import MOVE_SCORES

Array = npt.NDArray[Any]

MOST_FEATURES = 1024  # features of a layer that can be fitted in little time


@dataclass(frozen=True)
class ScoreLayer:
    """A layer of scores, each from the features of one place, and the Softmax that reads them."""

    layer: Layer
    softmax: ir.Node
    quantized: QuantizedLayer | None = None  # None: its weights are float

    def rows(self, values: Array) -> Array:
        """Return the features or scores of a sample with a row for each place."""
        if self.layer.is_conv:
            values = np.moveaxis(values, 1, -1)
        return values.reshape(-1, values.shape[-1])

    def is_over_classes(self, values: Mapping[str, Array]) -> bool:
        """Whether the result of the Softmax is what it would be over the layer's outputs, place by place."""
        result, scores = values[self.softmax.outputs[0].name or ""], values[self.layer.y.name or ""]
        expected = probabilities(self.rows(scores).astype(np.float64))
        found = self.rows(result) if result.shape == scores.shape else result
        same_size = found.size == expected.size
        return same_size and bool(np.allclose(found.reshape(-1), expected.reshape(-1), atol=1e-4))


def score_layers(subject: Subject) -> Iterator[ScoreLayer]:
    """Yield the layers of the main graph whose scores the model returns as probabilities.

    One that the plan leaves in float reads what quantized layers before it computed.
    """
    quantized = {one.layer.name: one for one in quantized_layers(subject)[0]}
    for layer in layers(subject.model):
        if not isinstance(layer, Layer) or (layer.name in subject.plan.nodes and layer.name not in quantized):
            continue
        softmax = _softmax(layer.y) if _reads_places(layer) else None
        if softmax is not None and layer.bias is not None:
            yield ScoreLayer(layer, softmax, quantized.get(layer.name))


def _reads_places(layer: Layer) -> bool:
    """Whether each output is computed from the features of one place, which are few enough."""
    return layer.groups == 1 and layer.is_pointwise and layer.inputs <= MOST_FEATURES


def _softmax(scores: ir.Value) -> ir.Node | None:
    """Return the Softmax that alone reads scores, and whose result the model returns."""
    readers = [node for value in _moved(scores) for node in value.consumers()]
    ends = [node for node in readers if not _moves(node) and not query.is_op(node, "Shape")]
    if any(value.is_graph_output() for value in _moved(scores)) or len(set(ends)) != 1:
        return None
    (end,) = set(ends)
    is_returned = any(value.is_graph_output() for value in _moved(end.outputs[0]))
    return end if is_returned and query.is_op(end, "Softmax") else None


def _moves(node: ir.Node) -> bool:
    return query.is_op(node, *MOVE_SCORES)


def _moved(value: ir.Value) -> list[ir.Value]:
    """Return a value, and all that it is after being moved."""
    found = [value]
    for here in found:
        behind = (v for node in here.consumers() if _moves(node) for v in node.outputs)
        found += [v for v in dict.fromkeys(behind) if v not in found]
    return found
