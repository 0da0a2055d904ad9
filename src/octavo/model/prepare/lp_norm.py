"""``x / max(‖x‖₂, ε)`` along one axis, spelt out around a ReduceL2, as LpNormalization."""

from __future__ import annotations

import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.query import is_op
from octavo.model.prepare.patterns import read_by
from octavo.model.prepare.unit import Unit

EPSILON = 1e-12


def lp_norm(node: ir.Node, epsilon: float = EPSILON) -> Unit | None:
    """Return the unit around a ReduceL2; the lower bound of its Clip has to be this ε."""
    axis = _axis(node) if is_op(node, "ReduceL2") else None
    if axis is None or not query.attribute(node, "keepdims", 1):
        return None
    nodes, here = [node], node.outputs[0]
    clip = read_by(here, "Clip", "Max")
    if clip is not None:
        bound = query.scalar(clip.inputs[1]) if len(clip.inputs) > 1 else query.attribute(clip, "min")
        upper = len(clip.inputs) > 2 and clip.inputs[2] is not None
        if bound is None or upper or abs(float(bound) - epsilon) > 1e-3 * epsilon + 1e-18:
            return None
        nodes.append(clip)
        here = clip.outputs[0]
    expand = read_by(here, "Expand")
    if expand is not None:
        nodes.append(expand)
        here = expand.outputs[0]
    divide = read_by(here, "Div")
    x = node.inputs[0]
    if divide is None or x is None or divide.inputs[0] is not x or divide.inputs[1] is not here:
        return None
    if expand is not None and query.shape(divide.outputs[0]) != query.shape(x):
        return None
    return Unit("LpNormalization", 1, (*nodes, divide), (x,), {"axis": axis, "p": 2})


def _axis(node: ir.Node) -> int | None:
    axes = query.attribute(node, "axes", None)
    if axes is None and len(node.inputs) > 1:
        axes = query.array(node.inputs[1])
    return int(axes[0]) if axes is not None and len(axes) == 1 else None
