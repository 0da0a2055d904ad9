"""QDQ: float operators between QuantizeLinear and DequantizeLinear, which the runtime fuses to integer ones.

::

    tensor entry    producer → T → Q → DQ → every reader
    edge entry      producer → T → Q → DQ → that reader;  the others read T
    both            T → Q → DQ → … and for that reader DQ → Q' → DQ' (a conversion)
    weight, bias    integers → DQ → reader
"""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from octavo.core.plan import Derived, Key, Plan
from octavo.emission import hard_swish, integer, names, shuffles, special
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.planning.resolve import Params


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place."""
    _Emitter(Writer(model, plan, params)).run()


class _Emitter:
    def __init__(self, writer: Writer) -> None:
        self.w = writer
        self.plan = writer.plan
        self.made: dict[
            Hashable, ir.Value
        ] = {}  # what DequantizeLinear gave, by integers or source and parameters
        self.biases: dict[str, ir.Value] = {}  # what stands for a bias, to take over its name

    def run(self) -> None:
        slots = {key: self._slots(key) for key, _ in self.plan.edges()}  # before anything is moved
        exchanged = shuffles.planned(self.w)
        gated = {name: self._read(name) for name, one in self.plan.nodes.items() if hard_swish.is_wanted(one)}
        weights = [self.w.values[key.tensor] for key in self.plan.entries if self.w.is_stored(key)]
        spelled = {name for name in self.plan.nodes if special.spell(self.w, name)}
        spelled |= integer.spell(self.w)
        for key in self.plan.entries:
            if key.reader is not None:
                continue
            if self.w.is_stored(key) and not self.plan.spelling.float_weights:
                self._constant(key)
            else:
                self._tensor(key)
        for key, places in slots.items():
            if key.reader not in spelled:
                view = self._weight(key) if self.w.is_stored(key) else self._edge(key)
                for node, index in places:
                    node.replace_input_with(index, view)
        for name, key in gated.items():
            hard_swish.spell(self.w, self.w.nodes[name], key)
        for shuffle in exchanged:
            shuffles.spell(self.w, shuffle)
        for name in self.plan.guards:
            special.guard(self.w, self.w.nodes[name])
        self.w.drop_unused(weights)
        for name, value in self.biases.items():
            if name not in self.w.model.graph.initializers:
                value.name = name

    def _read(self, name: str) -> Key:
        """What the first input of a node is in the plan."""
        value = self.w.nodes[name].inputs[0]
        key = self.plan.lookup(value.name or "", name) if value is not None else None
        if key is None:
            raise TableError(f"The plan wants {name!r} as a product of integers, and its input is float.")
        return key

    def _slots(self, key: Key) -> list[tuple[ir.Node, int]]:
        """The inputs of the reader that an edge concerns."""
        node = self.w.nodes[key.reader or ""]
        return [(node, i) for i, v in enumerate(node.inputs) if v is not None and v.name == key.tensor]

    def _constant(self, key: Key) -> None:
        """A stored tensor that every reader sees quantized."""
        value = self.w.values[key.tensor]
        uses = tuple(value.uses())
        dq = self.w.dequantize(self.w.quantized_weight(key), key)
        if len(uses) == 1:
            self.w.before(uses[0][0], [dq])
        else:
            self.w.at_start([dq])
        for node, index in uses:
            node.replace_input_with(index, dq.outputs[0])

    def _tensor(self, key: Key) -> None:
        value = self.w.values[key.tensor]
        if self.plan.spelling.dedicated and not value.is_graph_output():
            readers = [node for node in value.consumers() if node.name in self.plan.nodes]
            if len(readers) > 1:
                self._dedicated(key, value, readers)
                return
        q = self.w.quantize(value, key)
        dq = self.w.dequantize(q.outputs[0], key)
        self.w.after(value, [q, dq])
        self.w.replace_everywhere(value, dq.outputs[0], keep=[q])
        self.w.values[key.tensor] = dq.outputs[0]

    def _dedicated(self, key: Key, value: ir.Value, readers: list[ir.Node]) -> None:
        """A pair for each reader; their parameters are the same ones."""
        self.w.scale_and_zero(key)
        for number, reader in enumerate(readers, start=1):
            q = self.w.quantize(value, key, f"_{number}")
            dq = self.w.dequantize(q.outputs[0], key, f"_{number}")
            self.w.after(value, [q, dq])
            for index, read in enumerate(reader.inputs):
                if read is value:
                    reader.replace_input_with(index, dq.outputs[0])

    def _apart(self, key: Key, value: ir.Value) -> ir.Value:
        """What a conversion reads: a DequantizeLinear of its own where others go on reading the first one."""
        first = value.producer()
        if (
            not self.plan.spelling.explicit
            or Key(key.tensor) not in self.plan.entries
            or first is None
            or first.inputs[0] is None
        ):
            return value
        converted = {k.reader for k in self.plan.entries if k.tensor == key.tensor and k.reader is not None}
        if not value.is_graph_output() and {n.name for n in value.consumers()} <= converted:
            return value
        own = self.w.dequantize(first.inputs[0], Key(key.tensor), names.CONVERTED + "_clone")
        self.w.after(value, [own])
        return own.outputs[0]

    def _edge(self, key: Key) -> ir.Value:
        """The quantized view of one reader; readers that agree share the pair of nodes."""
        value = self.w.values[key.tensor]
        slot = (value, self.w.params[key].identity)
        if slot not in self.made:
            suffix = names.CONVERTED if Key(key.tensor) in self.plan.entries else ""
            source = self._apart(key, value)
            q = self.w.quantize(source, key, suffix)
            dq = self.w.dequantize(q.outputs[0], key, suffix)
            self.w.after(source, [q, dq])
            self.made[slot] = dq.outputs[0]
        return self.made[slot]

    def _weight(self, key: Key) -> ir.Value:
        """Stored integers and their DequantizeLinear; readers that agree share it."""
        integers = self.w.quantized_weight(key)
        slot = (integers, self.w.params[key].identity)
        if slot not in self.made:
            dq = self.w.dequantize(integers, key)
            reader = self.w.nodes[key.reader or ""]
            if integers.producer() is not None:
                self.w.after(integers, [dq])
            elif len(self.w.values[key.tensor].consumers()) == 1:
                self.w.before(reader, [dq])
            else:
                self.w.at_start([dq])
            self.made[slot] = dq.outputs[0]
            if self.plan.spelling.explicit and isinstance(self.plan.entries[key], Derived):
                self.biases[key.tensor] = dq.outputs[0]
        return self.made[slot]
