"""The QOperator style: QLinearConv, QLinearMatMul and the like; integers flow from one to the next.

Every float value that the plan quantizes has an integer twin. A quantized node computes the twin directly;
where a float node computes the value, a QuantizeLinear follows. Where a float node reads a value of which
only the twin exists, a DequantizeLinear comes in between.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import onnx_ir as ir

from octavo.core.plan import Derived, Dynamic, Key, Plan
from octavo.core.plan import Quantized as Planned
from octavo.core.recipe import Style
from octavo.emission import barriers, names, special
from octavo.emission.operands import Quantized, operands_of
from octavo.emission.output_format import OutputFormat
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model.graph import query
from octavo.model.graph.edit import prepend
from octavo.model.graph.query import opset
from octavo.ops import MATMUL_TO_FLOAT, REMOVED, Lowering, rule_of
from octavo.planning.resolve import Params


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place."""
    Emitter(Writer(model, plan, params)).run()


FORMAT = OutputFormat("qoperator", Style.QOPERATOR, emit)


class Emitter:
    """Writes integer operators; the integer style adds those whose inputs are quantized at run time."""

    def __init__(self, writer: Writer) -> None:
        self.w = writer
        self.plan = writer.plan
        self.bounds: list[ir.Value] = []  # of clamps that the quantized range replaces
        self.twins: dict[ir.Value, ir.Value] = {}  # float value → integers from a quantized node
        self.quantized: dict[Hashable, ir.Value] = {}  # results of QuantizeLinear
        self.rounded: dict[ir.Value, ir.Value] = {}  # float value → the rounded one for float consumers
        self.running: dict[ir.Value, Quantized] = {}  # results of DynamicQuantizeLinear
        self.floats: dict[ir.Value, ir.Value] = {}  # float value with a twin → result of DequantizeLinear

    def run(self) -> None:
        """Write every node of the plan, in the order of the graph."""
        weights = [self.w.values[key.tensor] for key in self.plan.entries if self.w.is_stored(key)]
        nodes = list(self.w.nodes.values())
        early = self._early(nodes)
        for tensor, consumer in self.plan.rounded:
            self._round(Key(tensor, consumer))
        for node in nodes:
            planned = self.plan.nodes.get(node.name or "")
            if planned is not None and not special.write(self.w, node.name or ""):
                self.write(node, planned)
        self._back_to_float()
        self._stored_back_to_float(early)
        for name in self.plan.barriers:
            barriers.write(self.w, name)
        self.w.drop_unused([*weights, *self.bounds])

    def _round(self, key: Key) -> None:
        """Add a pair after a value that a float node computes, for the float nodes that read it rounded."""
        value = self.w.values[key.tensor]
        source = self._source(value, key)
        q = self.w.quantize(source, key, self._suffix(key))
        dq = self.w.dequantize(q.outputs[0], key, self._suffix(key))
        self.w.after(source, [q, dq])
        self.quantized[value, self.w.params[key].identity] = q.outputs[0]
        integers = [node for node in value.consumers() if node.name in self.plan.nodes]
        if key.consumer is None:
            edges = [n for n in value.consumers() if Key(key.tensor, n.name) in self.plan.entries]
            kept = [q, *integers, *edges]
            self.w.replace_everywhere(value, dq.outputs[0], keep=kept)
            self.rounded[value] = dq.outputs[0]
            return
        for index, read in enumerate(self.w.nodes[key.consumer].inputs):
            if read is value:
                self.w.nodes[key.consumer].replace_input_with(index, dq.outputs[0])

    def _source(self, value: ir.Value, key: Key) -> ir.Value:
        """Return what is quantized for a key: on an edge, the tensor as all other consumers see it."""
        return self.rounded.get(value, value) if key.consumer is not None else value

    def write(self, node: ir.Node, planned: Planned) -> None:
        """Write one node of the plan."""
        if planned.lowering == REMOVED:
            self._pass(node)
        elif planned.lowering == MATMUL_TO_FLOAT.op_type:
            self._to_float(node, planned.bias_add)
        else:
            self._rewrite(node, lowering_of(node, Style.QOPERATOR))

    # ---- one node

    def _rewrite(self, node: ir.Node, lowering: Lowering) -> None:
        key = Key(_name(node.outputs[0]))
        output = self.w.scale_and_zero(key) if key in self.plan.entries else None
        operands = operands_of(
            lowering,
            node,
            lambda i: self._integers(node, i),
            lambda i: self._bias(node, i),
            output,
            lambda i: self._padding(node, i),
        )
        new = self.w.like(node, lowering.domain, lowering.op_type, operands)
        keep_attributes(new, node, lowering)
        if lowering.op_type == "QLinearSoftmax":
            new.attributes["opset"] = ir.AttrInt64("opset", opset(self.w.model))
        self._put(node, new)

    def _put(self, old: ir.Node, new: ir.Node) -> None:
        """Insert the integer operator; the float outputs stay until their consumers are rewritten."""
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
        """Pass the integers on: the quantized range of its input replaces a clamp."""
        self.twins[node.outputs[0]] = self._integers(node, 0).integers
        self.bounds += [value for value in node.inputs[1:] if value is not None]
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)

    def _padding(self, node: ir.Node, index: int) -> ir.Value | None:
        value = query.operand(node, index)
        if value is None or Key(_name(value), node.name) not in self.plan.entries:
            return None
        return self._integers(node, index).integers

    def _to_float(self, node: ir.Node, bias_add: str | None) -> None:
        """Write a linear layer with a float result: MatMulIntegerToFloat, which takes the bias."""
        operands = operands_of(MATMUL_TO_FLOAT, node, lambda i: self._integers(node, i))
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
            raise TableError(f"Node {node.name!r} has no input {index}.")
        key = self.plan.lookup(_name(value), node.name or "")
        if key is None:
            raise TableError(f"The plan quantizes node {node.name!r} but not its input {value.name!r}.")
        if isinstance(self.plan.entries[key], Dynamic):
            return self._running(value)
        return Quantized(self._stored_or_made(value, key), *self.w.scale_and_zero(key, self._suffix(key)))

    def _running(self, value: ir.Value) -> Quantized:
        """Return a value quantized while the model runs, once for all consumers."""
        if value not in self.running:
            node, self.running[value] = self.w.dynamically_quantized(value)
            self.w.after(value, [node])
        return self.running[value]

    def _suffix(self, key: Key) -> str:
        return names.CONVERTED if key.consumer is not None and Key(key.tensor) in self.plan.entries else ""

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
            if self.plan.writing.explicit:
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
                f"The plan keeps the bias of {node.name!r} in float, which its integer operator can't take;"
                " exclude the node, or quantize biases."
            )
        return self.w.quantized_weight(key)

    def _running_bias(self, node: ir.Node, index: int) -> ir.Value:
        """Compute an int32 bias whose scale is known when the model runs: divided by it and rounded."""
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

    # ---- back to float

    def _back_to_float(self) -> None:
        """Add a DequantizeLinear for each twin that a float node or a graph output reads."""
        for value in list(self.twins):
            old = value.producer()
            if value.uses() or value.is_graph_output():
                made = self._dequantized(value)
                if self.plan.writing.explicit:
                    self.w.rename(made, value)
                else:
                    self.w.replace_everywhere(value, made)
            if old is not None:
                _remove_unread(old)

    def _early(self, nodes: Sequence[ir.Node]) -> set[ir.Node]:
        """Return float nodes that read a stored tensor before any quantized node; they keep it in float."""
        stored = {key.tensor for key in self.plan.entries if key.consumer is None and self.w.is_stored(key)}
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
        """Add a DequantizeLinear for each stored tensor that is quantized for all and has float consumers."""
        for key in self.plan.entries:
            value = self.w.values[key.tensor]
            if key.consumer is not None or not self.w.is_stored(key):
                continue
            if any(node not in early for node, _ in value.uses()):
                dq = self.w.dequantize(self.w.quantized_weight(key), key)
                if (
                    self.plan.style is Style.INTEGER
                    and "axis" in dq.attributes
                    and self.plan.writing.explicit
                ):
                    # Counted from the last axis, as tools expect.
                    axis = dq.attributes["axis"].as_int() - len(value.shape or ())
                    dq.attributes["axis"] = ir.AttrInt64("axis", axis)
                prepend(self.w.model.graph, [dq])
                self.w.replace_everywhere(value, dq.outputs[0], keep=list(early))


def lowering_of(node: ir.Node, style: Style) -> Lowering:
    """Return the integer operator of a node in a style; raise where it has none."""
    rule = rule_of(node)
    found = rule.lowerings.get(style) if rule is not None else None
    if found is None:
        raise TableError(
            f"The plan quantizes {node.name!r} in the style {style.value}, which has no {node.op_type};"
            " exclude the node."
        )
    return found


def keep_attributes(new: ir.Node, old: ir.Node, lowering: Lowering) -> None:
    """Copy the attributes that the integer operator keeps."""
    for name, attribute in old.attributes.items():
        if lowering.attributes is None or name in lowering.attributes:
            new.attributes[name] = attribute


def _remove_unread(node: ir.Node) -> None:
    if node.graph is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
        node.graph.remove(node)


def _name(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None else ""
