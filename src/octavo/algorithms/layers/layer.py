"""A layer with constant weights as one matrix for each group: ``rows[group, output, product]``.

``Conv``, ``Gemm`` and ``MatMul`` compute ``y = rows · x + bias``, where ``x`` are the values that one output
sums over, its *products*. Steps work on these rows, and :meth:`Layer.store` writes them back in the layout of
the operator.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.edit import Editor, set_constant
from octavo.model.graph.tensors import computed
from octavo.ops import rule_of

F64 = npt.NDArray[np.float64]
_LAZY_BYTES = 1 << 20  # of a weight whose scaled copy is made when it is read, so that few are held at once


@dataclass(frozen=True)
class Layer:
    """A linear operator with a constant weight of its own, and the bias that belongs to it."""

    node: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    bias_node: ir.Node  # the node that adds the bias: the operator itself, or the Add after a MatMul
    groups: int
    transposed: bool  # the weight is stored as (products, outputs)

    @property
    def name(self) -> str:
        """Return the node's name."""
        return self.node.name or ""

    @property
    def x(self) -> ir.Value:
        """Return the activation that it reads."""
        return self.node.inputs[0]  # type: ignore[return-value]

    @property
    def y(self) -> ir.Value:
        """Return the result, bias included."""
        return self.bias_node.outputs[0]

    @property
    def is_conv(self) -> bool:
        """Whether channels are on axis 1, before the spatial axes."""
        return self.node.op_type == "Conv"

    @property
    def kernel(self) -> tuple[int, ...]:
        """Return the spatial size of a convolution's kernel; empty for linear layers."""
        dims = query.static_shape(self.weight) or ()
        return dims[2:] if self.is_conv else ()

    @property
    def padded(self) -> bool:
        """Whether padding takes part in some of the sums."""
        pads = query.attribute(self.node, "pads", ()) or ()
        return any(pads) or query.attribute(self.node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID")

    @property
    def is_pointwise(self) -> bool:
        """Whether each output reads one position, and all are read."""
        strides = query.attribute(self.node, "strides", ()) or ()
        return not self.padded and all(k == 1 for k in self.kernel) and all(s == 1 for s in strides)

    @property
    def outputs(self) -> int:
        """Return the number of output channels."""
        dims = query.static_shape(self.weight) or (0, 0)
        return dims[0] if self.is_conv or not self.transposed else dims[1]

    @property
    def inputs(self) -> int:
        """Return the number of input channels."""
        dims = query.static_shape(self.weight) or (0, 0)
        return dims[1] * self.groups if self.is_conv else dims[0 if self.transposed else -1]

    @property
    def products(self) -> int:
        """Return the number of products that one output sums over."""
        return self.inputs // self.groups * max(int(np.prod(self.kernel, dtype=np.int64)), 1)

    def rows(self) -> F64:
        """Return the weights as ``[group, output, product]``; products of a Conv channel by channel."""
        content = np.asarray(self.weight.const_value.numpy(), np.float64)  # type: ignore[union-attr]
        if self.transposed:
            content = content.T
        return content.reshape(self.groups, content.shape[0] // self.groups, -1)

    def by_channel(self, rows: F64) -> F64:
        """Return rows as ``[input channel, outputs × kernel]``: all weights that read one input channel."""
        groups, outputs, products = rows.shape
        taps = max(int(np.prod(self.kernel, dtype=np.int64)), 1)
        split = rows.reshape(groups, outputs, products // taps, taps)
        return split.transpose(0, 2, 1, 3).reshape(groups * (products // taps), -1)

    def spread(self, per_channel: F64) -> F64:
        """Return one number for each input channel as ``[group, 1, product]``."""
        taps = max(int(np.prod(self.kernel, dtype=np.int64)), 1)
        return np.repeat(per_channel.reshape(self.groups, -1), taps, axis=1)[:, None, :]

    def bias_values(self) -> F64:
        """Return the bias of each output; zeros where there is none."""
        if self.bias is None or self.bias.const_value is None:
            return np.zeros(self.outputs)
        values = np.asarray(self.bias.const_value.numpy(), np.float64).reshape(-1)
        return np.broadcast_to(values, (self.outputs,)).copy()

    def laid_out(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return rows in the layout and type of the operator's weight."""
        old = np.asarray(self.weight.const_value.numpy())  # type: ignore[union-attr]
        flat = rows.reshape(rows.shape[0] * rows.shape[1], -1)
        content = flat.T if self.transposed else flat.reshape(old.shape)
        return np.ascontiguousarray(content.astype(old.dtype))

    def store(self, rows: npt.NDArray[Any]) -> None:
        """Write rows back as the operator's weight."""
        set_constant(self.weight, self.laid_out(rows))

    def multiply(self, per_channel: F64) -> None:
        """Multiply the weights of each input channel; those of large matrices when they are read."""
        tensor, dims = self.weight.const_value, query.static_shape(self.weight)
        if tensor is None or dims is None or len(dims) != 2 or tensor.nbytes < _LAZY_BYTES:
            self.store(self.rows() * self.spread(per_channel))
            return
        factors = per_channel[:, None] if self.transposed else per_channel[None, :]

        def scaled() -> npt.NDArray[Any]:
            old = tensor.numpy()
            return (np.asarray(old, np.float64) * factors).astype(old.dtype)

        set_constant(self.weight, computed(scaled, tensor.dtype, dims))

    def store_bias(self, values: F64, editor: Editor) -> None:
        """Write the bias back, as a new constant where other nodes read the old one."""
        dtype = np.asarray(self.weight.const_value.numpy()).dtype  # type: ignore[union-attr]
        _write_vector(editor, self.bias_node, self.bias, values.astype(dtype), f"{self.name}_bias")

    @property
    def takes_bias(self) -> bool:
        """Whether a bias adds no operator: there is one already, or the operator has an input for it."""
        rule = rule_of(self.node)
        return self.bias is not None or (rule is not None and rule.has_bias)


def _write_vector(
    editor: Editor, node: ir.Node, old: ir.Value | None, content: npt.NDArray[Any], name: str
) -> None:
    if old is None:
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, editor.constant(name, content))
        return
    shape = query.static_shape(old) or content.shape
    if int(np.prod(shape, dtype=np.int64)) == content.size:
        content = content.reshape(shape)
    replace_constant(editor, node, old, content)


def replace_constant(editor: Editor, node: ir.Node, old: ir.Value, content: npt.NDArray[Any]) -> None:
    """Give a node another constant: in place where no other node reads the old one, else a new one."""
    if len(old.uses()) == 1 and not old.is_graph_output():
        set_constant(old, content)
        return
    new = editor.constant(f"{old.name}_own", content)
    for index, value in enumerate(node.inputs):
        if value is old:
            node.replace_input_with(index, new)


def is_layer(node: ir.Node) -> bool:
    """Return whether an operator multiplies with one matrix for each group: Conv, Gemm and MatMul."""
    rule = rule_of(node)
    return rule is not None and rule.is_matrix_for_each_group


def layer_of(node: ir.Node) -> Layer | str | None:
    """Return the layer that a node is, why it can't be treated as one, or None for other operators."""
    if not is_layer(node) or len(node.inputs) < 2:
        return None
    weight = node.inputs[1]
    if node.inputs[0] is None or weight is None or not weight.is_initializer() or weight.is_graph_input():
        return None if node.op_type == "MatMul" else "its weight is not a constant of its own"
    dims = query.static_shape(weight)
    if dims is None or query.element_type(weight) != ir.DataType.FLOAT:
        return "its weight is not float32"
    if 0 in dims:
        return "its weight is empty"
    if len(weight.uses()) > 1 or weight.is_graph_output():
        return "its weight is shared with another node"
    if node.op_type == "Conv":
        return _fitting(_conv(node, weight))
    if len(dims) != 2:
        return "its weight is not a matrix"
    return _fitting(_gemm(node, weight) if node.op_type == "Gemm" else _matmul(node, weight))


def _fitting(found: Layer | str) -> Layer | str:
    """Return the layer where its bias is one number or one for each output, else why not."""
    if isinstance(found, str) or found.bias is None:
        return found
    bias = query.constant(found.bias)
    if bias is not None and bias.size not in (1, found.outputs):
        return "its bias has another size than its outputs"
    return found


def _conv(node: ir.Node, weight: ir.Value) -> Layer | str:
    bias = query.operand(node, 2)
    if bias is not None and query.constant(bias) is None:
        return "its bias is computed"
    dims, groups = query.static_shape(weight) or (), int(query.attribute(node, "group", 1))
    if len(dims) < 3 or groups < 1 or dims[0] % groups:
        return "its weight does not match its groups, or has too few axes"
    return Layer(node, weight, bias, node, groups, transposed=False)


def _gemm(node: ir.Node, weight: ir.Value) -> Layer | str:
    bias = query.operand(node, 2)
    if query.attribute(node, "transA", 0) or query.attribute(node, "alpha", 1.0) != 1.0:
        return "it transposes or scales its input"
    if bias is not None:
        dims = query.static_shape(bias) if query.constant(bias) is not None else None
        if dims is None or query.attribute(node, "beta", 1.0) != 1.0 or any(d != 1 for d in dims[:-1]):
            return "its bias is computed, scaled or a matrix"
    return Layer(node, weight, bias, node, 1, transposed=not query.attribute(node, "transB", 0))


def _matmul(node: ir.Node, weight: ir.Value) -> Layer:
    linear = query.linear_layer(node)
    if linear is None or linear.add is None or query.constant(linear.bias) is None:
        return Layer(node, weight, None, node, 1, transposed=True)
    return Layer(node, weight, linear.bias, linear.add, 1, transposed=True)


def layers(model: ir.Model, among: Container[str] | None = None) -> Iterator[Layer | tuple[str, str]]:
    """Yield the layers of the main graph in order; (name, reason) for those that can't be treated as one."""
    for node in model.graph:
        if among is not None and node.name not in among:
            continue
        found = layer_of(node)
        if isinstance(found, Layer):
            yield found
        elif found is not None:
            yield node.name or "", found
