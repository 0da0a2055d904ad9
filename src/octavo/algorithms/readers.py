"""Who reads a quantized tensor, and how much an error of each of its channels weighs there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.algorithms.layers import F64, PRODUCTS, Layer, layer_of
from octavo.algorithms.steps import Subject
from octavo.core.plan import Key
from octavo.model import query

_MOVES = ("MaxPool", "Resize", "Identity", "Dropout")  # channels stay where they are
_SHIFTS = ("Reshape", "Transpose", "Concat", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Identity")
_FUNCTIONS = ("Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Gelu")


@dataclass(frozen=True)
class Importance:
    """What an error weighs for each channel along an axis (None: all the same), behind which function."""

    axis: int = 0
    channels: F64 | None = None  # with a mean of 1
    function: str | None = None


def read_by(value: ir.Value, subject: Subject) -> Importance:
    """What errors of a tensor weigh for those who read it quantized."""
    function, seen = _function(value, subject)
    axes: set[int] = set()
    found: list[F64] = []
    plain = int(seen.is_graph_output())
    for read, node in _readers(seen, subject):
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


def _readers(value: ir.Value, subject: Subject) -> Iterator[tuple[ir.Value, ir.Node]]:
    """The nodes that read a tensor quantized, also behind such as leave channels where they are."""
    for node in _quantized_readers(value, subject):
        if node.op_type in _MOVES and subject.is_quantized(node):
            yield from _readers(node.outputs[0], subject)
        else:
            yield value, node


def _quantized_readers(value: ir.Value, subject: Subject) -> list[ir.Node]:
    """All readers of a tensor that is quantized for all; else those that have an entry of their own."""
    entries, name = subject.plan.entries, value.name or ""
    readers = list(dict.fromkeys(value.consumers()))
    if Key(name) in entries:
        return readers
    own = [node for node in readers if Key(name, node.name) in entries]
    return own or readers


def _function(value: ir.Value, subject: Subject) -> tuple[str | None, ir.Value]:
    """The activation function that is all that reads a tensor, and its result; SiLU as it is spelled."""
    readers = _quantized_readers(value, subject)
    if value.is_graph_output() or not all(subject.is_quantized(node) for node in readers):
        return None, value
    kinds = sorted(node.op_type for node in readers)
    if len(readers) == 1 and kinds[0] in _FUNCTIONS:
        return kinds[0], readers[0].outputs[0]
    if kinds == ["Mul", "Sigmoid"]:
        product, gate = sorted(readers, key=lambda node: node.op_type)
        if set(product.inputs) == {value, gate.outputs[0]} and len(gate.outputs[0].uses()) == 1:
            return "Silu", product.outputs[0]
    return None, value


def answer_function(value: ir.Value) -> str | None:
    """The function that every path from a tensor goes through behind data movement: Sigmoid, or none."""
    seen = {value}
    todo = [value]
    while todo:
        here = todo.pop()
        if here.is_graph_output() or not here.uses():
            return None
        for node in here.consumers():
            if query.is_op(node, *_SHIFTS):
                todo.extend(v for v in node.outputs if v not in seen)
                seen.update(node.outputs)
            elif not query.is_op(node, "Sigmoid"):
                return None
    return "Sigmoid"


def is_answer(value: ir.Value, subject: Subject) -> bool:
    """Whether a tensor reaches an output of the model with no layer in between."""
    done: set[ir.Value] = set()
    todo = [value]
    while todo:
        one = todo.pop()
        if one in done:
            continue
        done.add(one)
        if one.is_graph_output():
            return True
        readers = _quantized_readers(one, subject) if one is value else one.consumers()
        todo += [v for node in readers if node.op_type not in PRODUCTS for v in node.outputs]
    return False
