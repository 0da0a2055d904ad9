"""Spellings that no template covers: lookups of quantized rows, recurrent layers, and guards for float layers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Key
from octavo.core.qparams import QParams
from octavo.emission import names
from octavo.emission.writer import Writer

MS = "com.microsoft"
_LOWEST = np.float32(-3.0e38)


def lookup(writer: Writer, node: ir.Node) -> list[ir.Value]:
    """Gather rows of integers and their scales: the table is never dequantized as a whole.

    ``Gather(T, i)`` becomes ``Cast(Gather(T_quantized, i)) · Gather(T_scale, i)`` with one scale a row.
    """
    table = node.inputs[0]
    if table is None:
        return []
    key = Key(table.name or "", node.name)
    params = writer.params[key]
    integers = writer.quantized_weight(key)
    out = node.outputs[0]
    base = out.name or ""
    scales = writer.constant((table.name or "") + names.SCALE, params.scale.reshape(-1, 1))
    edit = writer.editor
    rows = edit.node("Gather", [integers, node.inputs[1]], {"axis": 0}, name=base + "_rows", output=base + "_rows",
                     dtype=integers.dtype)
    scale = edit.node("Gather", [scales, node.inputs[1]], {"axis": 0}, name=base + "_row_scales",
                      output=base + "_row_scales", dtype=ir.DataType.FLOAT)
    cast = edit.node("Cast", [rows.outputs[0]], {"to": int(ir.DataType.FLOAT)}, name=base + "_rows_float",
                     output=base + "_rows_float", dtype=ir.DataType.FLOAT)
    product = edit.node("Mul", [cast.outputs[0], scale.outputs[0]], name=node.name or base, output=base,
                        dtype=ir.DataType.FLOAT)
    _instead(writer, node, [rows, scale, cast, product])
    return [table]  # fmt: skip


def recurrent(writer: Writer, node: ir.Node) -> list[ir.Value]:
    """An LSTM with 8-bit weights: W and R transposed, one scale a gate row, activations quantized at run time."""
    operands: list[ir.Value | None] = [node.inputs[0]]
    scales: list[ir.Value | None] = []
    weights: list[ir.Value] = []
    for value in node.inputs[1:3]:
        if value is None:
            return []
        key = Key(value.name or "", node.name)
        params = writer.params[key]
        operands.append(writer.quantized_weight(key, layout=(0, 2, 1)))
        directions = int(np.asarray(writer.values[key.tensor].shape)[0])  # type: ignore[arg-type]
        scales.extend(_gate_scales(writer, key.tensor, params, directions))
        weights.append(value)
    rest: list[ir.Value | None] = [*node.inputs[3:], *([None] * 5)]
    operands.extend(rest[:5])
    attributes = {k: v for k, v in node.attributes.items() if k not in ("layout",)}
    new = ir.Node(
        MS,
        "DynamicQuantizeLSTM",
        [*operands, *scales],
        list(attributes.values()),
        outputs=[ir.Value(name=writer.editor.values.claim((v.name or "") + "_lstm") if v.name else None, type=v.type,
                          shape=v.shape) for v in node.outputs],
        name=writer.editor.nodes.claim(node.name or "LSTM"),
    )  # fmt: skip
    _instead(writer, node, [new])
    return weights


def _gate_scales(writer: Writer, name: str, params: QParams, directions: int) -> list[ir.Value]:
    scale = np.broadcast_to(params.scale.reshape(directions, -1) if params.scale.ndim else params.scale, _gate_shape(params, directions))
    zero = np.broadcast_to(params.zero_point.reshape(directions, -1) if params.zero_point.ndim else params.zero_point, _gate_shape(params, directions))
    return [
        writer.constant(name + names.SCALE, np.ascontiguousarray(scale)),
        writer.constant(name + names.ZERO_POINT, np.ascontiguousarray(zero), params.qtype),
    ]


def _gate_shape(params: QParams, directions: int) -> tuple[int, ...]:
    return (directions,) if params.scale.ndim == 0 else (directions, params.scale.size // directions)


def guard(writer: Writer, node: ir.Node) -> None:
    """Keep a float layer float: between DequantizeLinear and QuantizeLinear the runtime would round its weights.

    A Clip that clips nothing, in front of the layer, stops that.
    """
    value = node.inputs[0]
    if value is None:
        return
    low = writer.constant(f"{node.name}_lowest", np.asarray(_LOWEST))
    high = writer.constant(f"{node.name}_highest", np.asarray(-_LOWEST))
    clip = writer.editor.node("Clip", [value, low, high], name=f"{node.name}_stays_float", output=f"{value.name}_float",
                              dtype=ir.DataType.FLOAT)  # fmt: skip
    if node.graph is not None:
        node.graph.insert_before(node, [clip])
    node.replace_input_with(0, clip.outputs[0])


def _instead(writer: Writer, old: ir.Node, new: list[ir.Node]) -> None:
    """Put nodes in the place of one; the outputs of the last take over those of the old node."""
    if old.graph is None:
        return
    old.graph.insert_before(old, new)
    last = new[-1]
    for before, after in zip(old.outputs, last.outputs, strict=False):
        if before.name:
            name = before.name
            writer.editor.take_over(after, before)
            writer.values[name] = after
    writer.editor.remove([old])
    writer.nodes[old.name or ""] = last
