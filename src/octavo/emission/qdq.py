"""The QDQ style: float operators between QuantizeLinear and DequantizeLinear, fused by the runtime.

::

    tensor entry    producer → T → Q → DQ → every consumer
    edge entry      producer → T → Q → DQ → that consumer;  the others read T
    both            T → Q → DQ → … and for that consumer DQ → Q' → DQ' (a conversion)
    weight, bias    integers → DQ → consumer
"""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from octavo.core.plan import GRAPH_OUTPUT, Derived, Key, Plan
from octavo.core.recipe import Style
from octavo.emission import barriers, integer, lowered, names, special
from octavo.emission.output_format import OutputFormat
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model.graph.edit import prepend
from octavo.planning.lowerings import GATED
from octavo.planning.resolve import Params


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place."""
    _Emitter(Writer(model, plan, params)).run()


FORMAT = OutputFormat("qdq", Style.QDQ, emit)


class _Emitter:
    def __init__(self, writer: Writer) -> None:
        self.w = writer
        self.plan = writer.plan
        self.dequantized: dict[Hashable, ir.Value] = {}  # by integers or source, and parameters
        self.biases: dict[str, ir.Value] = {}  # by the name of the bias, which they take over

    def run(self) -> None:
        slots = {key: self._slots(key) for key, _ in self.plan.edges()}  # before anything is replaced
        shuffles = lowered.planned_shuffles(self.w)
        gates = {name: self._input_key(name) for name, one in self.plan.nodes.items() if one == GATED}
        weights = [self.w.values[key.tensor] for key in self.plan.entries if self.w.is_stored(key)]
        written = {name for name in self.plan.nodes if special.write(self.w, name)}
        written |= integer.write_dynamic(self.w)
        for key in self.plan.entries:
            if key.consumer is not None:
                continue
            if self.w.is_stored(key) and not self.plan.writing.float_weights:
                self._constant(key)
            else:
                self._tensor(key)
        for key, inputs in slots.items():
            if key.consumer not in written:
                view = self._weight(key) if self.w.is_stored(key) else self._edge(key)
                if key.consumer == GRAPH_OUTPUT:
                    self.w.output_instead(self.w.values[key.tensor], view, names.DEQUANTIZE + names.OUTPUT)
                for node, index in inputs:
                    node.replace_input_with(index, view)
        for name, key in gates.items():
            lowered.write_hard_swish(self.w, self.w.nodes[name], key)
        for shuffle in shuffles:
            lowered.write_shuffle(self.w, shuffle)
        for name in self.plan.barriers:
            barriers.write(self.w, name)
        self.w.drop_unused(weights)
        for name, value in self.biases.items():
            if name not in self.w.model.graph.initializers:
                value.name = name

    def _input_key(self, name: str) -> Key:
        """Return the key of a node's first input."""
        value = self.w.nodes[name].inputs[0]
        key = self.plan.lookup(value.name or "", name) if value is not None else None
        if key is None:
            raise TableError(f"The plan lowers {name!r} to a product of integers, but its input is float.")
        return key

    def _slots(self, key: Key) -> list[tuple[ir.Node, int]]:
        """Return the inputs of the consumer that an edge concerns."""
        if key.consumer == GRAPH_OUTPUT:
            return []
        node = self.w.nodes[key.consumer or ""]
        return [(node, i) for i, v in enumerate(node.inputs) if v is not None and v.name == key.tensor]

    def _constant(self, key: Key) -> None:
        """Write a stored tensor that every consumer sees quantized."""
        value = self.w.values[key.tensor]
        uses = tuple(value.uses())
        dq = self.w.dequantize(self.w.quantized_weight(key), key)
        if len(uses) == 1 and not self.plan.writing.explicit:
            self.w.before(uses[0][0], [dq])
        else:
            prepend(self.w.model.graph, [dq])
        for node, index in uses:
            node.replace_input_with(index, dq.outputs[0])

    def _tensor(self, key: Key) -> None:
        value = self.w.values[key.tensor]
        if self.plan.writing.dedicated and not value.is_graph_output():
            consumers = [node for node in value.consumers() if node.name in self.plan.nodes]
            if len(consumers) > 1:
                self._dedicated(key, value, consumers)
                return
        q = self.w.quantize(value, key)
        dq = self.w.dequantize(q.outputs[0], key)
        self.w.after(value, [q, dq])
        self.w.replace_everywhere(value, dq.outputs[0], keep=[q])
        self.w.values[key.tensor] = dq.outputs[0]

    def _dedicated(self, key: Key, value: ir.Value, consumers: list[ir.Node]) -> None:
        """Write a pair for each consumer, all with the same parameters."""
        self.w.scale_and_zero(key)
        for number, consumer in enumerate(consumers, start=1):
            q = self.w.quantize(value, key, f"_{number}")
            dq = self.w.dequantize(q.outputs[0], key, f"_{number}")
            self.w.after(value, [q, dq])
            for index, read in enumerate(consumer.inputs):
                if read is value:
                    consumer.replace_input_with(index, dq.outputs[0])

    def _conversion_input(self, key: Key, value: ir.Value) -> ir.Value:
        """Return what a conversion reads: a DequantizeLinear of its own where others read the first one."""
        first = value.producer()
        if (
            not self.plan.writing.explicit
            or Key(key.tensor) not in self.plan.entries
            or first is None
            or first.inputs[0] is None
        ):
            return value
        converted = {
            k.consumer for k in self.plan.entries if k.tensor == key.tensor and k.consumer is not None
        }
        given_out = value.is_graph_output() and GRAPH_OUTPUT not in converted
        if not given_out and {n.name for n in value.consumers()} <= converted:
            return value
        own = self.w.dequantize(first.inputs[0], Key(key.tensor), names.CONVERTED + "_clone")
        self.w.after(value, [own])
        return own.outputs[0]

    def _edge(self, key: Key) -> ir.Value:
        """Return the quantized view of one consumer; consumers that agree share the pair of nodes."""
        value = self.w.values[key.tensor]
        slot = (value, self.w.params[key].identity)
        if slot not in self.dequantized:
            suffix = names.CONVERTED if Key(key.tensor) in self.plan.entries else ""
            source = self._conversion_input(key, value)
            q = self.w.quantize(source, key, suffix)
            dq = self.w.dequantize(q.outputs[0], key, suffix)
            self.w.after(source, [q, dq])
            self.dequantized[slot] = dq.outputs[0]
        return self.dequantized[slot]

    def _weight(self, key: Key) -> ir.Value:
        """Return the dequantized view of stored integers; consumers that agree share it."""
        integers = self.w.quantized_weight(key)
        slot = (integers, self.w.params[key].identity)
        if slot not in self.dequantized:
            dq = self.w.dequantize(integers, key)
            consumer = self.w.nodes[key.consumer or ""]
            if integers.producer() is not None:
                self.w.after(integers, [dq])
            elif len(self.w.values[key.tensor].consumers()) == 1 and not self.plan.writing.explicit:
                self.w.before(consumer, [dq])
            else:
                prepend(self.w.model.graph, [dq])
            self.dequantized[slot] = dq.outputs[0]
            if self.plan.writing.explicit and isinstance(self.plan.entries[key], Derived):
                self.biases[key.tensor] = dq.outputs[0]
        return self.dequantized[slot]
