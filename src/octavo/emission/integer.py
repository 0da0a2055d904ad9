"""IntegerOps: MatMulInteger and ConvInteger on activations quantized at run time (or by fixed parameters).

::

    x → DynamicQuantizeLinear → (q, s, z);   MatMulInteger(q, W, z) → Cast → · (s · W_scale) → + bias

The runtime fuses the whole line into one operator. Results are float, so that nothing else changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import onnx_ir as ir

from octavo.core.granularity import PerChannel
from octavo.core.plan import Dynamic, Entry, Key, Plan
from octavo.core.plan import Quantized as Planned
from octavo.core.qtypes import QType
from octavo.core.recipe import Style
from octavo.emission import names, qoperator
from octavo.emission.forms import Quantized, fill
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model.edit import share_attributes
from octavo.model.query import attribute, rank
from octavo.ops import Form, rule_of
from octavo.planning.resolve import Params

FLOAT = ir.DataType.FLOAT


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place."""
    _Emitter(Writer(model, plan, params)).run()


def spell(writer: Writer) -> set[str]:
    """Write the linear layers that a plan of another style spells with MatMulInteger; gives their names."""
    found = [name for name, planned in writer.plan.nodes.items() if planned.form == "MatMulInteger"]
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
        """One node of the plan; data movement is written as in the QOperator style."""
        if planned.form in ("MatMulInteger", "ConvInteger"):
            _Line(self.w, node).write(planned.form, self._activation(node, 0), self._weight(node))
        elif planned.form == node.op_type:
            self._rewrite(node, super()._form(node))
        else:
            self._direct(node, self._form(node))

    def _form(self, node: ir.Node) -> Form:
        rule = rule_of(node)
        form = rule.forms.get(Style.INTEGER) if rule is not None else None
        if form is None:
            raise TableError(
                f"The plan wants {node.name!r} in the integer style, which {node.op_type} does not have;"
                " leave the node out."
            )
        return form

    def _direct(self, node: ir.Node, form: Form) -> None:
        """An operator that takes integers and answers in float (QAttention, QEmbedLayerNormalization)."""
        operands = fill(form, node, lambda i: self._operand(node, i))
        new = self.w.like(node, form.domain, form.op_type, operands)
        for name, kept in node.attributes.items():
            if form.attributes is None or name in form.attributes:
                new.attributes[name] = kept
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
        """A weight as the integer products take it: not transposed, its scales laid along the channels."""
        key = self._key(node, 1)
        if not self.w.is_stored(key):
            return self._activation(node, 1)
        params = self.w.params[key]
        turned = node.op_type == "Gemm" and attribute(node, "transB", 0)
        integers = self.w.quantized_weight(key, layout=(1, 0) if turned else None)
        scale, zero = params.scale, params.zero_point
        if isinstance(params.granularity, PerChannel) and node.op_type == "Conv":
            scale = scale.reshape(-1, *([1] * _spatial(node)))
            zero = zero.reshape(-1)[:1].reshape(())  # per channel they are symmetric, and all the same
        name = key.tensor
        return Quantized(
            integers,
            self._number(name + names.SCALE, scale),
            self._number(name + names.ZERO_POINT, zero, params.qtype)
            if self.plan.spelling.explicit or zero.any()
            else None,
        )

    def _number(self, name: str, content: np.ndarray, qtype: QType | None = None) -> ir.Value:
        """A scale or zero point, once for all readers that have the same."""
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


class _Line:
    """The nodes from integers back to float, in the place of one product."""

    def __init__(self, writer: Writer, node: ir.Node) -> None:
        self.w, self.node = writer, node
        self.base = node.outputs[0].name or ""
        self.new: list[ir.Node] = []

    def write(self, form: str, x: Quantized, w: Quantized) -> None:
        """Integer product, Cast, scales, alpha, bias."""
        node, source = self.node, x.integers
        if node.op_type == "Gemm" and attribute(node, "transA", 0):
            source = self._step("Transpose", [source], "_turned", source.dtype, perm=[1, 0])
        operands = [source, w.integers, x.zero, *([w.zero] if w.zero is not None else [])]
        last = self._step(form, operands, "_int32", ir.DataType.INT32)
        if form == "ConvInteger":
            share_attributes(self.new[-1], node)
        last = self._step("Cast", [last], "_float", to=int(FLOAT))
        scales = self._step("Mul", [x.scale, w.scale], "_scales")
        last = self._step("Mul", [last, scales], "_scaled")
        alpha = attribute(node, "alpha", 1.0) if node.op_type == "Gemm" else 1.0
        if alpha != 1.0:
            factor = self.w.constant(self.base + "_alpha", np.asarray(alpha, np.float32))
            last = self._step("Mul", [last, factor], "_times_alpha")
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None:
            self._step("Add", [last, self._lifted(bias)], "_biased")
        self.w.replace_node(node, self.new)

    def _lifted(self, bias: ir.Value) -> ir.Value:
        """A bias that meets the channels: those of Conv are on axis 1."""
        if self.node.op_type != "Conv":
            return bias
        shape = np.asarray([1, -1] + [1] * _spatial(self.node), np.int64)
        return self._step("Reshape", [bias, self.w.constant((bias.name or "") + "_shape", shape)], "_bias")

    def _step(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        suffix: str,
        dtype: ir.DataType | None = FLOAT,
        **attributes: object,
    ) -> ir.Value:
        name = self.base + suffix
        self.new.append(self.w.editor.node(op, inputs, attributes, name=name, output=name, dtype=dtype))
        return self.new[-1].outputs[0]


def _spatial(node: ir.Node) -> int:
    return (rank(node.inputs[1]) or 2) - 2
