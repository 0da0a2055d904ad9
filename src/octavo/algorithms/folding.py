"""Where a division of a tensor's channels can go: into constants of the nodes that make the tensor.

From the tensor backwards, as long as nobody else reads what lies between: a constant that is added is divided
and the search goes on behind the Add; a constant factor, the scale and shift of a normalization or the
weights of a linear layer are divided, and it ends. Relu keeps positive factors, and of a product one side
takes them. Attention mixes places, not channels: factors behind it go into the layer that makes its values.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers import Layer, layer_of, replace_constant
from octavo.model import query
from octavo.model.edit import Editor

F64 = npt.NDArray[np.float64]

# normalizations: the inputs that scale and shift their result, per channel of the last axis
_NORMS: dict[str, tuple[int, ...]] = {
    "LayerNormalization": (1, 2),
    "RMSNormalization": (1,),
    "SimplifiedLayerNormalization": (1,),
    "SkipLayerNormalization": (2, 3),
    "SkipSimplifiedLayerNormalization": (2,),
}
_KEEP = ("Relu", "LeakyRelu", "Identity", "Dropout")


@dataclass(frozen=True)
class Place:
    """Constants of one node that are divided: of these inputs, along the last axis; or a linear layer's."""

    node: ir.Node
    inputs: tuple[int, ...] = ()
    layer: Layer | None = None

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name or self.node.op_type

    def has(self, size: int) -> bool:
        """Whether what is divided has so many channels."""
        if self.layer is not None:
            return self.layer.outputs == size
        return all((query.shape(self.node.inputs[i]) or (0,))[-1] == size for i in self.inputs)

    def divide(self, factors: F64, editor: Editor) -> None:
        """Divide what the node gives."""
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


def places(x: ir.Value, readers: Collection[ir.Node], size: int) -> list[Place] | str:
    """Where a division of the ``size`` channels of ``x`` can go, or why it can't; ``readers`` expect it."""
    others = [node.name or node.op_type for node in x.consumers() if node not in readers]
    if others:
        return (
            f"its input is also read by {others[0]}" if len(others) < 2 else "its input has other readers too"
        )
    if x.is_graph_output():
        return "its input is an output of the model"
    found = _of(x)
    if not isinstance(found, str) and not all(place.has(size) for place in found):
        return "what comes before has other channels"
    return found


def _of(value: ir.Value) -> list[Place] | str:
    node = value.producer()
    if node is None:
        return "its input comes from outside"
    if node.op_type in _NORMS and value is node.outputs[0]:
        return _norm(node)
    if node.domain:
        return f"a {node.op_type} can't take up factors"
    match node.op_type:
        case "MatMul" | "Gemm":
            layer = layer_of(node)
            if not isinstance(layer, Layer) or layer.bias_node is not node:
                return "the layer before can't take up factors"
            return [Place(node, layer=layer)]
        case "Add" | "Sub":
            return _sum(node)
        case "Mul" | "Div":
            return _product(node)
        case "Reshape":
            return _attention(node)
        case op if op in _KEEP and _seen_by_one(node.inputs[0]):
            return _of(node.inputs[0])  # type: ignore[arg-type]
        case op:
            return f"a {op} can't take up factors"


def _norm(node: ir.Node) -> list[Place] | str:
    there = tuple(i for i in _NORMS[node.op_type] if i < len(node.inputs) and node.inputs[i] is not None)
    if not all(_is_vector(node.inputs[i]) for i in there) or not there:
        return f"the scale of {node.name} is no constant vector"
    axis = query.attribute(node, "axis", -1)
    rank = query.rank(node.inputs[0])
    if axis != -1 and axis != (rank or 0) - 1:
        return f"{node.name} normalizes more than the last axis"
    return [Place(node, there)]


def _sum(node: ir.Node) -> list[Place] | str:
    """A linear layer with its bias, or a constant that is added to something that can be divided."""
    for index in (0, 1):
        value, other = node.inputs[1 - index], node.inputs[index]
        if value is None or not _is_vector(other) or not _seen_by_one(value):
            continue
        producer = value.producer()
        layer = layer_of(producer) if producer is not None else None
        if isinstance(layer, Layer):
            if layer.bias_node is node:
                return [Place(node, layer=layer)]
            return "the layer before can't take up factors"
        behind = _of(value)
        return behind if isinstance(behind, str) else [Place(node, (index,)), *behind]
    return f"an {node.op_type} of two tensors can't take up factors"


def _product(node: ir.Node) -> list[Place] | str:
    left, right = node.inputs
    if node.op_type == "Mul":
        for index in (0, 1):
            if _is_vector(node.inputs[index]):
                return [Place(node, (index,))]
    reason: list[Place] | str = f"a {node.op_type} of two tensors can't take up factors"
    for value in (right, left) if node.op_type == "Mul" else (left,):
        if value is not None and value is not (left if value is right else right) and _seen_by_one(value):
            found = _of(value)
            if not isinstance(found, str):
                return found
    return reason


def _attention(joined: ir.Node) -> list[Place] | str:
    """Through ``values → heads → probabilities · values → heads joined``, where axes have the usual order."""
    reason = "a Reshape can't take up factors"
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
    return _of(source) if _seen_by_one(source) else reason


def _before(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that makes a value, if it is of this type and nobody else reads the value."""
    node = value.producer() if _seen_by_one(value) and value is not None else None
    return node if node is not None and node.op_type == op_type and not node.domain else None


def _is_vector(value: ir.Value | None) -> bool:
    dims = query.static_shape(value) if value is not None and value.is_initializer() else None
    if dims is None or not dims or query.constant(value) is None:
        return False
    return dims[-1] > 1 and all(d == 1 for d in dims[:-1]) and query.is_float(value)


def _seen_by_one(value: ir.Value | None) -> bool:
    return value is not None and query.only_reader(value) is not None


def insert(x: ir.Value, readers: Sequence[ir.Node], factors: F64, editor: Editor) -> ir.Node:
    """Put one Mul with factors of the channels between a tensor and some of its readers."""
    constant = editor.constant(f"{x.name}_smooth_scale", factors.astype(np.float32))
    name = f"{x.name}_smooth"
    node = editor.node("Mul", [x, constant], name=name, output=name, dtype=query.element_type(x))
    node.outputs[0].shape = x.shape
    first = min(readers, key=list(readers[0].graph or ()).index)
    first.prepend(node)
    for reader in readers:
        for index, value in enumerate(reader.inputs):
            if value is x:
                reader.replace_input_with(index, node.outputs[0])
    return node
