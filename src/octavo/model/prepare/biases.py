"""Each layer with a bias of its own: one that two layers share has another integer scale in each."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.model import query
from octavo.model.edit import Editor

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
