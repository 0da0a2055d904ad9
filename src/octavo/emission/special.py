"""Operators that no operand template covers: lookups of quantized rows, recurrent layers, block products."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Constant, Key
from octavo.emission import block_qdq, experts, names, split_activations
from octavo.emission.nbits import block_product
from octavo.emission.writer import MS, Writer
from octavo.errors import TableError
from octavo.ops import GATHER_BLOCKS, MATMUL_NBITS, MATMUL_TO_FLOAT, QMOE


def write(writer: Writer, name: str) -> bool:
    """Write a node that is the same in every style; return False where it is not one of those."""
    planned, node = writer.plan.nodes[name], writer.nodes[name]
    if planned.lowering == "DynamicQuantizeLSTM":
        _recurrent(writer, node)
        return True
    if planned.lowering == GATHER_BLOCKS.op_type:
        block_qdq.write_lookup(writer, node, _key(node, 0))
        return True
    if planned.op_type == "Gather" and isinstance(writer.plan.entries.get(_key(node, 0)), Constant):
        _lookup(writer, node)
        return True
    if planned.lowering == MATMUL_NBITS.op_type:
        block_product(writer, node, _key(node, 1))
        return True
    if planned.lowering == QMOE.op_type:
        experts.write(writer, node)
        return True
    if planned.lowering == node.op_type and _is_weight_alone(writer, node):
        block_qdq.write_dequantized(writer, node, _key(node, 1))
        return True
    if planned.lowering == MATMUL_TO_FLOAT.op_type and split_activations.is_split(writer, node):
        split_activations.write(writer, node)
        return True
    return False


def _is_weight_alone(writer: Writer, node: ir.Node) -> bool:
    """Whether a product reads a weight that an algorithm has put into blocks, and its input as float."""
    if len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return False
    params = writer.params.get(_key(node, 1))
    x = writer.plan.lookup(node.inputs[0].name or "", node.name or "")
    return params is not None and params.matrix is not None and x is None


def _key(node: ir.Node, index: int) -> Key:
    value = node.inputs[index]
    if value is None:
        raise TableError(f"The plan quantizes input {index} of node {node.name!r}, which has no such input.")
    return Key(value.name or "", node.name)


def _lookup(writer: Writer, node: ir.Node) -> None:
    """Gather rows of integers and their scales, so that the table is not dequantized as a whole.

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
    """Write an LSTM with 8-bit weights: W and R transposed, activations quantized at run time."""
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
    """Return scale and zero point as the kernel takes them: [directions], or [directions, gate rows]."""
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
