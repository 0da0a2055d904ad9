"""QDQ: float operators between QuantizeLinear and DequantizeLinear; the runtime fuses them to integer kernels.

::

    tensor entry    producer → T → Q → DQ → every reader
    edge entry      producer → T → Q → DQ → that reader;  the others read T
    both            T → Q → DQ → … and for that reader DQ → Q' → DQ' (a conversion)
    weight, bias    integers → DQ → reader
"""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.plan import Constant, Derived, Fixed, Key, Plan
from octavo.core.qparams import QParams
from octavo.emission import names
from octavo.emission.special import guard, lookup, recurrent
from octavo.emission.writer import Writer
from octavo.planning.candidates import weight_of
from octavo.planning.resolve import Params


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place."""
    writer = Writer(model, plan, params)
    slots = _slots(writer, plan)
    weights: list[ir.Value] = []
    for name, node in plan.nodes.items():
        if node.form == "DynamicQuantizeLSTM":
            weights.extend(recurrent(writer, writer.nodes[name]))
        elif node.op_type == "Gather" and Key(_table(writer, name), name) in plan.entries:
            weights.extend(lookup(writer, writer.nodes[name]))
    special = {n for n, q in plan.nodes.items() if q.form == "DynamicQuantizeLSTM"}
    tables = {n for n, q in plan.nodes.items() if q.op_type == "Gather"}
    dequantized: dict[tuple[ir.Value, int], ir.Value] = {}
    for key in plan.entries:
        if key.reader is None:
            _whole(writer, key, params[key])
    for key, entry in plan.entries.items():
        if key.reader is None or key.reader in special or (key.reader in tables and isinstance(entry, Constant)):
            continue
        value = writer.values[key.tensor]
        if isinstance(entry, Constant | Derived) or (isinstance(entry, Fixed) and weight_of(value) is not None):
            new = _weight(writer, key, dequantized)
            weights.append(value)
        else:
            new = _edge(writer, key, params[key], dequantized)
        for node, index in slots[key]:
            node.replace_input_with(index, new)
    for name in plan.guards:
        guard(writer, writer.nodes[name])
    writer.drop_unused(weights)


def _table(writer: Writer, name: str) -> str:
    first = writer.nodes[name].inputs[0]
    return (first.name or "") if first is not None else ""


def _slots(writer: Writer, plan: Plan) -> dict[Key, list[tuple[ir.Node, int]]]:
    """For each edge the inputs of the reader that it concerns, before anything is moved."""
    found: dict[Key, list[tuple[ir.Node, int]]] = {}
    for key, _ in plan.edges():
        node = writer.nodes[key.reader or ""]
        found[key] = [(node, i) for i, v in enumerate(node.inputs) if v is not None and v.name == key.tensor]
    return found


def _whole(writer: Writer, key: Key, params: QParams) -> None:
    value = writer.values[key.tensor]
    q = writer.quantize(value, params, key.tensor)
    dq = writer.dequantize(q.outputs[0], params, key.tensor)
    writer.after(value, [q, dq])
    writer.replace_everywhere(value, dq.outputs[0], keep=[q])
    writer.values[key.tensor] = dq.outputs[0]


def _edge(
    writer: Writer,
    key: Key,
    params: QParams,
    made: dict[tuple[ir.Value, int], ir.Value],
) -> ir.Value:
    """The quantized view of one reader; readers that agree share the pair of nodes."""
    value = writer.values[key.tensor]
    slot = (value, _same(params))
    twin = made.get(slot)
    if twin is None:
        suffix = names.CONVERTED if Key(key.tensor) in writer.plan.entries else ""
        q = writer.quantize(value, params, key.tensor, suffix)
        dq = writer.dequantize(q.outputs[0], params, key.tensor, suffix)
        writer.after(value, [q, dq])
        twin = made[slot] = dq.outputs[0]
    return twin


def _same(params: QParams) -> int:
    return hash((params.qtype.name, str(params.granularity), params.scale.tobytes(), params.zero_point.tobytes()))


def _weight(writer: Writer, key: Key, made: dict[tuple[ir.Value, int], ir.Value]) -> ir.Value:
    params = writer.params[key]
    integers = writer.quantized_weight(key)
    slot = (integers, _same(params))
    if slot not in made:
        dq = writer.dequantize(integers, params, key.tensor)
        reader = writer.nodes[key.reader or ""]
        producer = integers.producer()
        if producer is not None:
            writer.after(integers, [dq])
        elif reader.graph is not None and _readers(writer, key) == 1:
            reader.graph.insert_before(reader, [dq])
        else:
            writer.at_start([dq])
        made[slot] = dq.outputs[0]
    return made[slot]


def _readers(writer: Writer, key: Key) -> int:
    return len(writer.values[key.tensor].consumers())
