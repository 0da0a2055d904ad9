"""The integer style: MatMulInteger and ConvInteger on activations that are quantized at run time.

::

    x → DynamicQuantizeLinear → (q, s, z);   MatMulInteger(q, W, z) → Cast → · (s · W_scale) → + bias

The runtime fuses all of that into one operator. Results are float, so that nothing else changes.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from octavo.core.granularity import PerChannel
from octavo.core.plan import Dynamic, Entry, Key, Plan
from octavo.core.plan import Quantized as Planned
from octavo.core.qtypes import QType
from octavo.core.recipe import Style
from octavo.emission import names, qoperator
from octavo.emission.operands import Quantized, operands_of
from octavo.emission.output_format import OutputFormat
from octavo.emission.writer import NodeChain, Writer
from octavo.errors import TableError
from octavo.model.graph import query
from octavo.model.graph.edit import share_attributes
from octavo.model.graph.query import attribute, constant, rank
from octavo.ops import Lowering, rule_of
from octavo.planning.resolve import Params

FLOAT = ir.DataType.FLOAT


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place."""
    _Emitter(Writer(model, plan, params)).run()


FORMAT = OutputFormat("integer", Style.INTEGER, emit)


def write_dynamic(writer: Writer) -> set[str]:
    """Write the linear layers that a plan of another style lowers to MatMulInteger; return their names."""
    found = [name for name, planned in writer.plan.nodes.items() if planned.lowering == "MatMulInteger"]
    emitter = _Emitter(writer) if found else None
    for name in found:
        if emitter is not None:
            emitter.write(writer.nodes[name], writer.plan.nodes[name])
    return set(found)


class _Emitter(qoperator.Emitter):
    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self.inputs: dict[tuple[ir.Value, Entry], Quantized] = {}
        self.numbers: dict[Hashable, ir.Value] = {}

    def write(self, node: ir.Node, planned: Planned) -> None:
        """Write one node of the plan; data movement is written as in the QOperator style."""
        rule = rule_of(node)
        product = rule.lowerings.get(Style.INTEGER) if rule is not None else None
        if product is not None and product.gives_sums and planned.lowering == product.op_type:
            line = _Line(self.w, node)
            line.write(planned.lowering, self._activation(node, 0), self._weight(node))
        elif planned.lowering == node.op_type:
            self._rewrite(node, qoperator.lowering_of(node, Style.QOPERATOR))
        else:
            self._direct(node, qoperator.lowering_of(node, Style.INTEGER))

    def _direct(self, node: ir.Node, lowering: Lowering) -> None:
        """Write an operator that takes integers and gives floats (QAttention, QEmbedLayerNormalization)."""
        operands = operands_of(lowering, node, lambda i: self._operand(node, i))
        new = self.w.like(node, lowering.domain, lowering.op_type, operands)
        qoperator.keep_attributes(new, node, lowering)
        self.w.replace_node(node, [new])

    # ---- operands

    def _operand(self, node: ir.Node, index: int) -> Quantized:
        key = self._key(node, index)
        if not self.w.is_stored(key):
            return self._activation(node, index)
        return Quantized(self.w.quantized_weight(key), *self.w.scale_and_zero(key))

    def _key(self, node: ir.Node, index: int) -> Key:
        value = node.inputs[index]
        key = self.plan.lookup(value.name or "", node.name or "") if value is not None else None
        if key is None:
            raise TableError(f"The plan quantizes node {node.name!r} but not its input {index}.")
        return key

    def _weight(self, node: ir.Node) -> Quantized:
        """Return a weight as integer products take it: not transposed, with scales along the channels."""
        key = self._key(node, 1)
        if not self.w.is_stored(key):
            return self._activation(node, 1)
        params = self.w.params[key]
        transposed = node.op_type == "Gemm" and attribute(node, "transB", 0)
        integers = self.w.quantized_weight(key, layout=(1, 0) if transposed else None)
        scale, zero = params.scale, params.zero_point
        if isinstance(params.granularity, PerChannel) and node.op_type == "Conv":
            scale = scale.reshape(-1, *([1] * _spatial(node)))
            zero = zero.reshape(-1)[:1].reshape(())  # per channel they are symmetric: all are the same
        name = key.tensor
        return Quantized(
            integers,
            self._number(name + names.SCALE, scale),
            self._number(name + names.ZERO_POINT, zero, params.qtype)
            if self.plan.writing.explicit or zero.any()
            else None,
        )

    def _number(self, name: str, content: np.ndarray, qtype: QType | None = None) -> ir.Value:
        """Return a scale or zero point, once for all consumers with the same."""
        slot = (name, content.shape, content.tobytes(), qtype)
        if slot not in self.numbers:
            self.numbers[slot] = self.w.number(name, content, qtype)
        return self.numbers[slot]

    def _activation(self, node: ir.Node, index: int) -> Quantized:
        value, key = node.inputs[index], self._key(node, index)
        if value is None:
            raise TableError(f"Node {node.name!r} has no input {index}.")
        if value in self.twins:
            return Quantized(self.twins[value], *self.w.scale_and_zero(key))
        if self.w.is_stored(key):
            return Quantized(self.w.quantized_weight(key), *self.w.scale_and_zero(key))
        entry = self.plan.entries[key]
        slot = (value, entry)
        if slot not in self.inputs:
            self.inputs[slot] = (
                self._running(value) if isinstance(entry, Dynamic) else self._static(value, key)
            )
        return self.inputs[slot]

    def _static(self, value: ir.Value, key: Key) -> Quantized:
        made = self.quantized.get((value, self.w.params[key].identity))
        if made is not None:
            return Quantized(made, *self.w.scale_and_zero(key))
        source = self._source(value, key)
        node = self.w.quantize(source, key)
        self.w.after(source, [node])
        return Quantized(node.outputs[0], *self.w.scale_and_zero(key))


class _Line(NodeChain):
    """The nodes from integers back to float that replace one layer."""

    def __init__(self, writer: Writer, layer: ir.Node) -> None:
        super().__init__(writer, layer.outputs[0].name or "")
        self.layer = layer

    def write(self, lowering: str, x: Quantized, w: Quantized) -> None:
        """Write the integer product, Cast, scales, alpha and bias."""
        node, source = self.layer, x.integers
        if node.op_type == "Gemm" and attribute(node, "transA", 0):
            source = self.node("Transpose", [source], "_turned", source.dtype, perm=[1, 0])
        operands = [source, w.integers, x.zero, *([w.zero] if w.zero is not None else [])]
        last = self.node(lowering, operands, "_int32", ir.DataType.INT32)
        if lowering == "ConvInteger":
            share_attributes(self.new[-1], node)
        last = self.node("Cast", [last], "_float", to=int(FLOAT))
        scales = self.node("Mul", [x.scale, w.scale], "_scales")
        last = self.node("Mul", [last, scales], "_scaled")
        alpha = attribute(node, "alpha", 1.0) if node.op_type == "Gemm" else 1.0
        if alpha != 1.0:
            factor = self.w.constant(self.base + "_alpha", np.asarray(alpha, np.float32))
            last = self.node("Mul", [last, factor], "_times_alpha")
        bias = query.operand(node, 2)
        if bias is not None:
            self.node("Add", [last, self._along_channels(bias)], "_biased")
        self.w.replace_node(node, self.new)

    def _along_channels(self, bias: ir.Value) -> ir.Value:
        """Return a bias that broadcasts along the channels; those of Conv are on axis 1."""
        if self.layer.op_type != "Conv":
            return bias
        shape, name = [1, -1, *[1] * _spatial(self.layer)], bias.name or ""
        known = constant(bias)
        if known is not None:
            return self.shared(f"{name}_reshaped", known.numpy().reshape(shape), key=len(shape))
        to = self.w.constant(f"{name}_shape", np.asarray(shape, np.int64))
        return self.node("Reshape", [bias, to], "_bias")


def _spatial(node: ir.Node) -> int:
    return (rank(node.inputs[1]) or 2) - 2
