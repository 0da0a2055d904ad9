"""Batch normalization folded into the layer before it.

With ``s = γ / √(σ² + ε)``, ``BN(W∗x + b) = (s·W)∗x + s·(b − μ) + β``: the weight is scaled per output channel
and the bias shifted, in double precision. A constant ``Add`` or ``Mul`` per channel
after a convolution goes the same way, and so does a single number before it: ``W∗(s·x + t) + b`` is
``(s·W)∗x + b + t·ΣW``, where nothing is padded; else ``t/s`` is still added, and the product is saved.
Folded only where the layer's output has no other reader, so that nothing else sees the change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.model.graph import meta, query
from octavo.model.graph.edit import Editor, set_constant
from octavo.model.graph.operators import CONVOLUTIONS
from octavo.model.graph.scopes import detach

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Affine:
    """``y = scale · x + shift`` per channel."""

    scale: Doubles
    shift: Doubles


def fold(model: ir.Model) -> tuple[int, int]:
    """Fold what can be folded; returns the numbers of batch normalizations, and of additions and products."""
    edit = Editor(model)
    biases = folded = 0
    for graph in query.graphs(model):
        for node in list(graph):
            if node.domain or node.graph is None:
                continue
            if node.op_type in CONVOLUTIONS:
                biases += _fold_affine(edit, node)
            if node.op_type == "BatchNormalization":
                folded += _fold_norm(edit, node)
    return folded, biases


def fold_numbers_before(model: ir.Model) -> int:
    """Fold numbers by which inputs of convolutions are multiplied or shifted; returns how many nodes went.

    After the fusions, as a number may belong to an activation function that the runtime has one operator for.
    """
    edit = Editor(model)
    return sum(_fold_numbers(edit, node) for node in list(query.nodes(model)) if query.is_op(node, "Conv"))


def _doubles(value: ir.Value | None) -> Doubles | None:
    tensor = query.constant(value)
    if tensor is None or not query.is_float(value):
        return None
    return np.asarray(tensor.numpy()).astype(np.float64)


def _affine(node: ir.Node) -> Affine | None:
    """Return a batch normalization in inference as a scale and a shift, where its parameters are constant."""
    if query.attribute(node, "training_mode", 0) or query.attribute(node, "spatial", 1) != 1:
        return None
    if len(node.inputs) != 5 or any(value.name for value in node.outputs[1:]):
        return None
    gamma, beta, mean, variance = (_doubles(value) for value in node.inputs[1:])
    if gamma is None or beta is None or mean is None or variance is None:
        return None
    if gamma.ndim != 1 or not gamma.shape == beta.shape == mean.shape == variance.shape:
        return None
    scale = gamma / np.sqrt(variance + query.attribute(node, "epsilon", 1e-5))
    if not np.isfinite(scale).all():
        return None
    return Affine(scale, beta - mean * scale)


def _fold_norm(edit: Editor, norm: ir.Node) -> int:
    source = norm.inputs[0]
    layer = source.producer() if source is not None else None
    if source is None or layer is None or layer.graph is not norm.graph or layer.domain:
        return 0
    if query.only_reader(source) is not norm:
        return 0
    affine = _affine(norm)
    if affine is None:
        return 0
    match layer.op_type:
        case "Conv" | "ConvTranspose":
            done = into_convolution(edit, layer, affine)
        case "Gemm":
            done = _into_gemm(edit, layer, affine)
        case "MatMul":
            return _into_matmul(edit, layer, None, norm, affine)
        case "Add":
            product = _added_product(layer)
            return _into_matmul(edit, product, layer, norm, affine) if product is not None else 0
        case _:
            return 0
    if done:
        edit.take_over(source, norm.outputs[0])
        edit.remove([norm])
    return int(done)


def _channels(node: ir.Node, shape: tuple[int | None, ...]) -> int | None:
    """Return the output channels of a convolution by a weight of this shape; None for any other weight."""
    if len(shape) < 3 or shape[0] is None or shape[1] is None:
        return None
    if node.op_type == "Conv":
        return shape[0]
    groups = int(query.attribute(node, "group", 1))
    return shape[1] * groups if groups > 0 and shape[0] % groups == 0 else None


def _scaled(node: ir.Node, weight: Doubles, scale: Doubles) -> Doubles:
    """Return the weight with each output channel scaled; those of ConvTranspose lie group by group."""
    tail = (1,) * (weight.ndim - 2)
    if node.op_type == "Conv":
        return weight * scale.reshape(-1, 1, *tail)
    groups = int(query.attribute(node, "group", 1))
    grouped = weight.reshape(groups, -1, *weight.shape[1:])
    return (grouped * scale.reshape(groups, 1, -1, *tail)).reshape(weight.shape)


def after_convolution(layer: ir.Node, value: ir.Value, reader: ir.Node) -> Affine | None:
    """Return what a reader of a convolution's result, or behind it, does to each of its channels."""
    if reader.domain or reader.graph is not layer.graph:
        return None
    if reader.op_type == "BatchNormalization":
        return _affine(reader) if reader.inputs[0] is value else None
    if reader.op_type != "Div" or reader.inputs[0] is not value:
        return _constant_affine(layer, reader, value)
    divisor = _by_channel(layer, reader.inputs[1])
    if divisor is None or not divisor.all():
        return None
    return Affine(1.0 / divisor, np.zeros(divisor.size))


def into_convolution(edit: Editor, layer: ir.Node, affine: Affine) -> bool:
    """Let a convolution do what an affine function does to its channels; False where it can't."""
    weight = _doubles(layer.inputs[1])
    if weight is None or _channels(layer, weight.shape) != affine.scale.size:
        return False
    bias = _bias(layer, affine.scale.size)
    if bias is None:
        return False
    return _rewrite(
        edit,
        layer.inputs[1],
        (layer, 1, _scaled(layer, weight, affine.scale)),
        (layer, 2, bias * affine.scale + affine.shift),
    )


def _bias(layer: ir.Node, channels: int) -> Doubles | None:
    """Return a convolution's bias, zeros where it has none, None where it is not constant."""
    if len(layer.inputs) < 3 or layer.inputs[2] is None:
        return np.zeros(channels)
    bias = _doubles(layer.inputs[2])
    return bias if bias is not None and bias.shape == (channels,) else None


def _rewrite(edit: Editor, like: ir.Value | None, *changes: tuple[ir.Node, int, Doubles]) -> bool:
    """Give nodes new constant inputs of the type of ``like``; False, and no change, where one overflows."""
    dtype = query.element_type(like)
    if dtype is None:
        return False
    with np.errstate(over="ignore"):
        arrays = [np.asarray(content, dtype.numpy()) for _, _, content in changes]
    if not all(np.isfinite(array.astype(np.float64)).all() for array in arrays):
        return False
    for (node, index, _), array in zip(changes, arrays, strict=True):
        _set_input(edit, node, index, array)
    return True


def _set_input(edit: Editor, node: ir.Node, index: int, array: npt.NDArray[Any]) -> None:
    """Replace a constant: in place where nothing else reads the old one, else beside it."""
    old = query.operand(node, index)
    if old is not None and old.is_initializer() and len(old.uses()) == 1 and not old.is_graph_output():
        set_constant(old, array)
        return
    new = edit.constant(f"{old.name}_folded" if old is not None else f"{node.name}_bias", array)
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, new)


def _fold_affine(edit: Editor, layer: ir.Node) -> int:
    """Fold constant ``Add`` and ``Mul`` per channel behind a convolution into it; how many."""
    count = 0
    while (reader := query.only_reader(layer.outputs[0])) is not None:
        affine = _constant_affine(layer, reader)
        if affine is None or not into_convolution(edit, layer, affine):
            break
        edit.take_over(layer.outputs[0], reader.outputs[0])
        edit.remove([reader])
        count += 1
    return count


def _constant_affine(layer: ir.Node, reader: ir.Node, value: ir.Value | None = None) -> Affine | None:
    """Return an ``Add`` or ``Mul`` with a constant, as scale and shift of the layer's channels."""
    if reader.op_type not in ("Add", "Mul") or reader.domain or reader.graph is not layer.graph:
        return None
    source = value if value is not None else layer.outputs[0]
    values = _by_channel(layer, reader.inputs[1] if reader.inputs[0] is source else reader.inputs[0])
    if values is None:
        return None
    if reader.op_type == "Add":
        return Affine(np.ones(values.size), values)
    return Affine(values, np.zeros(values.size))


def _by_channel(layer: ir.Node, other: ir.Value | None) -> Doubles | None:
    """Return a constant that meets a layer's result, as one number for each channel, where it is that."""
    operand, weight = _doubles(other), query.shape(layer.inputs[1])
    if operand is None or weight is None or query.constant(layer.inputs[1]) is None:
        return None
    channels = _channels(layer, weight)
    if channels is None or operand.ndim > len(weight):
        return None
    shape = (1,) * (len(weight) - operand.ndim) + operand.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1) or shape[1] not in (1, channels):
        return None
    return np.broadcast_to(operand.reshape(-1), (channels,))


@dataclass(frozen=True)
class _NumberNode:
    """A node that computes ``scale · source + shift`` with a single number, which is one of its inputs."""

    node: ir.Node
    source: ir.Value
    number: int  # the index of the input that is the number
    scale: float = 1.0
    shift: float = 0.0


def _fold_numbers(edit: Editor, layer: ir.Node) -> int:
    """Fold what the input of a convolution is multiplied with and what is added; how many nodes went."""
    count = 0
    while (found := _number_before(layer.inputs[0], layer)) is not None:
        held = layer.inputs[1]
        weight = _doubles(held) if held is not None and len(held.uses()) == 1 else None
        bias = _bias(layer, len(weight)) if weight is not None and weight.ndim > 2 else None
        if weight is None or bias is None:
            break
        if found.shift and not _is_unpadded(layer):
            count += _past_addition(edit, layer, weight, found)
            break
        changes = [(layer, 1, weight * found.scale)]
        if found.shift:
            changes.append((layer, 2, bias + found.shift * weight.reshape(len(weight), -1).sum(axis=1)))
        if not _rewrite(edit, held, *changes):
            break
        layer.replace_input_with(0, found.source)
        edit.remove([found.node])
        count += 1
    return count


def _past_addition(edit: Editor, layer: ir.Node, weight: Doubles, added: _NumberNode) -> int:
    """Let a convolution multiply instead of what stands before an addition; the border stays zero."""
    product = _number_before(added.source, added.node)
    if product is None or product.shift or not product.scale:
        return 0
    old = _doubles(added.node.inputs[added.number])
    if old is None:
        return 0
    change = (added.node, added.number, old / product.scale)
    if not _rewrite(edit, layer.inputs[1], (layer, 1, weight * product.scale), change):
        return 0
    added.node.replace_input_with(1 - added.number, product.source)
    edit.remove([product.node])
    return 1


def _number_before(value: ir.Value | None, reader: ir.Node) -> _NumberNode | None:
    """Return the node that computes a value with one constant number, where only ``reader`` reads it."""
    node = value.producer() if value is not None else None
    if value is None or node is None or node.domain or node.graph is not reader.graph:
        return None
    if node.op_type not in ("Add", "Sub", "Mul", "Div") or meta.unit(node) is not None:
        return None
    if query.only_reader(value) is not reader:
        return None
    ordered = node.op_type in ("Sub", "Div")
    for index in (1,) if ordered else (1, 0):
        source, other = node.inputs[1 - index], node.inputs[index]
        number = query.scalar(other) if query.is_float(other) else None
        if source is None or number is None or not np.isfinite(number) or len(query.shape(other) or ()) > 1:
            continue
        match node.op_type:
            case "Add" | "Sub":
                return _NumberNode(node, source, index, shift=-number if ordered else number)
            case "Mul":
                return _NumberNode(node, source, index, scale=number)
            case _ if number:
                return _NumberNode(node, source, index, scale=1.0 / number)
    return None


def _is_unpadded(layer: ir.Node) -> bool:
    """Whether a convolution reads nothing but its input."""
    kind = query.attribute(layer, "auto_pad", "NOTSET")
    return kind == "VALID" or (kind == "NOTSET" and not any(query.attribute(layer, "pads", ())))


def _into_gemm(edit: Editor, layer: ir.Node, affine: Affine) -> bool:
    weight = _doubles(layer.inputs[1])
    if weight is None or weight.ndim != 2:
        return False
    axis = 0 if query.attribute(layer, "transB", 0) else 1
    if weight.shape[axis] != affine.scale.size:
        return False
    addend = np.zeros(1)
    if len(layer.inputs) > 2 and layer.inputs[2] is not None:
        found = _doubles(layer.inputs[2])
        if found is None or found.size not in (1, affine.scale.size) or found.shape[-1:] != (found.size,):
            return False
        addend = found.reshape(-1) * query.attribute(layer, "beta", 1.0)
    shape = (-1, 1) if axis == 0 else (1, -1)
    done = _rewrite(
        edit,
        layer.inputs[1],
        (layer, 1, weight * affine.scale.reshape(shape)),
        (layer, 2, addend * affine.scale + affine.shift),
    )
    if done:
        layer.attributes.pop("beta", None)
    return done


def _added_product(add: ir.Node) -> ir.Node | None:
    """Return the ``MatMul`` that a bias is added to."""
    for value in add.inputs:
        producer = value.producer() if value is not None else None
        linear = query.linear_layer(producer) if producer is not None else None
        if linear is not None and linear.add is add:
            return producer
    return None


def _into_matmul(edit: Editor, product: ir.Node, add: ir.Node | None, norm: ir.Node, affine: Affine) -> int:
    """``MatMul (+ Add) + BN``: only where the product is a matrix, whose last axis is the channel axis."""
    linear = query.linear_layer(product)
    weight = _doubles(product.inputs[1]) if linear is not None else None
    if linear is None or weight is None or query.rank(norm.inputs[0]) != 2:
        return 0
    if weight.shape[1] != affine.scale.size:
        return 0
    bias = _doubles(linear.bias) if add is not None else np.zeros(affine.scale.size)
    if bias is None:
        return 0
    new = [(product, 1, weight * affine.scale)]
    last = add
    if last is None:
        last = edit.node("Add", [product.outputs[0], None], name=f"{product.name}_Add", output="sum")
    place = 0 if add is not None and add.inputs[0] is linear.bias else 1
    if not _rewrite(edit, product.inputs[1], *new, (last, place, bias * affine.scale + affine.shift)):
        if add is None:
            detach(last)
        return 0
    if add is None:
        norm.prepend(last)
    edit.take_over(last.outputs[0], norm.outputs[0])
    edit.remove([norm])
    return 1
