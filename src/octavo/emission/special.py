"""Spellings that no template covers: lookups of quantized rows, recurrent layers, and guards."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Constant, Key
from octavo.emission import names, softmax
from octavo.emission.nbits import block_product
from octavo.emission.passes import is_wanted, passes
from octavo.emission.writer import MS, Writer
from octavo.errors import TableError
from octavo.model.query import is_float
from octavo.ops import BLOCK_PRODUCT, MATMUL_TO_FLOAT, Act, Kind, rule_of
from octavo.planning import masks

_LOWEST = np.float32(-3.0e38)


def spell(writer: Writer, name: str) -> bool:
    """Write a node that is spelled the same in every style; False where it is none of those."""
    planned, node = writer.plan.nodes[name], writer.nodes[name]
    if planned.form == "DynamicQuantizeLSTM":
        _recurrent(writer, node)
        return True
    if planned.op_type == "Gather" and isinstance(writer.plan.entries.get(_key(node, 0)), Constant):
        _lookup(writer, node)
        return True
    if planned.form == BLOCK_PRODUCT.op_type:
        block_product(writer, node)
        return True
    if planned.form == MATMUL_TO_FLOAT.op_type and is_wanted(writer, node):
        passes(writer, node)
        return True
    return False


def _key(node: ir.Node, index: int) -> Key:
    value = node.inputs[index]
    if value is None:
        raise TableError(f"The plan wants input {index} of node {node.name!r} quantized, and it has none.")
    return Key(value.name or "", node.name)


def _lookup(writer: Writer, node: ir.Node) -> None:
    """Gather rows of integers and their scales: the table is never dequantized as a whole.

    With one scale a row, ``Gather(T, i)`` becomes
    ``(Cast(Gather(T_quantized, i)) - Gather(T_zero_point, i)) · Gather(T_scale, i)``.
    """
    key, base, indices = _key(node, 0), node.outputs[0].name or "", node.inputs[1]
    params = writer.params[key]

    def gathered(table: ir.Value, what: str) -> ir.Node:
        return writer.editor.node(
            "Gather", [table, indices], {"axis": 0}, name=base + what, output=base + what, dtype=table.dtype
        )

    def computed(op: str, inputs: list[ir.Value], what: str, **attributes: int) -> ir.Node:
        return writer.editor.node(
            op, inputs, attributes, name=base + what, output=base + what, dtype=ir.DataType.FLOAT
        )

    def column(content: np.ndarray, what: str) -> ir.Value:
        return writer.constant(key.tensor + what, content.astype(np.float32).reshape(-1, 1))

    rows = gathered(writer.quantized_weight(key), "_rows")
    scales = gathered(column(params.scale, names.SCALE), "_row_scales")
    last = computed("Cast", [rows.outputs[0]], "_rows_float", to=int(ir.DataType.FLOAT))
    new = [rows, scales, last]
    if params.zero_point.any():
        zeros = gathered(column(params.zero_point, names.ZERO_POINT), "_row_zero_points")
        last = computed("Sub", [last.outputs[0], zeros.outputs[0]], "_rows_centred")
        new += [zeros, last]
    new.append(computed("Mul", [last.outputs[0], scales.outputs[0]], "_scaled"))
    writer.replace_node(node, new)
    writer.nodes[node.name or ""] = new[-1]


def _recurrent(writer: Writer, node: ir.Node) -> None:
    """An LSTM with 8-bit weights: W and R transposed, activations quantized at run time."""
    weights, scales = [], []
    for index in (1, 2):
        key = _key(node, index)
        weights.append(writer.quantized_weight(key, layout=(0, 2, 1)))
        scales += _gate_scales(writer, key)
    rest = [*node.inputs[3:], *([None] * 5)][:5]
    new = writer.like(node, MS, "DynamicQuantizeLSTM", [node.inputs[0], *weights, *rest, *scales])
    for name, attribute in node.attributes.items():
        if name != "layout":
            new.attributes[name] = attribute
    writer.replace_node(node, [new])
    writer.nodes[node.name or ""] = new


def _gate_scales(writer: Writer, key: Key) -> list[ir.Value]:
    """Scale and zero point as the kernel wants them: [directions], or [directions, gate rows]."""
    params = writer.params[key]
    directions = _directions(writer.values[key.tensor])
    gates = params.scale.size // directions if params.scale.ndim else 0
    shape = (directions, gates) if gates else (directions,)
    return [
        writer.number(key.tensor + names.SCALE, _spread(params.scale, shape)),
        writer.number(key.tensor + names.ZERO_POINT, _spread(params.zero_point, shape), params.qtype),
    ]


def _directions(weight: ir.Value) -> int:
    if weight.const_value is None:
        raise TableError(f"The recurrent weight {weight.name!r} is not constant.")
    return int(weight.const_value.shape.numpy()[0])


def _spread(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return values.reshape(shape) if values.ndim else np.full(shape, values)


def guard(writer: Writer, node: ir.Node) -> None:
    """Put a Max that changes nothing beside a node, so that the runtime does not rewrite it.

    In front of a layer it keeps the runtime from rounding the layer's float weights, or from looking for a
    kernel that it has not; behind a Relu or Clip, from dropping that; on both sides of data movement, from
    moving QuantizeLinear and DequantizeLinear past it. A float Add becomes a Sum, which the runtime leaves
    alone. A float Softmax becomes its parts, or, over the last axis, gets a floor under what it reads.
    """
    is_float_node = node.name not in writer.plan.nodes
    if node.op_type == "Add" and is_float_node:
        node.op_type = "Sum"
        return
    if node.op_type == "Softmax" and is_float_node:
        if masks.over_last_axis(node):
            softmax.put_floor(writer, node)
        else:
            softmax.spell(writer, node)
        return
    rule = rule_of(node)
    kind = rule.kind if rule is not None else None
    if kind is not Kind.CLAMP:
        index = next(
            (i for i in range(len(node.inputs)) if rule is not None and isinstance(rule.role(i), Act)), 0
        )
        value = node.inputs[index]
        if value is None:
            raise TableError(f"The plan guards node {node.name!r}, which reads nothing.")
        held = _held(writer, value, f"{node.name}_guard")
        writer.before(node, [held])
        node.replace_input_with(index, held.outputs[0])
    if kind in (Kind.CLAMP, Kind.MOVE, Kind.LOOKUP):
        for i, value in enumerate(node.outputs):
            if is_float(value):
                held = _held(writer, value, f"{node.name}_guard_{i}")
                writer.after(value, [held])
                writer.replace_everywhere(value, held.outputs[0], keep=[held])


def _held(writer: Writer, value: ir.Value, name: str) -> ir.Node:
    low = writer.constant(f"{name}_lowest", np.asarray(_LOWEST))
    return writer.editor.node("Max", [value, low], name=name, output=name, dtype=ir.DataType.FLOAT)
