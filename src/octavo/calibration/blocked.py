"""Observing the result of a convolution without losing what makes convolutions fast.

On x86-64 the runtime keeps the maps of convolutions in a blocked layout, and adds a residual sum and its Relu
while a convolution writes its result. To observe that result costs both: a reduction wants the plain layout,
and a second reader keeps the sum out of the convolution. A convolution of each channel by itself with one
weight is exact, and stays in the layout:

======  ========================================================================
weight  use
======  ========================================================================
-1      what is smallest in a map is then largest, and pooling finds both extremes
1       stands between a map and its sum, which the runtime then fuses into it
======  ========================================================================
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir
from onnx import GraphProto, NodeProto

from octavo.calibration.bodies import replace_nodes
from octavo.calibration.observation import Wanted, Writer
from octavo.model import query

_BLOCK = 16  # the most channels in a block


def blocked(model: ir.Model, wanted: Mapping[str, Wanted]) -> dict[str, Wanted]:
    """What is wanted, with the images of maps, which of them the runtime blocks, and which go into a sum."""
    found = dict(wanted)
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    for node in model.graph:
        for value in node.outputs[:1]:
            want = wanted.get(value.name or "")
            images = _images(value) if want is not None and not want.may_be_nan else None
            if want is not None and images is not None:
                is_blocked = is_x86 and node.op_type == "Conv" and node.domain in ("", "ai.onnx")
                summed = is_blocked and _is_summed(value)
                want = replace(want, images=images, is_blocked=is_blocked, is_summed=summed)
                found[value.name or ""] = want
    return found


def _images(value: ir.Value) -> tuple[int | str, int] | None:
    """The number of images that a float32 map holds, or its name, and their channels, which fill blocks."""
    dims = query.shape(value)
    if dims is None or len(dims) != 4 or query.element_type(value) != ir.DataType.FLOAT:
        return None
    channels = dims[1] or 0
    if channels == 0 or channels % _BLOCK != 0 or value.shape is None:
        return None
    batch = value.shape[0]
    return (batch if isinstance(batch, int) else batch.value or f"images of {value.name}"), channels


def _is_summed(value: ir.Value) -> bool:
    """Whether all that reads a map is a sum with another of the same shape."""
    uses = list(value.uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add" or value.is_graph_output():
        return False
    left, right = uses[0].node.inputs
    return left is not None and right is not None and left is not right and left.shape == right.shape


def relay(graph: GraphProto, wanted: Mapping[str, Wanted], writer: Writer) -> None:
    """Let sums read what is observed through a convolution of their own, which they are fused into."""
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "Add":
            place = next((i for i, name in enumerate(node.input) if _goes_into_sum(wanted, name)), None)
            if place is not None:
                name = node.input[place]
                _, channels = wanted[name].images or (0, 0)
                node.input[place] = writer.channelwise(nodes, name, channels, 1, f"{name}/same")
        nodes.append(node)
    if len(nodes) > len(graph.node):
        replace_nodes(graph, nodes)


def _goes_into_sum(wanted: Mapping[str, Wanted], name: str) -> bool:
    return name in wanted and wanted[name].is_summed
