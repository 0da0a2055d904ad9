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
from collections.abc import Iterator, Mapping
from dataclasses import replace

import onnx_ir as ir
from onnx import GraphProto, NodeProto

from octavo.calibration.bodies import replace_nodes
from octavo.calibration.observation import Wanted, Writer
from octavo.model import query

_BLOCK = 16  # the most channels in a block


def blocked(model: ir.Model, wanted: Mapping[str, Wanted]) -> dict[str, Wanted]:
    """What is wanted, with the channels of maps that the runtime blocks and whether they go into a sum."""
    found = dict(wanted)
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return found
    for value, channels in _convolved(model):
        name = value.name or ""
        if name in wanted and not wanted[name].may_be_nan:
            found[name] = replace(wanted[name], channels=channels, is_summed=_is_summed(value))
    return found


def _convolved(model: ir.Model) -> Iterator[tuple[ir.Value, int]]:
    """Float32 maps that convolutions of the main graph give, and their channels, where they fill blocks."""
    for node in model.graph:
        if node.op_type != "Conv" or node.domain not in ("", "ai.onnx"):
            continue
        value = node.outputs[0]
        dims = query.shape(value)
        if dims is None or len(dims) != 4 or query.element_type(value) != ir.DataType.FLOAT:
            continue
        if dims[1] and dims[1] % _BLOCK == 0:
            yield value, dims[1]


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
                channels = wanted[name].channels or 0
                node.input[place] = writer.channelwise(nodes, name, channels, 1, f"{name}/same")
        nodes.append(node)
    if len(nodes) > len(graph.node):
        replace_nodes(graph, nodes)


def _goes_into_sum(wanted: Mapping[str, Wanted], name: str) -> bool:
    return name in wanted and wanted[name].is_summed
