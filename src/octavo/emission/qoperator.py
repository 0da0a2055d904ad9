"""QOperator: QLinearConv, QLinearMatMul and their kin; integers flow from one to the next.

Every float value T that the plan quantizes has an integer twin. A quantized node makes the twin directly;
where a float node made T, a QuantizeLinear stands behind it. Where a float node reads T and only the twin
exists, a DequantizeLinear stands in between.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import onnx_ir as ir

from octavo.core.plan import Derived, Dynamic, Key, Plan
from octavo.core.plan import Quantized as Planned
from octavo.core.recipe import Style
from octavo.emission import names, special
from octavo.emission.forms import Quantized, fill
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model.query import opset
from octavo.ops import MATMUL_TO_FLOAT, Form, rule_of
from octavo.planning.listed_integers import PASSED
from octavo.planning.resolve import Params

UINT8 = ir.DataType.UINT8


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place."""
    Emitter(Writer(model, plan, params)).run()


class Emitter:
    """Writes integer operators; the integer style adds those whose inputs are quantized at run time."""

    def __init__(self, writer: Writer) -> None:
        self.w = writer
        self.plan = writer.plan
        self.twins: dict[ir.Value, ir.Value] = {}  # float value → integers made by a quantized node
        self.quantized: dict[Hashable, ir.Value] = {}  # made by QuantizeLinear
        self.rounded: dict[ir.Value, ir.Value] = {}  # float value → what a pair for its float readers gave
        self.running: dict[ir.Value, Quantized] = {}  # made by DynamicQuantizeLinear
        self.floats: dict[ir.Value, ir.Value] = {}  # float value with a twin → what DequantizeLinear gave

    def run(self) -> None:
        """Write every node of the plan, in the order of the graph."""
        weights = [self.w.values[key.tensor] for key in self.plan.entries if self.w.is_stored(key)]
        nodes = list(self.w.nodes.values())
        early = self._early(nodes)
        for tensor, reader in self.plan.rounded:
            self._round(Key(tensor, reader))
        for node in nodes:
            planned = self.plan.nodes.get(node.name or "")
            if planned is not None and not special.spell(self.w, node.name or ""):
                self.write(node, planned)
        self._back_to_float()
        self._stored_back_to_float(early)
        for name in self.plan.guards:
            special.guard(self.w, self.w.nodes[name])
        self.w.drop_unused(weights)

    def _round(self, key: Key) -> None:
        """A pair behind a value that no quantized node makes, for the float nodes that read it rounded."""
        value = self.w.values[key.tensor]
        source = self._source(value, key)
        q = self.w.quantize(source, key, self._suffix(key))
        dq = self.w.dequantize(q.outputs[0], key, self._suffix(key))
        self.w.after(source, [q, dq])
        self.quantized[value, self.w.params[key].identity] = q.outputs[0]
        integers = [node for node in value.consumers() if node.name in self.plan.nodes]
        if key.reader is None:
            edges = [n for n in value.consumers() if Key(key.tensor, n.name) in self.plan.entries]
            kept = [q, *integers, *edges]
            self.w.replace_everywhere(value, dq.outputs[0], keep=kept)
            self.rounded[value] = dq.outputs[0]
            return
        for index, read in enumerate(self.w.nodes[key.reader].inputs):
            if read is value:
                self.w.nodes[key.reader].replace_input_with(index, dq.outputs[0])

    def _source(self, value: ir.Value, key: Key) -> ir.Value:
        """What is quantized for a key: on an edge the tensor as all others see it."""
        return self.rounded.get(value, value) if key.reader is not None else value

    def write(self, node: ir.Node, planned: Planned) -> None:
        """One node of the plan."""
        if planned.form == PASSED:
            self._pass(node)
        elif planned.form == MATMUL_TO_FLOAT.op_type:
            self._to_float(node, planned.bias_add)
        else:
            self._rewrite(node, self._form(node))

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
        operands = fill(
            form,
            node,
            lambda i: self._integers(node, i),
            lambda i: self._bias(node, i),
            output,
            lambda i: self._padding(node, i),
        )
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

    def _pass(self, node: ir.Node) -> None:
        """A clamp whose effect the quantized range of its input has: the integers go on."""
        self.twins[node.outputs[0]] = self._integers(node, 0).integers
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)

    def _padding(self, node: ir.Node, index: int) -> ir.Value | None:
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None or Key(_name(value), node.name) not in self.plan.entries:
            return None
        return self._integers(node, index).integers

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
        if isinstance(self.plan.entries[key], Dynamic):
            return self._running(value)
        return Quantized(self._stored_or_made(value, key), *self.w.scale_and_zero(key, self._suffix(key)))

    def _running(self, value: ir.Value) -> Quantized:
        """A value quantized while the model runs, once for all readers."""
        if value not in self.running:
            base, edit = value.name or "", self.w.editor
            kinds = {names.QUANTIZED: UINT8, names.SCALE: ir.DataType.FLOAT, names.ZERO_POINT: UINT8}
            outputs = [
                ir.Value(name=edit.values.claim(base + suffix), type=ir.TensorType(kind))
                for suffix, kind in kinds.items()
            ]
            name = edit.nodes.claim(base + names.QUANTIZE)
            self.w.after(value, [ir.Node("", "DynamicQuantizeLinear", [value], outputs=outputs, name=name)])
            self.running[value] = Quantized(*outputs)
        return self.running[value]

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
            source = self._dequantized(value) if value in self.twins else self._source(value, key)
            q = self.w.quantize(source, key, self._suffix(key))
            if self.plan.spelling.explicit:
                q.outputs[0].name = self.w.editor.values.claim(key.tensor + names.QUANTIZED)
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
        entry = self.plan.entries.get(key)
        if isinstance(entry, Derived) and isinstance(self.plan.entries.get(Key(*entry.x)), Dynamic):
            return self._running_bias(node, index)
        if not isinstance(entry, Derived):
            raise TableError(
                f"The plan leaves the bias of {node.name!r} float, which its integer operator can't take;"
                " leave the node out, or let biases be quantized."
            )
        return self.w.quantized_weight(key)

    def _running_bias(self, node: ir.Node, index: int) -> ir.Value:
        """A bias whose scale is known when the model runs: divided by it, rounded, int32."""
        bias, x, w = node.inputs[index], self._integers(node, 0), self._integers(node, 1)
        last: ir.Value | None = None
        made: list[ir.Node] = []
        steps: list[tuple[str, list[ir.Value | None], str]] = [
            ("Mul", [x.scale, w.scale], "scale"),
            ("Div", [bias], "steps"),
            ("Round", [], "rounded"),
            ("Cast", [], "quantized"),
        ]
        for op, inputs, what in steps:
            name = f"{_name(bias)}_{node.name}_{what}"
            operands = [*inputs, *([last] if last is not None else [])]
            kind = ir.DataType.INT32 if op == "Cast" else ir.DataType.FLOAT
            to = {"to": int(kind)} if op == "Cast" else {}
            made.append(self.w.editor.node(op, operands, to, name=name, output=name, dtype=kind))
            last = made[-1].outputs[0]
        self.w.before(node, made)
        return made[-1].outputs[0]

    # ---- the way back

    def _back_to_float(self) -> None:
        """A DequantizeLinear for each twin that a float node or a graph output still wants as float."""
        for value in list(self.twins):
            old = value.producer()
            if value.uses() or value.is_graph_output():
                made = self._dequantized(value)
                if self.plan.spelling.explicit:
                    self.w.rename(made, value)
                else:
                    self.w.replace_everywhere(value, made)
            if old is not None:
                _remove_unread(old)

    def _early(self, nodes: Sequence[ir.Node]) -> set[ir.Node]:
        """Float nodes that read a stored tensor before any quantized node does; they keep the float value."""
        stored = {key.tensor for key in self.plan.entries if key.reader is None and self.w.is_stored(key)}
        found: set[ir.Node] = set()
        for node in nodes:
            if not stored:
                break
            read = {_name(value) for value in node.inputs} & stored
            if node.name in self.plan.nodes:
                stored -= read
            elif read:
                found.add(node)
        return found

    def _stored_back_to_float(self, early: set[ir.Node]) -> None:
        """A DequantizeLinear for each stored tensor that is quantized for all and that a float node reads."""
        for key in self.plan.entries:
            value = self.w.values[key.tensor]
            if key.reader is not None or not self.w.is_stored(key):
                continue
            if any(node not in early for node, _ in value.uses()):
                dq = self.w.dequantize(self.w.quantized_weight(key), key)
                self.w.at_start([dq])
                self.w.replace_everywhere(value, dq.outputs[0], keep=list(early))


def _remove_unread(node: ir.Node) -> None:
    if node.graph is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
        node.graph.remove(node)


def _name(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None else ""
