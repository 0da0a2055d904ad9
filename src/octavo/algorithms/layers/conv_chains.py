"""Chains of convolutions: each is the only consumer of the one before, through at most one activation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers.layer import F64, Layer, layer_of
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.model.graph import query
from octavo.ops.patterns import HOMOGENEOUS


@dataclass(frozen=True)
class Bound:
    """The channels that a Clip's bounds may act on, and the least factor that the others can take."""

    binding: npt.NDArray[np.bool_]
    least: F64


@dataclass(frozen=True)
class Pair:
    """Two convolutions, and the activation between them with its bounds."""

    first: Layer
    second: Layer
    activation: ir.Node | None
    bottom: float = 0.0  # of a Clip; -inf where it has none
    top: float = np.inf

    @property
    def is_bounded(self) -> bool:
        """Whether a Clip is between the two layers."""
        return self.activation is not None and self.activation.op_type == "Clip"

    @property
    def absorbs(self) -> bool:
        """Whether a bias can move on: after a Relu or a Clip at zero, where no padding is read."""
        if self.activation is None or self.second.padded or not self.second.takes_bias:
            return False
        return self.activation.op_type == "Relu" or (
            self.activation.op_type == "Clip" and self.bottom == 0 and self.first.takes_bias
        )

    def bound(self, low: F64, high: F64, margin: float) -> Bound:
        """Return what the activation's bounds allow, by the extremes of each channel before it."""
        if not self.is_bounded:
            return Bound(np.zeros(low.shape, bool), np.zeros(low.shape))
        binding = np.full(low.shape, self.top <= 0 or self.bottom > 0)
        if np.isfinite(self.top):
            binding |= high * margin >= self.top
        if np.isfinite(self.bottom) and self.bottom < 0:
            binding |= low * margin <= self.bottom
        return Bound(binding, np.ones(low.shape))


@dataclass(frozen=True)
class Chain:
    """Consecutive pairs: the second layer of one is the first of the next."""

    pairs: tuple[Pair, ...]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return all layers, one more than pairs."""
        return (self.pairs[0].first, *(pair.second for pair in self.pairs))

    @property
    def name(self) -> str:
        """Return the names of the first and the last layer."""
        return f"{self.layers[0].name} … {self.layers[-1].name}"


def chains(subject: Subject) -> tuple[list[Chain], list[Refusal]]:
    """Return the chains of quantized convolutions in the main graph, and the convolutions that end one."""
    refused: list[Refusal] = []
    starting: dict[str, Pair] = {}
    for node in subject.model.graph:
        if node.op_type != "Conv" or not subject.is_quantized(node):
            continue
        found = _pair(node, subject)
        if isinstance(found, Pair):
            starting[found.first.name] = found
        else:
            refused.append(Refusal(node.name or "", found))
    inner = {pair.second.name for pair in starting.values()}
    result = []
    for name, pair in starting.items():
        if name in inner:
            continue
        row = [pair]
        while row[-1].second.name in starting:
            row.append(starting[row[-1].second.name])
        result.append(Chain(tuple(row)))
    return result, refused


def _pair(node: ir.Node, subject: Subject) -> Pair | str:
    first = layer_of(node)
    if not isinstance(first, Layer):
        return first or "it is not a convolution with constant weights"
    if query.rank(first.x) is None or query.rank(first.y) is None:
        return "the rank of its tensors is not known"
    consumer = query.only_reader(first.y)
    activation: ir.Node | None = None
    if consumer is not None and consumer.op_type != "Conv":
        activation = consumer
        if not _keeps_scales(consumer):
            return f"a {consumer.op_type} follows, through which scales can't be moved"
        consumer = query.only_reader(consumer.outputs[0])
    if consumer is None:
        last = first.y if activation is None else activation.outputs[0]
        return "its result has several consumers" if last.uses() else "its result is an output of the model"
    if consumer.op_type != "Conv" or not subject.is_quantized(consumer):
        return f"no quantized convolution follows, but a {consumer.op_type}"
    second = layer_of(consumer)
    if not isinstance(second, Layer):
        return f"the scales of the next convolution can't be changed: {second or 'its weight is computed'}"
    if second.x not in (first.y, activation.outputs[0] if activation is not None else None):
        return "its result is the weight of another layer"
    if activation is None or activation.op_type != "Clip":
        return Pair(first, second, activation)
    bottom, top = (_bound(activation, i, d) for i, d in ((1, -np.inf), (2, np.inf)))
    if bottom is None or top is None:
        return "the bounds of its Clip are computed"
    return Pair(first, second, activation, bottom, top)


def _keeps_scales(node: ir.Node) -> bool:
    return not node.domain and (
        node.op_type == "Clip"
        or (
            node.op_type in HOMOGENEOUS
            and (node.op_type != "PRelu" or query.constant(node.inputs[1]) is not None)
        )
    )


def _bound(clip: ir.Node, index: int, default: float) -> float | None:
    if index >= len(clip.inputs) or clip.inputs[index] is None:
        return default
    return query.scalar(clip.inputs[index])
