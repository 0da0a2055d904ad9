"""Folding a division of a tensor's channels into constants of the nodes that compute the tensor.

From the tensor backwards, as long as what lies between has one consumer: a constant that is added is divided
and the search goes on before the Add; a constant factor, the scale and shift of a normalization or the
weights of a linear layer are divided, and it ends. Relu keeps positive factors, and of a product one operand
takes them. Attention mixes positions, not channels: factors after it go into the layer of its values.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.algorithms.layers.layer import F64, Layer, layer_of, replace_constant
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.ops import rule_of
from octavo.ops.patterns import KEEP_FACTORS, NORMALIZATIONS, READ_SHAPES


@dataclass(frozen=True)
class Divisible:
    """Constants of one node that can be divided: these inputs along the last axis, or a linear layer's."""

    node: ir.Node
    inputs: tuple[int, ...] = ()
    layer: Layer | None = None

    @property
    def name(self) -> str:
        """Return the node's name."""
        return self.node.name or self.node.op_type

    def has(self, size: int) -> bool:
        """Return whether the constants have so many channels."""
        if self.layer is not None:
            return self.layer.outputs == size
        return all((query.shape(self.node.inputs[i]) or (0,))[-1] == size for i in self.inputs)

    def divide(self, factors: F64, editor: Editor) -> None:
        """Divide the channels of the node's result."""
        if self.layer is not None:
            rows = self.layer.rows()
            self.layer.store(rows / factors.reshape(1, -1, 1))
            if self.layer.bias is not None:
                self.layer.store_bias(self.layer.bias_values() / factors, editor)
            return
        for index in self.inputs:
            value = self.node.inputs[index]
            content = np.asarray(value.const_value.numpy())  # type: ignore[union-attr]
            divided = (content.astype(np.float64) / factors).astype(content.dtype)
            replace_constant(editor, self.node, value, divided)  # type: ignore[arg-type]


def divisible(x: ir.Value, consumers: Collection[ir.Node], size: int) -> list[Divisible] | str:
    """Return what to divide so that the ``size`` channels of ``x`` are divided, or why it can't be."""
    others = [
        node.name or node.op_type
        for node in x.consumers()
        if not (node in consumers or node.op_type in READ_SHAPES)
    ]
    if others:
        more = f" and {len(others) - 1} other nodes" if len(others) > 1 else ""
        return f"its input is also read by {others[0]}{more}"
    if x.is_graph_output():
        return "its input is an output of the model"
    found = _of(x)
    if not isinstance(found, str) and not all(one.has(size) for one in found):
        return "the constants before it have other channels"
    return found


def _of(value: ir.Value) -> list[Divisible] | str:
    node = value.producer()
    if node is None:
        return "its input is an input of the model"
    if node.op_type in NORMALIZATIONS and value is node.outputs[0]:
        return _norm(node)
    if node.domain:
        return f"its scales can't be folded into a {node.op_type}"
    match node.op_type:
        case "MatMul" | "Gemm":
            layer = layer_of(node)
            if not isinstance(layer, Layer) or layer.bias_node is not node:
                return "its scales can't be folded into the layer before"
            return [Divisible(node, layer=layer)]
        case "Add" | "Sub":
            return _sum(node)
        case "Mul" | "Div":
            return _product(node)
        case "Reshape":
            found = _attention(node)
            if isinstance(found, str) and _may_keep_channels(node):
                return _of(node.inputs[0])  # type: ignore[arg-type]
            return found
        case op if op in KEEP_FACTORS and _has_one_consumer(node.inputs[0]):
            return _of(node.inputs[0])  # type: ignore[arg-type]
        case op:
            return f"its scales can't be folded into a {op}"


def _norm(node: ir.Node) -> list[Divisible] | str:
    there = tuple(
        i for i in NORMALIZATIONS[node.op_type] if i < len(node.inputs) and node.inputs[i] is not None
    )
    if not all(_is_vector(node.inputs[i]) for i in there) or not there:
        return f"the scale of {node.name} is not a constant vector"
    axis = query.attribute(node, "axis", -1)
    rank = query.rank(node.inputs[0])
    if axis != -1 and axis != (rank or 0) - 1:
        return f"{node.name} normalizes more than the last axis"
    return [Divisible(node, there)]


def _sum(node: ir.Node) -> list[Divisible] | str:
    """Follow a linear layer's bias, or a constant that is added to a tensor that can be divided."""
    for index in (0, 1):
        value, other = node.inputs[1 - index], node.inputs[index]
        if value is None or not _is_vector(other) or not _has_one_consumer(value):
            continue
        producer = value.producer()
        layer = layer_of(producer) if producer is not None else None
        if isinstance(layer, Layer):
            if layer.bias_node is node:
                return [Divisible(node, layer=layer)]
            return "its scales can't be folded into the layer before"
        behind = _of(value)
        return behind if isinstance(behind, str) else [Divisible(node, (index,)), *behind]
    return f"its scales can't be folded into {_an(node.op_type)} {node.op_type} of two tensors"


def _product(node: ir.Node) -> list[Divisible] | str:
    left, right = node.inputs
    if node.op_type == "Mul":
        for index in (0, 1):
            if _is_vector(node.inputs[index]):
                return [Divisible(node, (index,))]
    reason = f"its scales can't be folded into {_an(node.op_type)} {node.op_type} of two tensors"
    for value in (right, left) if node.op_type == "Mul" else (left,):
        if (
            value is not None
            and value is not (left if value is right else right)
            and _has_one_consumer(value)
        ):
            found = _of(value)
            if not isinstance(found, str):
                return found
    return reason


def _an(op_type: str) -> str:
    return "an" if op_type[0] in "AEIOU" else "a"


def _attention(joined: ir.Node) -> list[Divisible] | str:
    """Follow ``values → heads → probabilities · values → heads joined`` where axes have the usual order."""
    reason = "its scales can't be folded into a Reshape"
    turned = _before(joined.inputs[0], "Transpose")
    mixed = _before(turned.inputs[0], "MatMul") if turned is not None else None
    values = _before(mixed.inputs[1], "Transpose") if mixed is not None else None
    split = _before(values.inputs[0], "Reshape") if values is not None else None
    if turned is None or mixed is None or values is None or split is None:
        return reason
    if any(tuple(query.attribute(node, "perm", ())) != (0, 2, 1, 3) for node in (turned, values)):
        return reason
    heads, whole = query.shape(split.outputs[0]), query.shape(joined.outputs[0])
    source = split.inputs[0]
    before = query.shape(source)
    if heads is None or whole is None or before is None or len(heads) != 4 or source is None:
        return reason
    size = whole[-1]
    if size is None or before[-1] != size or None in heads[2:] or int(np.prod(heads[2:])) != size:  # type: ignore[arg-type]
        return reason
    return _of(source) if _has_one_consumer(source) else reason


def _may_keep_channels(node: ir.Node) -> bool:
    """Whether a Reshape may fold the other axes alone, as before a Gemm.

    It does where the constants that are divided have as many channels as its result: that is checked at the
    end, since shapes are often not known.
    """
    dims = [query.shape(value) for value in (node.inputs[0], node.outputs[0]) if value is not None]
    last = {one[-1] for one in dims if one and one[-1] is not None}
    return len(last) < 2 and _has_one_consumer(node.inputs[0])


def _before(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that computes a value, if it is of this type and the value has one consumer."""
    node = value.producer() if _has_one_consumer(value) and value is not None else None
    return node if node is not None and node.op_type == op_type and not node.domain else None


def _is_vector(value: ir.Value | None) -> bool:
    dims = query.static_shape(value) if value is not None and value.is_initializer() else None
    if dims is None or not dims or query.constant(value) is None:
        return False
    return dims[-1] > 1 and all(d == 1 for d in dims[:-1]) and query.is_float(value)


def _has_one_consumer(value: ir.Value | None) -> bool:
    """Whether one node reads the numbers of a value; others may read its shape."""
    if value is None or value.is_graph_output():
        return False
    return sum(node.op_type not in READ_SHAPES for node in value.consumers()) == 1


def insert_mul(x: ir.Value, consumers: Sequence[ir.Node], factors: F64, editor: Editor) -> ir.Node:
    """Insert one Mul with factors of the channels between a tensor and some of its consumers."""
    constant = editor.constant(f"{x.name}_smooth_scale", factors.astype(np.float32))
    name = f"{x.name}_smooth"
    node = editor.node("Mul", [x, constant], name=name, output=name, dtype=query.element_type(x))
    node.outputs[0].shape = x.shape
    first = min(consumers, key=list(consumers[0].graph or ()).index)
    first.prepend(node)
    for consumer in consumers:
        for index, value in enumerate(consumer.inputs):
            if value is x:
                consumer.replace_input_with(index, node.outputs[0])
    return node


# ---- The linear layers that read one tensor: they share the factors by which its channels are scaled

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
            layer.multiply(factors)


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
