"""A quantized model as rules see it: conversions with their parameters, products with their operands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from octavo.core.qtypes import QType, from_onnx
from octavo.errors import ModelError
from octavo.model.files.serialize import skeleton
from octavo.model.graph import query
from octavo.model.graph.operators import DEQUANTIZE, QUANTIZE
from octavo.model.runtime.session import optimized
from octavo.ops import LINEAR, Weight, axis_of, rule_of
from octavo.targets import Target

Array = npt.NDArray[Any]
MS = "com.microsoft"


@dataclass(frozen=True, eq=False)
class Params:
    """Scale and zero point of a conversion, as far as they are constant."""

    scale: Array | None
    zero: Array | None  # None: absent, or not constant
    qtype: QType | None
    axis: int
    block: int

    @property
    def zeros(self) -> Array:
        """Return the zero points; where none is given, 0."""
        return self.zero.astype(np.int64) if self.zero is not None else np.zeros((), np.int64)

    @property
    def per_tensor(self) -> bool:
        """Whether there is one scale for all values."""
        return self.scale is not None and self.scale.size == 1 and not self.block

    def same_as(self, other: Params) -> bool:
        """Whether both describe the same mapping."""
        if self.scale is None or other.scale is None or self.qtype is not other.qtype:
            return False
        if self.scale.shape != other.scale.shape or not np.array_equal(self.scale, other.scale):
            return False
        if self.scale.size > 1 and (self.axis != other.axis or self.block != other.block):
            return False
        return bool(np.all(self.zeros == other.zeros))


@dataclass(frozen=True, eq=False)
class Product:
    """A float product between conversions: its node, and the DequantizeLinear of each operand."""

    node: ir.Node
    x: ir.Node | None
    w: ir.Node | None
    bias: ir.Node | None
    bias_reader: ir.Node  # the node itself, or the Add behind a MatMul


def is_q(node: ir.Node | None) -> bool:
    """Whether a node is a QuantizeLinear of either domain."""
    return node is not None and node.op_type == QUANTIZE and node.domain in ("", MS)


def is_dq(node: ir.Node | None) -> bool:
    """Whether a node is a DequantizeLinear of either domain."""
    return node is not None and node.op_type == DEQUANTIZE and node.domain in ("", MS)


def dq_of(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear that gives a value."""
    node = value.producer() if value is not None else None
    return node if is_dq(node) else None


def name(node: ir.Node) -> str:
    """Return a node's name, or that of its output."""
    return node.name or next((v.name or "" for v in node.outputs), "")


class LintedModel:
    """A model and the target that it is for."""

    def __init__(self, model: ir.Model, target: Target) -> None:
        self.model = model
        self.target = target
        self.opset = query.opset(model)
        self.nodes = list(query.nodes(model))
        self._params: dict[ir.Node, Params] = {}

    @cached_property
    def conversions(self) -> list[ir.Node]:
        """Return every QuantizeLinear and DequantizeLinear."""
        return [node for node in self.nodes if is_q(node) or is_dq(node)]

    @cached_property
    def quantizers(self) -> list[ir.Node]:
        """Return every QuantizeLinear."""
        return [node for node in self.conversions if is_q(node)]

    @cached_property
    def dequantizers(self) -> list[ir.Node]:
        """Return every DequantizeLinear."""
        return [node for node in self.conversions if is_dq(node)]

    @cached_property
    def products(self) -> list[Product]:
        """Return every float product that reads a dequantized operand."""
        return [found for node in self.nodes if (found := _product(node)) is not None]

    @cached_property
    def running(self) -> onnx.GraphProto | str:
        """Return the graph that the runtime executes, without weights, or why there is none."""
        if not self.target.runs_here:
            return onnx.GraphProto()
        try:
            model = optimized(self.model, "extended")
        except ModelError as error:
            return str(error)
        graph = skeleton(model).graph
        for initializer in model.graph.initializers:
            graph.initializer.add().name = initializer
        return graph

    def params(self, node: ir.Node) -> Params:
        """Return the parameters of a conversion."""
        if node not in self._params:
            self._params[node] = _params(node)
        return self._params[node]


def _filled(found: Array | None) -> Array | None:
    """Return an array with elements; one without says nothing, and the runtime refuses it."""
    return found if found is not None and found.size else None


def _params(node: ir.Node) -> Params:
    scale, zero = (_filled(query.array(query.operand(node, index))) for index in (1, 2))
    kind = query.element_type(query.operand(node, 2))
    if kind is None and is_dq(node):
        kind = query.element_type(query.operand(node, 0))
    if kind is None and is_q(node):
        kind = ir.DataType(int(query.attribute(node, "output_dtype", 0) or ir.DataType.UINT8))
    return Params(
        scale,
        zero,
        from_onnx(int(kind)) if kind is not None else None,
        int(query.attribute(node, "axis", 1)),
        int(query.attribute(node, "block_size", 0)),
    )


def _product(node: ir.Node) -> Product | None:
    if node.op_type not in LINEAR or node.domain or len(node.inputs) < 2:
        return None
    x, w = dq_of(node.inputs[0]), dq_of(node.inputs[1])
    if x is None and w is None:
        return None
    if node.op_type == "MatMul":
        add = query.only_reader(node.outputs[0])
        if add is not None and add.op_type == "Add" and not add.domain and len(add.inputs) == 2:
            index = 1 if add.inputs[0] is node.outputs[0] else 0
            bias = dq_of(add.inputs[index])
            if bias is not None and query.element_type(bias.inputs[0]) is ir.DataType.INT32:
                return Product(node, x, w, bias, add)
        return Product(node, x, w, None, node)
    return Product(node, x, w, dq_of(query.operand(node, 2)), node)


def channel_axis(node: ir.Node) -> int | None:
    """Return the axis of a product's weight along which its output channels lie."""
    rule = rule_of(node)
    role = rule.role(1) if rule is not None else None
    return axis_of(role.axis, node) if isinstance(role, Weight) else None


def stored(dq: ir.Node | None) -> Array | None:
    """Return the constant integers that a DequantizeLinear reads."""
    tensor = query.constant(dq.inputs[0]) if dq is not None else None
    return np.asarray(tensor.numpy()) if tensor is not None else None


def is_stored(dq: ir.Node | None) -> bool:
    """Whether a DequantizeLinear reads constant integers."""
    return dq is not None and query.constant(dq.inputs[0]) is not None


def readers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes that read a node's first output."""
    yield from node.outputs[0].consumers()
