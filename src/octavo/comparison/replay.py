"""Each quantized unit alone, fed with float inputs: all of them side by side in one model.

The inputs of the replay are tensors of the float model. What quantizes a tensor before a unit reads it is
kept, and so is what quantizes the unit's own result; what comes from another unit is replaced by the float
tensor. One run of the replay then gives the *local* result of every unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from octavo.comparison.constant_values import is_constant
from octavo.comparison.match import Matching, Pair
from octavo.comparison.signals import is_copy
from octavo.model.files.serialize import part_of
from octavo.model.graph import query


class _NoSourceError(Exception):
    """A unit reads something that has no float counterpart."""


@dataclass
class Replay:
    """The replay model without its weights, and what its inputs and outputs are."""

    proto: onnx.ModelProto
    inputs: dict[str, ir.Value] = field(
        default_factory=dict
    )  # input of the replay → tensor of the float model
    outputs: dict[Pair, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)  # initializers


def build(found: Matching, pairs: list[Pair]) -> Replay:
    """Return a replay of those pairs that can be replayed."""
    builder = _Builder(found)
    for index, pair in enumerate(pairs):
        if pair.is_main and not query.subgraphs(pair.unit.node):
            builder.try_pair(pair, f"unit{index}/")
    return builder.result


class _Builder:
    def __init__(self, found: Matching) -> None:
        self.m, self.q = found, found.view
        proto = part_of(found.view.model, "replay")
        self.result = Replay(proto)
        self.names: dict[ir.Value, str] = {}  # what units read
        self.sources: dict[tuple[ir.Value, ir.DataType], str] = {}  # signals of the float model, by type
        self.copied: set[ir.Node] = set()
        self.shared = proto.graph.node
        self.nodes: list[onnx.NodeProto] = []  # of the unit at hand

    def try_pair(self, pair: Pair, prefix: str) -> None:
        """Add a unit, unless something that it reads is not known; what quantizes its inputs is shared."""
        self.nodes = []
        try:
            output = self._unit(pair, prefix)
        except _NoSourceError:
            return
        self.shared.extend(self.nodes)
        self.result.proto.graph.output.add(name=output)
        self.result.outputs[pair] = output

    def _unit(self, pair: Pair, prefix: str) -> str:
        members = (*pair.unit.nodes, *pair.more)
        made = {v for node in members for v in node.outputs}
        outside = [v for node in members for v in node.inputs if v is not None and v not in made]
        for value in outside:
            self._entry(value)
        for node in members:
            self._clone(node, prefix, made)
        return self._exit(pair.twin, prefix)

    def _clone(self, node: ir.Node, prefix: str, made: set[ir.Value]) -> None:
        inputs = [
            "" if v is None else prefix + (v.name or "") if v in made else self._entry(v) for v in node.inputs
        ]
        outputs = [prefix + v.name if v.name else "" for v in node.outputs]
        self.nodes.append(_clone_of(node, inputs, outputs, prefix))

    # ---- what a unit reads

    def _entry(self, value: ir.Value) -> str:
        known = self.names.get(value)
        if known is None:
            known = self.names[value] = self._constant(value) if is_constant(value) else self._copied(value)
        return known

    def _constant(self, value: ir.Value) -> str:
        node = value.producer()
        if node is None:
            self.result.used.add(value.name or "")
        elif node not in self.copied:
            inputs = ["" if v is None else self._entry(v) for v in node.inputs]
            self.copied.add(node)
            self.shared.append(_clone_of(node, inputs, [v.name or "" for v in node.outputs], "const/"))
        return value.name or ""

    def _copied(self, value: ir.Value) -> str:
        node = value.producer()
        if node is None or not is_copy(node):
            return self._source(value)
        inputs = ["" if v is None else self._entry(v) for v in node.inputs]
        outputs = [f"in/{v.name}" if v.name else "" for v in node.outputs]
        self.names.update(zip(node.outputs, outputs, strict=True))
        self.shared.append(_clone_of(node, inputs, outputs, "in/"))
        return self.names[value]

    def _source(self, value: ir.Value) -> str:
        """Return the float tensor for what another unit gives; quantized, if that gives integers."""
        source = self.m.signals.get(self.q.signal(value))
        if source is None or source.graph is not self.m.float_view.model.graph:
            raise _NoSourceError
        numbers = self.q.numbers.get(value)
        if numbers is None:
            return self._input(source, value)
        inputs = [self._input(source, None), self._entry(numbers.scale)]
        inputs += [self._entry(numbers.zero)] if numbers.zero is not None else []
        output = f"in/{value.name}"
        self.shared.append(
            onnx.helper.make_node("QuantizeLinear", inputs, [output], name=f"{output}/quantize")
        )
        return output

    def _input(self, source: ir.Value, like: ir.Value | None) -> str:
        kind = query.element_type(like) if like is not None else ir.DataType.FLOAT
        kind = kind or query.element_type(source) or ir.DataType.FLOAT
        if (source, kind) not in self.sources:
            prefix = kind.name.lower() if kind in query.HALF_FLOATS else "float"
            name = self.sources[source, kind] = f"{prefix}/{source.name}"
            dims = query.shape(source)
            info = onnx.helper.make_tensor_value_info(name, int(kind), dims)
            self.result.proto.graph.input.append(info)
            self.result.inputs[name] = source
        return self.sources[source, kind]

    # ---- what it gives

    def _exit(self, twin: ir.Value, prefix: str) -> str:
        seen = self.q.seen(self.q.signal(twin))
        chain: list[ir.Node] = []
        value: ir.Value | None = seen
        while value is not None and value is not twin:
            node = value.producer()
            if node is None or not is_copy(node):
                chain = []
                break
            chain.insert(0, node)
            value = node.inputs[0]
        made = {twin, *(v for node in chain for v in node.outputs)}
        for node in chain:
            self._clone(node, prefix, made)
        last = chain[-1].outputs[0] if chain else twin
        numbers = self.q.numbers.get(last)
        if numbers is None:
            return prefix + (last.name or "")
        inputs = [prefix + (last.name or ""), self._entry(numbers.scale)]
        inputs += [self._entry(numbers.zero)] if numbers.zero is not None else []
        output = f"{prefix}{last.name}/float"
        self.nodes.append(onnx.helper.make_node("DequantizeLinear", inputs, [output], name=f"{output}/back"))
        return output


def _clone_of(node: ir.Node, inputs: list[str], outputs: list[str], prefix: str) -> onnx.NodeProto:
    proto = ir.serde.serialize_node(node)
    proto.name = f"{prefix}{node.name or outputs[0]}"
    proto.input[:] = inputs
    proto.output[:] = outputs
    return proto
