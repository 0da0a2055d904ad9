"""Repairs that change no result, or none by more than half of a step: what ``--fix`` does.

Each takes nodes and gives a function that edits the model. A repair that another one has made superfluous
does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.linting.findings import Repair
from octavo.model.graph import query
from octavo.model.graph.edit import Editor

Array = npt.NDArray[Any]


def _unless_gone(node: ir.Node, repair: Repair) -> Repair:
    """Return the repair, which does nothing once the node is no longer part of the model."""
    return lambda edit: repair(edit) if node.graph is not None else None


def put(edit: Editor, node: ir.Node, index: int, name: str, content: Array) -> None:
    """Let a node read a new constant."""
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, edit.constant(name, np.asarray(content)))


def shift(conversions: list[ir.Node], offset: int, dtype: npt.DTypeLike) -> Repair:
    """Move a tensor and its conversions to the other 8-bit type: zero points and integers by the same."""

    def repair(edit: Editor) -> None:
        for node in conversions:
            if node.graph is None:
                return
            old = query.operand(node, 2)
            given = old.const_value if old is not None else None
            zero = given.numpy().astype(np.int64) if given is not None else _zeros(node)
            put(edit, node, 2, f"{node.name}_zero_point", (zero + offset).astype(dtype))
            if node.op_type == "QuantizeLinear":
                node.attributes.pop("output_dtype", None)
                node.outputs[0].type = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))

    return repair


def _zeros(node: ir.Node) -> Array:
    scale = node.inputs[1]
    tensor = scale.const_value if scale is not None else None
    return np.zeros(tensor.shape.numpy() if tensor is not None else (), np.int64)


def shift_stored(node: ir.Node, index: int, zero_index: int, offset: int, dtype: npt.DTypeLike) -> Repair:
    """Move a constant operand and its zero point to the other 8-bit type."""

    def repair(edit: Editor) -> None:
        value = node.inputs[index]
        if value is None or value.const_value is None:
            return
        content = value.const_value.numpy()
        if content.dtype == np.dtype(dtype):
            return
        old = query.operand(node, zero_index)
        zero = old.const_value.numpy().astype(np.int64) if old is not None and old.const_value else None
        if zero is None:
            zero = _zeros(node) if node.op_type == "DequantizeLinear" else np.zeros((), np.int64)
        put(edit, node, index, f"{value.name}_shifted", (content.astype(np.int64) + offset).astype(dtype))
        put(edit, node, zero_index, f"{value.name}_zero_point", (zero + offset).astype(dtype))

    return _unless_gone(node, repair)


def rescale(dq: ir.Node, integers: Array, scale: Array) -> Repair:
    """Give a stored tensor other integers and scales."""

    def repair(edit: Editor) -> None:
        base = (dq.inputs[0].name if dq.inputs[0] is not None else "") or "bias"
        put(edit, dq, 0, f"{base}_rescaled", integers)
        put(edit, dq, 1, f"{base}_scale", scale)
        if len(dq.inputs) > 2 and dq.inputs[2] is not None:
            put(edit, dq, 2, f"{base}_zero_point", np.zeros(scale.shape, integers.dtype))
        if scale.ndim == 1 and integers.ndim == 1:
            dq.attributes["axis"] = ir.AttrInt64("axis", 0)

    return _unless_gone(dq, repair)


def become(node: ir.Node, content: Array) -> Repair | None:
    """Put a constant in place of a node's result, unless the model returns it."""
    name = f"{node.outputs[0].name}_constant"
    return _replaced(node, lambda edit: edit.constant(name, content))


def replace_by(node: ir.Node, value: ir.Value) -> Repair | None:
    """Let readers of a node's result read another value, which is the same, unless the model returns it."""
    return _replaced(node, lambda edit: value)


def _replaced(node: ir.Node, value: Callable[[Editor], ir.Value]) -> Repair | None:
    def repair(edit: Editor) -> None:
        node.outputs[0].replace_all_uses_with(value(edit))
        edit.remove([node])

    return None if node.outputs[0].is_graph_output() else _unless_gone(node, repair)


def add_zero_point(node: ir.Node, dtype: npt.DTypeLike) -> Repair:
    """Write down the zero point that is meant where none is given."""
    name = f"{node.name}_zero_point"
    return _unless_gone(node, lambda edit: put(edit, node, 2, name, _zeros(node).astype(dtype)))


def to_standard(node: ir.Node) -> Repair:
    """Return the operator of the same name of the default domain."""

    def repair(edit: Editor) -> None:
        node.domain = ""

    return repair


def gather_first(gather: ir.Node, dq: ir.Node) -> Repair:
    """Look rows up as integers, and dequantize those alone."""

    def repair(edit: Editor) -> None:
        table, graph = dq.inputs[0], gather.graph
        if graph is None or table is None or gather.inputs[0] is not dq.outputs[0]:
            return
        old = gather.outputs[0]
        rows = edit.node(
            "Gather", [table, gather.inputs[1]], {k: a.value for k, a in gather.attributes.items()},
            name=f"{gather.name}_integers", output=f"{old.name}_integers", dtype=table.dtype,
        )  # fmt: skip
        again = edit.node(
            "DequantizeLinear", [rows.outputs[0], *dq.inputs[1:]],
            name=f"{gather.name}_DequantizeLinear", output=f"{old.name}_dequantized", domain=dq.domain,
        )  # fmt: skip
        graph.insert_before(gather, [rows, again])
        edit.take_over(again.outputs[0], old)
        edit.remove([gather])

    return repair
