"""Observing feature maps of convolutions without losing what makes convolutions fast.

On x86-64 the runtime keeps the feature maps of convolutions in a blocked layout, and adds a residual sum and
its Relu while a convolution writes its result. To observe that result costs both: a reduction needs the plain
layout, and a second consumer keeps the sum out of the convolution. A depthwise convolution with one weight is
exact, and stays in the layout:

======  ==============================================================================
weight  use
======  ==============================================================================
-1      the smallest value of a map becomes the largest, and pooling finds both extremes
1       stands between a map and its sum, which the runtime then fuses into it
======  ==============================================================================
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir
from onnx import GraphProto, NodeProto

from octavo.calibration.observe.observations import (
    BlockedMap,
    GraphWriter,
    Images,
    NonNegativeMap,
    Observation,
    replace_nodes,
)
from octavo.model.graph import query

_MAX_BLOCK = 16  # channels in a block of the runtime's layout, at most


def by_pooling(model: ir.Model, observations: Mapping[str, Observation]) -> dict[str, Observation]:
    """Return observations of tensors that hold no NaN; extremes of feature maps are found by pooling."""
    found = dict(observations)
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    for node in model.graph:
        value = node.outputs[0] if node.outputs else None
        name = value.name or "" if value is not None else ""
        if value is None or name not in found or query.element_type(value) != ir.DataType.FLOAT:
            continue
        images = _images(value)
        if _is_clamped_at_zero(node) and query.rank(value) == 4:
            found[name] = replace(found[name], extremes=NonNegativeMap(images))
        elif images and is_x86 and node.op_type == "Conv" and node.domain in ("", "ai.onnx"):
            found[name] = replace(found[name], extremes=BlockedMap(images, _feeds_sum(value)))
    return found


def _is_clamped_at_zero(node: ir.Node) -> bool:
    """Return whether a node gives nothing negative: a Relu, or a Clip at zero."""
    if node.op_type == "Clip":
        return len(node.inputs) > 1 and query.scalar(node.inputs[1]) == 0
    return node.op_type == "Relu"


def _images(value: ir.Value) -> Images | None:
    """Return the images of a map of four axes whose channels fill whole blocks, else None."""
    dims = query.shape(value)
    if dims is None or len(dims) != 4 or not dims[1] or dims[1] % _MAX_BLOCK or value.shape is None:
        return None
    batch = value.shape[0]
    return Images(batch if isinstance(batch, int) else batch.value or f"images of {value.name}", dims[1])


def _feeds_sum(value: ir.Value) -> bool:
    """Return whether all that reads a map is a sum with another of the same shape."""
    uses = list(value.uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add" or value.is_graph_output():
        return False
    left, right = uses[0].node.inputs
    return left is not None and right is not None and left is not right and left.shape == right.shape


def keep_sums_fused(graph: GraphProto, observations: Mapping[str, Observation], writer: GraphWriter) -> None:
    """Let sums read what is observed through a convolution of their own, which they are fused into."""
    channels = {
        name: how.extremes.images.channels
        for name, how in observations.items()
        if isinstance(how.extremes, BlockedMap) and how.extremes.feeds_sum
    }
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "Add":
            position = next((i for i, name in enumerate(node.input) if name in channels), None)
            if position is not None:
                name = node.input[position]
                same = writer.scaled_channels(nodes, name, channels[name], 1, f"{name}/same")
                node.input[position] = same
        nodes.append(node)
    if len(nodes) > len(graph.node):
        replace_nodes(graph, nodes)
