"""How much an error of each channel of a quantized tensor weighs for the tensor's consumers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.algorithms.layers.activation_spread import FUNCTIONS
from octavo.algorithms.layers.layer import F64, Layer, is_layer, layer_of
from octavo.algorithms.layers.subject import Subject
from octavo.core.plan import Key
from octavo.model.graph import query
from octavo.ops.patterns import KEEP_CHANNELS, MOVE_SCORES, READ_SILU


@dataclass(frozen=True)
class Importance:
    """The weight of each channel's error along an axis (None: all alike), after an activation function."""

    axis: int = 0
    channels: F64 | None = None  # with a mean of 1
    function: str | None = None


def channel_importance(value: ir.Value, subject: Subject) -> Importance:
    """Return what errors of a tensor weigh for the nodes that read it quantized."""
    function, seen = _function(value, subject)
    axes: set[int] = set()
    found: list[F64] = []
    plain = int(seen.is_graph_output())  # consumers for which all channels weigh the same
    for read, node in _consumers(seen, subject):
        layer = layer_of(node)
        if not isinstance(layer, Layer) or layer.x is not read:
            plain += 1
            continue
        weight = (layer.by_channel(layer.rows()) ** 2).sum(axis=1)
        if weight.mean() > 0:
            axes.add(1 if layer.is_conv else -1)
            found.append(weight / weight.mean())
    if len(axes) != 1 or len({one.size for one in found}) != 1:
        return Importance(function=function)
    total = np.sum(found, axis=0) + plain
    return Importance(axes.pop(), np.asarray(total / total.mean()), function)


def _consumers(value: ir.Value, subject: Subject) -> Iterator[tuple[ir.Value, ir.Node]]:
    """Yield the nodes that read a tensor quantized, also after operators that keep channels in place."""
    for node in _quantized_consumers(value, subject):
        if node.op_type in KEEP_CHANNELS and subject.is_quantized(node):
            yield from _consumers(node.outputs[0], subject)
        else:
            yield value, node


def _quantized_consumers(value: ir.Value, subject: Subject) -> list[ir.Node]:
    """Return all consumers of a tensor that is quantized for all; else those with an entry of their own."""
    entries, name = subject.plan.entries, value.name or ""
    consumers = list(dict.fromkeys(value.consumers()))
    if Key(name) in entries:
        return consumers
    own = [node for node in consumers if Key(name, node.name) in entries]
    return own or consumers


def _function(value: ir.Value, subject: Subject) -> tuple[str | None, ir.Value]:
    """Return the activation function that is a tensor's only consumer, SiLU included, and its result."""
    consumers = _quantized_consumers(value, subject)
    if value.is_graph_output() or not all(subject.is_quantized(node) for node in consumers):
        return None, value
    kinds = sorted(node.op_type for node in consumers)
    if len(consumers) == 1 and kinds[0] in FUNCTIONS:
        return kinds[0], consumers[0].outputs[0]
    if tuple(kinds) == READ_SILU:
        product, gate = sorted(consumers, key=lambda node: node.op_type)
        if set(product.inputs) == {value, gate.outputs[0]} and len(gate.outputs[0].uses()) == 1:
            return "Silu", product.outputs[0]
    return None, value


def output_function(value: ir.Value) -> str | None:
    """Return the function that ends every path from a tensor after data movement: Sigmoid, or None."""
    seen = {value}
    todo = [value]
    while todo:
        here = todo.pop()
        if here.is_graph_output() or not here.uses():
            return None
        for node in here.consumers():
            if query.is_op(node, *MOVE_SCORES):
                todo.extend(v for v in node.outputs if v not in seen)
                seen.update(node.outputs)
            elif not query.is_op(node, "Sigmoid"):
                return None
    return "Sigmoid"


def reaches_output(value: ir.Value, subject: Subject) -> bool:
    """Return whether a tensor reaches an output of the model with no layer in between."""
    done: set[ir.Value] = set()
    todo = [value]
    while todo:
        one = todo.pop()
        if one in done:
            continue
        done.add(one)
        if one.is_graph_output():
            return True
        consumers = _quantized_consumers(one, subject) if one is value else one.consumers()
        todo += [v for node in consumers if not is_layer(node) for v in node.outputs]
    return False
