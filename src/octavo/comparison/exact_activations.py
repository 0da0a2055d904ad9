"""A model in the QDQ style whose weights stay rounded while its activations are exact within their ranges.

What such a model loses is the error of its weights. Each pair of nodes around an activation becomes a Clip
to the ends of its range, which may stand for a Relu or Clip that was fused into it, and weights become the
real numbers that their integers stand for::

    x → Q → DQ → …        becomes        x → Clip(q_min, q_max) → …        q = scale · (integer − zero point)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from octavo.comparison import constant_values
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.model.graph.operators import DEQUANTIZE, QUANTIZE


def with_exact_activations(quantized: ir.Model) -> ir.Model | None:
    """Return such a copy of a model; None where it has no such pairs, or integers between them."""
    model = io.load(quantized)
    editor = Editor(model)
    pairs = [node for node in query.nodes(model) if query.is_op(node, QUANTIZE)]
    if not pairs or not all(_clip(node, editor) for node in pairs):
        return None
    for node in [one for one in query.nodes(model) if query.is_op(one, DEQUANTIZE)]:
        weight = node.outputs[0]
        numbers = constant_values.real(weight)
        if numbers is None or weight.is_graph_output():
            return None
        weight.replace_all_uses_with(editor.constant(f"{weight.name}/real", numbers))
        _remove([node])
    return model


def _clip(node: ir.Node, editor: Editor) -> bool:
    """Replace a pair of nodes; return whether that can be done."""
    rounded, scale, zero = node.outputs[0], query.scalar(node.inputs[1]), query.operand(node, 2)
    readers = query.readers(rounded)
    is_pair = all(query.is_op(one, DEQUANTIZE) for one in readers) and not rounded.is_graph_output()
    returned = [one.outputs[0] for one in readers if one.outputs[0].is_graph_output()]
    if not is_pair or not readers or len(returned) > 1 or scale is None or node.graph is None:
        return False
    integers = query.array(zero) if zero is not None else np.zeros((), np.uint8)
    if integers is None or integers.dtype.kind not in "iu":
        return False
    limits = np.iinfo(integers.dtype)
    ends = (scale * (float(end) - float(integers.reshape(-1)[0])) for end in (limits.min, limits.max))
    bounds = [editor.constant(f"{node.name}/bound", np.array(end, np.float32)) for end in ends]
    clip = editor.node("Clip", [node.inputs[0], *bounds], name=f"{node.name}/clip", dtype=ir.DataType.FLOAT)
    node.graph.insert_before(node, [clip])
    for value in [one.outputs[0] for one in readers]:
        if value in returned:
            editor.take_over(clip.outputs[0], value)
        else:
            value.replace_all_uses_with(clip.outputs[0])
    _remove([*readers, node])
    return True


def _remove(nodes: Iterable[ir.Node]) -> None:
    """Remove nodes that nothing reads any more; what they read may belong to another graph, and stays."""
    for node in nodes:
        if node.graph is not None:
            node.graph.remove(node, safe=True)
