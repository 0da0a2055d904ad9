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

from octavo.core.plan import Key, Plan
from octavo.emission import names, special
from octavo.emission.writer import Writer
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

    def run(self) -> None:
        slots = {key: self._slots(key) for key, _ in self.plan.edges()}  # before anything is moved
        weights = [self.w.values[key.tensor] for key in slots if self.w.is_stored(key)]
        spelled = {name for name in self.plan.nodes if special.spell(self.w, name)}
        for key in self.plan.entries:
            if key.reader is None:
                self._tensor(key)
        for key, places in slots.items():
            if key.reader not in spelled:
                view = self._weight(key) if self.w.is_stored(key) else self._edge(key)
                for node, index in places:
                    node.replace_input_with(index, view)
        for name in self.plan.guards:
            special.guard(self.w, self.w.nodes[name])
        self.w.drop_unused(weights)

    def _slots(self, key: Key) -> list[tuple[ir.Node, int]]:
        """The inputs of the reader that an edge concerns."""
        node = self.w.nodes[key.reader or ""]
        return [(node, i) for i, v in enumerate(node.inputs) if v is not None and v.name == key.tensor]

    def _tensor(self, key: Key) -> None:
        value = self.w.values[key.tensor]
        q = self.w.quantize(value, key)
        dq = self.w.dequantize(q.outputs[0], key)
        self.w.after(value, [q, dq])
        self.w.replace_everywhere(value, dq.outputs[0], keep=[q])
        self.w.values[key.tensor] = dq.outputs[0]

    def _edge(self, key: Key) -> ir.Value:
        """The quantized view of one reader; readers that agree share the pair of nodes."""
        value = self.w.values[key.tensor]
        slot = (value, self.w.params[key].identity)
        if slot not in self.made:
            suffix = names.CONVERTED if Key(key.tensor) in self.plan.entries else ""
            q = self.w.quantize(value, key, suffix)
            dq = self.w.dequantize(q.outputs[0], key, suffix)
            self.w.after(value, [q, dq])
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
        return self.made[slot]
