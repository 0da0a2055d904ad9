"""QOperator: QLinearConv, QLinearMatMul and their kin; integers flow from one to the next.

Every float value T that the plan quantizes has an integer twin. A quantized node makes the twin directly;
where a float node made T, a QuantizeLinear stands behind it. Where a float node reads T and only the twin
exists, a DequantizeLinear stands in between.
"""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.plan import Constant, Derived, Fixed, Key, Plan
from octavo.core.qparams import QParams
from octavo.emission import names
from octavo.emission.forms import Quantized, fill
from octavo.emission.special import lookup, recurrent
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.ops import Form, rule_of
from octavo.core.recipe import Style
from octavo.planning.candidates import weight_of
from octavo.planning.resolve import Params

MS = "com.microsoft"
TO_FLOAT = Form("MatMulIntegerToFloat", "q0 q1 s0 s1 z0 z1", domain=MS, float_output=True)


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place."""
    _Emitter(Writer(model, plan, params)).run()


class _Emitter:
    def __init__(self, writer: Writer) -> None:
        self.w = writer
        self.plan = writer.plan
        self.twins: dict[ir.Value, tuple[ir.Value, QParams]] = {}  # made by quantized nodes
        self.quantized: dict[tuple[ir.Value, bytes], ir.Value] = {}  # made by QuantizeLinear
        self.weights: list[ir.Value] = []

    def run(self) -> None:
        for node in list(self.w.model.graph.all_nodes()):
            planned = self.plan.nodes.get(node.name or "")
            if planned is None:
                continue
            if planned.form == "DynamicQuantizeLSTM":
                self.weights.extend(recurrent(self.w, node))
            elif planned.op_type == "Gather" and self._is_constant(node, 0):
                self.weights.extend(lookup(self.w, node))
            elif planned.form == TO_FLOAT.op_type:
                self._to_float(node, planned.bias_add)
            else:
                rule = rule_of(node)
                form = rule.forms.get(Style.QOPERATOR) if rule is not None else None
                if form is None:
                    raise TableError(f"The plan wants {node.name!r} as {planned.form}, which has no QOperator form.")
                self._rewrite(node, form)
        self._back_to_float()
        self.w.drop_unused(self.weights)

    def _is_constant(self, node: ir.Node, index: int) -> bool:
        value = node.inputs[index]
        entry = self.plan.entries.get(Key(_name(value), node.name)) if value is not None else None
        return isinstance(entry, Constant)

    # ---- one node

    def _rewrite(self, node: ir.Node, form: Form) -> None:
        params = self.w.params.get(Key(_name(node.outputs[0])))
        output = self.w.scale_and_zero(params, _name(node.outputs[0])) if params is not None else None
        operands = fill(form, node, lambda i: self._integers(node, i), lambda i: self._bias(node, i), output)
        keep = form.attributes
        attributes = [a for n, a in node.attributes.items() if keep is None or n in keep]
        if form.op_type == "QLinearSoftmax":
            attributes.append(ir.AttrInt64("opset", self.w.model.opset_imports.get("", 13)))
        outputs = [self._twin(v) for v in node.outputs]
        new = ir.Node(
            form.domain,
            form.op_type,
            operands,
            attributes,
            outputs=outputs,
            name=self.w.editor.nodes.claim((node.name or "") + "_quant"),
        )
        if form.domain:
            self.w.model.opset_imports.setdefault(form.domain, 1)
        self._put(node, new)

    def _twin(self, value: ir.Value) -> ir.Value:
        """The output of the integer operator in place of a float one."""
        params = self.w.params.get(Key(_name(value)))
        if params is None:
            fresh = ir.Value(name=self.w.editor.values.claim(_name(value) + names.QUANTIZED), type=value.type, shape=value.shape)
        else:
            name = self.w.editor.values.claim(_name(value) + names.QUANTIZED)
            fresh = ir.Value(name=name, type=ir.TensorType(ir.DataType(params.qtype.onnx)), shape=value.shape)
            self.twins[value] = (fresh, params)
        return fresh

    def _put(self, old: ir.Node, new: ir.Node) -> None:
        if old.graph is None:
            raise TableError(f"Node {old.name!r} belongs to no graph.")
        old.graph.insert_before(old, [new])
        for before, after in zip(old.outputs, new.outputs, strict=True):
            if before not in self.twins:
                name = _name(before)
                self.w.editor.take_over(after, before)
                self.w.values[name] = after
        self._detached(old)

    def _detached(self, old: ir.Node) -> None:
        """Take the float node out; values with a twin live on until all their readers are served."""
        for index in range(len(old.inputs)):
            old.replace_input_with(index, None)
        if old.graph is not None and not any(v.uses() or v.is_graph_output() for v in old.outputs):
            old.graph.remove(old)

    def _to_float(self, node: ir.Node, bias_add: str | None) -> None:
        """A linear layer with float result: MatMulIntegerToFloat takes the bias along."""
        operands = fill(TO_FLOAT, node, lambda i: self._integers(node, i), lambda _: None, None)
        last = node
        if bias_add is not None:
            last = self.w.nodes[bias_add]
            bias = next(v for v in last.inputs if v is not None and v is not node.outputs[0])
            operands = [*operands, *([None] * (6 - len(operands))), bias]
        out = ir.Value(name=self.w.editor.values.claim(_name(last.outputs[0]) + "_linear"), type=last.outputs[0].type, shape=last.outputs[0].shape)
        new = ir.Node(MS, TO_FLOAT.op_type, operands, outputs=[out], name=self.w.editor.nodes.claim((node.name or "") + "_quant"))
        self.w.model.opset_imports.setdefault(MS, 1)
        if node.graph is None:
            raise TableError(f"Node {node.name!r} belongs to no graph.")
        node.graph.insert_before(node, [new])
        name = _name(last.outputs[0])
        self.w.editor.take_over(out, last.outputs[0])
        self.w.values[name] = out
        self.w.editor.remove([last, node] if last is not node else [node])

    # ---- operands

    def _integers(self, node: ir.Node, index: int) -> Quantized:
        value = node.inputs[index]
        if value is None:
            raise TableError(f"Node {node.name!r} lacks input {index}.")
        key = self.plan.lookup(_name(value), node.name or "")
        if key is None:
            raise TableError(f"The plan quantizes node {node.name!r} but not its input {value.name!r}.")
        entry = self.plan.entries[key]
        params = self.w.params[key]
        scale, zero = self.w.scale_and_zero(params, key.tensor)
        if isinstance(entry, Constant) or (isinstance(entry, Fixed) and weight_of(value) is not None):
            self.weights.append(value)
            return Quantized(self.w.quantized_weight(key), scale, zero)
        twin = self.twins.get(value)
        if twin is not None and twin[1].same_as(params):
            return Quantized(twin[0], scale, zero)
        return Quantized(self._quantize(value, params, key), scale, zero)

    def _quantize(self, value: ir.Value, params: QParams, key: Key) -> ir.Value:
        slot = (value, params.scale.tobytes() + params.zero_point.tobytes() + params.qtype.name.encode())
        if slot not in self.quantized:
            source = value
            if value in self.twins:
                source = self._dequantized(value)
            q = self.w.quantize(source, params, key.tensor, names.CONVERTED if source is not value else "")
            self.w.after(source, [q])
            self.quantized[slot] = q.outputs[0]
        return self.quantized[slot]

    def _dequantized(self, value: ir.Value) -> ir.Value:
        integers, params = self.twins[value]
        dq = self.w.dequantize(integers, params, _name(value))
        self.w.after(integers, [dq])
        return dq.outputs[0]

    def _bias(self, node: ir.Node, index: int) -> ir.Value | None:
        value = node.inputs[index]
        if value is None:
            return None
        key = Key(_name(value), node.name)
        if not isinstance(self.plan.entries.get(key), Derived):
            raise TableError(f"The plan leaves the bias of {node.name!r} float, which {node.op_type} can't take here.")
        self.weights.append(value)
        return self.w.quantized_weight(key)

    # ---- the way back

    def _back_to_float(self) -> None:
        """A DequantizeLinear for each twin that a float node or a graph output still wants as float."""
        for value in list(self.twins):
            old = value.producer()
            if value.uses() or value.is_graph_output():
                self.w.replace_everywhere(value, self._dequantized(value))
            if old is not None and old.graph is not None and not any(v.uses() or v.is_graph_output() for v in old.outputs):
                old.graph.remove(old)


def _name(value: ir.Value) -> str:
    return value.name or ""
