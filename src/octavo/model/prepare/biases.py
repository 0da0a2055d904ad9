"""Biases in the form that quantization knows.

Each layer has a bias of its own, as one that two layers share has another integer scale in each; and the bias
of a linear layer is a vector, where exporters from TensorFlow write ``[1, N]`` or ``[1, 1, N]``.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.edit import Editor

_BIAS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "LayerNormalization": 2, "InstanceNormalization": 2}


def own_biases(model: ir.Model) -> int:
    """Give every layer but the first that reads a bias a copy of it, in place; returns how many were made."""
    edit = Editor(model)
    seen: dict[ir.Value, int] = {}
    made = 0
    for node in query.nodes(model):
        index = _BIAS.get(node.op_type) if not node.domain else None
        value = node.inputs[index] if index is not None and index < len(node.inputs) else None
        if value is None or index is None or not value.is_initializer() or value.const_value is None:
            continue
        if value not in seen:
            seen[value] = 0
            continue
        copy = edit.constant(f"{value.name}{seen[value]}", np.asarray(value.const_value.numpy()))
        seen[value] += 1
        node.replace_input_with(index, copy)
        made += 1
    return made


def flat_biases(model: ir.Model) -> int:
    """Write what is added to a linear layer as a vector where it is one; returns how many were changed."""
    edit = Editor(model)
    changed = 0
    for node in query.nodes(model):
        layer = query.linear_layer(node)
        add = query.only_reader(node.outputs[0]) if layer is not None and layer.add is None else None
        if layer is None or add is None or add.op_type != "Add" or add.domain:
            continue
        index = 0 if add.inputs[1] is node.outputs[0] else 1
        added, columns = add.inputs[index], query.shape(layer.weight)
        if added is None or columns is None or not _is_row(added, columns[1], query.rank(node.outputs[0])):
            continue
        tensor = query.constant(added)
        if tensor is not None:
            flat = edit.constant(f"{added.name}_flat", np.asarray(tensor.numpy()).reshape(-1))
            add.replace_input_with(index, flat)
            changed += 1
    return changed


def _is_row(value: ir.Value, columns: int | None, most: int | None) -> bool:
    """Whether a value is one row of this many columns, and adding it leaves the rank as it is."""
    dims = query.shape(value)
    if dims is None or most is None or not 2 <= len(dims) <= most:
        return False
    return dims[-1] == columns and all(size == 1 for size in dims[:-1])
