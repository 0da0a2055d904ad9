"""QOperator: QLinearConv, QLinearMatMul and their kin; integers flow from one to the next.

Every float value T that the plan quantizes has an integer twin. A quantized node makes the twin directly;
where a float node made T, a QuantizeLinear stands behind it. Where a float node reads T and only the twin
exists, a DequantizeLinear stands in between.
"""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from octavo.core.plan import Derived, Key, Plan
from octavo.core.recipe import Style
from octavo.emission import names, special
from octavo.emission.forms import Quantized, fill
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model import query
from octavo.model.query import opset
from octavo.ops import MATMUL_TO_FLOAT, Form, rule_of
from octavo.planning.resolve import Params


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place."""
    _Emitter(Writer(model, plan, params)).run()


class _Emitter:
    def __init__(self, writer: Writer) -> None:
        self.w = writer
        self.plan = writer.plan
        self.twins: dict[ir.Value, ir.Value] = {}  # float value → integers made by a quantized node
        self.quantized: dict[Hashable, ir.Value] = {}  # made by QuantizeLinear
        self.floats: dict[ir.Value, ir.Value] = {}  # float value with a twin → what DequantizeLinear gave

    def run(self) -> None:
        weights = [self.w.values[key.tensor] for key, _ in self.plan.edges() if self.w.is_stored(key)]
        for node in list(query.nodes(self.w.model)):
            planned = self.plan.nodes.get(node.name or "")
            if planned is None or special.spell(self.w, node.name or ""):
                continue
            if planned.form == MATMUL_TO_FLOAT.op_type:
                self._to_float(node, planned.bias_add)
            else:
                self._rewrite(node, self._form(node))
        self._back_to_float()
        self.w.drop_unused(weights)

    def _form(self, node: ir.Node) -> Form:
        rule = rule_of(node)
        form = rule.forms.get(Style.QOPERATOR) if rule is not None else None
        if form is None:
            raise TableError(
                f"The plan wants {node.name!r} in the qoperator style, which {node.op_type} does not have;"
                " leave the node out."
            )
        return form

    # ---- one node

    def _rewrite(self, node: ir.Node, form: Form) -> None:
        key = Key(_name(node.outputs[0]))
        output = self.w.scale_and_zero(key) if key in self.plan.entries else None
        operands = fill(form, node, lambda i: self._integers(node, i), lambda i: self._bias(node, i), output)
        new = self.w.like(node, form.domain, form.op_type, operands)
        for name, attribute in node.attributes.items():
            if form.attributes is None or name in form.attributes:
                new.attributes[name] = attribute
        if form.op_type == "QLinearSoftmax":
            new.attributes["opset"] = ir.AttrInt64("opset", opset(self.w.model))
        self._put(node, new)

    def _put(self, old: ir.Node, new: ir.Node) -> None:
        """The integer operator beside the float one, whose outputs live on until their readers are served."""
        self.w.before(old, [new])
        for was, now in zip(old.outputs, new.outputs, strict=True):
            params = self.w.params.get(Key(_name(was)))
            if params is not None:
                now.type = ir.TensorType(ir.DataType(params.qtype.onnx))
                self.twins[was] = now
            elif was.name:
                self.w.rename(now, was)
        for index in range(len(old.inputs)):
            old.replace_input_with(index, None)
        _remove_unread(old)

    def _to_float(self, node: ir.Node, bias_add: str | None) -> None:
        """A linear layer with float result: MatMulIntegerToFloat takes the bias along."""
        operands = fill(MATMUL_TO_FLOAT, node, lambda i: self._integers(node, i))
        last = node
        if bias_add is not None:
            last = self.w.nodes[bias_add]
            bias = next(v for v in last.inputs if v is not None and v is not node.outputs[0])
            operands = [*operands, *([None] * (6 - len(operands))), bias]
        new = self.w.like(last, MATMUL_TO_FLOAT.domain, MATMUL_TO_FLOAT.op_type, operands)
        self.w.before(node, [new])
        self.w.rename(new.outputs[0], last.outputs[0])
        self.w.editor.remove([last, node] if last is not node else [node])

    # ---- operands

    def _integers(self, node: ir.Node, index: int) -> Quantized:
        value = node.inputs[index]
        if value is None:
            raise TableError(f"Node {node.name!r} lacks input {index}.")
        key = self.plan.lookup(_name(value), node.name or "")
        if key is None:
            raise TableError(f"The plan quantizes node {node.name!r} but not its input {value.name!r}.")
        return Quantized(self._stored_or_made(value, key), *self.w.scale_and_zero(key, self._suffix(key)))

    def _suffix(self, key: Key) -> str:
        return names.CONVERTED if key.reader is not None and Key(key.tensor) in self.plan.entries else ""

    def _stored_or_made(self, value: ir.Value, key: Key) -> ir.Value:
        if self.w.is_stored(key):
            return self.w.quantized_weight(key)
        params = self.w.params[key]
        if value in self.twins and self.w.params[Key(key.tensor)].same_as(params):
            return self.twins[value]
        slot = (value, params.identity)
        if slot not in self.quantized:
            source = self._dequantized(value) if value in self.twins else value
            q = self.w.quantize(source, key, self._suffix(key))
            self.w.after(source, [q])
            self.quantized[slot] = q.outputs[0]
        return self.quantized[slot]

    def _dequantized(self, value: ir.Value) -> ir.Value:
        if value not in self.floats:
            integers = self.twins[value]
            dq = self.w.dequantize(integers, Key(_name(value)))
            self.w.after(integers, [dq])
            self.floats[value] = dq.outputs[0]
        return self.floats[value]

    def _bias(self, node: ir.Node, index: int) -> ir.Value:
        key = Key(_name(node.inputs[index]), node.name)
        if not isinstance(self.plan.entries.get(key), Derived):
            raise TableError(
                f"The plan leaves the bias of {node.name!r} float, which its integer operator can't take;"
                " leave the node out, or let biases be quantized."
            )
        return self.w.quantized_weight(key)

    # ---- the way back

    def _back_to_float(self) -> None:
        """A DequantizeLinear for each twin that a float node or a graph output still wants as float."""
        for value in list(self.twins):
            old = value.producer()
            if value.uses() or value.is_graph_output():
                self.w.replace_everywhere(value, self._dequantized(value))
            if old is not None:
                _remove_unread(old)


def _remove_unread(node: ir.Node) -> None:
    if node.graph is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
        node.graph.remove(node)


def _name(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None else ""
