"""One node, or one array, by itself: for callers who walk the graph themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from octavo.algorithms import BlockScheme
from octavo.core import kernels
from octavo.emission import nbits
from octavo.emission.block_qdq import least_opset
from octavo.model import io
from octavo.weight_only.request import WeightOnly
from octavo.weight_only.run import quantize

Array = npt.NDArray[Any]


def quantize_node(
    node: onnx.NodeProto, weight: onnx.TensorProto, want: WeightOnly
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """One node by itself: what stands in its place, and the constants it reads; unchanged if it can't be."""
    position = 0 if node.op_type == "Gather" else 1
    other = node.input[1 - position]
    kind = onnx.TensorProto.INT64 if node.op_type == "Gather" else weight.data_type
    named = onnx.TensorProto()
    named.CopyFrom(weight)
    named.name = node.input[position]
    describe = onnx.helper.make_tensor_value_info
    outputs = [describe(node.output[0], weight.data_type, None)]
    graph = onnx.helper.make_graph([node], "node", [describe(other, kind, None)], outputs, [named])
    opset = max(21, least_opset(want.scheme.bits) if want.qdq else 0)
    imports = [onnx.helper.make_opsetid("", opset)]
    made = quantize(onnx.helper.make_model(graph, opset_imports=imports), want)
    if not made.quantized:
        return [node], []
    proto = io.to_proto(made.model)
    return list(proto.graph.node), list(proto.graph.initializer)


def quantize_in_stack(
    node: onnx.NodeProto, graphs: Sequence[onnx.GraphProto], want: WeightOnly
) -> list[onnx.NodeProto]:
    """The nodes that stand for one, in a stack of graphs from the main one inwards.

    The new constants go to the graph that has the weight; the float weight stays, since others may read it.
    """
    if node.op_type not in want.selection.ops:
        return [node]
    name = node.input[0 if node.op_type == "Gather" else 1]
    for graph in reversed(graphs):
        for tensor in graph.initializer:
            if tensor.name == name:
                nodes, constants = quantize_node(node, tensor, want)
                graph.initializer.extend(constants)
                return nodes
    return [node]


def stored_parts(weight: Array, want: WeightOnly, *, table: bool = False) -> tuple[Array, Array, Array]:
    """Packed integers, scales and packed zero points of a weight [K, N], or of a table, as they are stored.

    Without zero points their place is taken by the middle.
    """
    axis = want.gather_axis % weight.ndim if table else 0
    scheme = want.scheme
    if want.qdq and want.per_channel:
        scheme = replace(scheme, size=weight.shape[axis])
    moved = np.moveaxis(weight, axis, -1)
    made = want.algorithm.blocks(moved.reshape(-1, weight.shape[axis]), scheme)
    if made.zero_point is None:
        made = replace(made, zero_point=np.full(made.scale.shape, scheme.middle, np.uint8))
    zero = np.asarray(made.zero_point)
    if not (want.qdq or table):
        return nbits.laid_out(made.integers, scheme), made.scale, np.asarray(nbits.zero_points(made))

    def back(array: Array) -> Array:
        return np.moveaxis(array.reshape(*moved.shape[:-1], -1), -1, axis)

    integers, zeros = back(made.integers), back(zero)
    return _flat(integers, scheme), np.ascontiguousarray(back(made.scale)), _flat(zeros, scheme)


def _flat(integers: Array, scheme: BlockScheme) -> Array:
    """Packed over all of the array; signed where zero lies in the middle."""
    shift = scheme.middle if scheme.symmetric else 0
    signed = np.ascontiguousarray(integers.astype(np.int16) - shift).astype(np.int8)
    return kernels.pack(signed.reshape(-1), scheme.bits)
