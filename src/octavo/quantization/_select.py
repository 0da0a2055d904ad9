"""Which tensors of a model are calibrated: floats that are computed, at the requested operators."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx import ModelProto, TensorProto, ValueInfoProto

from octavo.model.graph import query

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def value_infos(model: ModelProto) -> dict[str, ValueInfoProto]:
    """Return what the model says of its tensors."""
    graph = model.graph
    return {value.name: value for value in (*graph.value_info, *graph.output, *graph.input)}


def tensors_to_calibrate(model: ModelProto, op_types: Sequence[str] | None) -> list[str]:
    """Return the names in the order of the graph; all operators where none are named."""
    known = value_infos(model)
    constants = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, None] = {}
    for node in model.graph.node:
        if op_types and node.op_type not in op_types:
            continue
        for name in (*node.input, *node.output):
            if name in known and name not in constants and element_type(known[name]) in FLOATS:
                found[name] = None
    return list(found)


def float_tensors(model: ir.Model, op_types: Sequence[str] | None) -> dict[str, ir.DataType]:
    """Return the same of a model in memory, with the types; a shape need not be known."""
    found: dict[str, ir.DataType] = {}
    for node in model.graph:
        if op_types and node.op_type not in op_types:
            continue
        for value in (*node.inputs, *node.outputs):
            kind = query.element_type(value)
            if value is not None and value.name and kind in _FLOATS and not value.is_initializer():
                found[value.name] = kind
    return found


def element_type(value: ValueInfoProto) -> int | None:
    """Return the element type of a tensor; None for anything else."""
    kind = value.type
    return int(kind.tensor_type.elem_type) if kind.HasField("tensor_type") else None
