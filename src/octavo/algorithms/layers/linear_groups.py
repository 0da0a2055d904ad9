"""The linear layers that read one tensor: they share the factors by which its channels are scaled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.algorithms.layers.layer import F64, Layer, layer_of
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.model.graph import query
from octavo.ops import rule_of

_MAX_FACTOR = 1e4  # of a factor, and its inverse


@dataclass(frozen=True)
class Group:
    """The linear layers that read one tensor."""

    x: ir.Value
    layers: tuple[Layer, ...]
    is_lone: bool = False  # the head of a convolutional model, which has no other linear layers

    @property
    def name(self) -> str:
        """Return the names of its layers."""
        return ", ".join(layer.name for layer in self.layers)

    def multiply(self, factors: F64) -> None:
        """Multiply the weights of each input channel by its factor."""
        for layer in self.layers:
            layer.store(layer.rows() * layer.spread(factors))


def groups(subject: Subject) -> list[Group | Refusal]:
    """Return the groups of quantized linear layers of the main graph, and the layers refused."""
    found: dict[ir.Value, list[Layer]] = {}
    refused: list[Group | Refusal] = []
    for node in subject.model.graph:
        if not is_matrix_product(node) or not subject.is_quantized(node):
            continue
        layer = layer_of(node)
        if isinstance(layer, str):
            refused.append(Refusal(node.name or "", layer))
        elif layer is not None and query.rank(layer.x) is None:
            refused.append(Refusal(node.name or "", "the rank of its input is not known"))
        elif layer is not None:
            found.setdefault(layer.x, []).append(layer)
    lone = len(found) == 1 and any(node.op_type == "Conv" for node in subject.plan.nodes.values())
    return [*(Group(x, tuple(layers), lone) for x, layers in found.items()), *refused]


def is_matrix_product(node: ir.Node) -> bool:
    """Whether an operator multiplies by a matrix."""
    rule = rule_of(node)
    return rule is not None and rule.is_matrix_product


def channel_factors(x: F64, alpha: float, w: F64, beta: float) -> F64:
    """Return ``x^alpha / w^beta`` for each channel, around 1; 1 for channels that are always zero."""
    used = (x > 0) & (w > 0)
    s = np.ones(x.shape)
    s[used] = x[used] ** alpha / w[used] ** beta
    middle = np.exp(np.mean(np.log(s[used]))) if used.any() else 1.0
    return np.where(used, np.clip(s / middle, 1 / _MAX_FACTOR, _MAX_FACTOR), 1.0)
