"""A graph of very many nodes, loaded and run piece by piece.

The runtime's time to load a graph grows with the square of its nodes without predecessors, such as the
DequantizeLinear of each weight. Pieces of bounded size keep the whole linear: each is loaded by itself and
run on what the pieces before it gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from octavo.model.graph.operators import SUBGRAPH_ATTRIBUTES

Array = npt.NDArray[Any]
Values = dict[str, Array]
Run = Callable[[bytes, Mapping[str, Array]], Mapping[str, Array]]

MOST_NODES = 500  # of one piece


@dataclass(frozen=True)
class Piece:
    """Nodes that follow each other, the weights and values that they read, and what is read of them later."""

    nodes: Sequence[onnx.NodeProto]
    weights: Sequence[str]
    reads: Sequence[str]
    gives: Sequence[str]


def can_be_cut(model: onnx.ModelProto) -> bool:
    """Whether pieces can be made: everything that the nodes need is in this one message."""
    external = onnx.TensorProto.EXTERNAL
    return not model.functions and all(one.data_location != external for one in model.graph.initializer)


def run_in_pieces(model: onnx.ModelProto, feeds: Mapping[str, Array], run: Run) -> Values:
    """Return the outputs of a model, computed by ``run(bytes of a piece, its inputs)`` piece after piece."""
    values: Values = dict(feeds)
    weights = {one.name: one for one in model.graph.initializer}
    for piece in pieces(model.graph, weights):
        part = _model(piece, model, weights, values)
        values.update(run(part.SerializeToString(), {name: values[name] for name in piece.reads}))
    return {one.name: values[one.name] for one in model.graph.output if one.name in values}


def pieces(graph: onnx.GraphProto, weights: Mapping[str, Any]) -> Iterator[Piece]:
    """Cut a graph, whose nodes are in order, into pieces of at most ``MOST_NODES`` nodes."""
    parts = [graph.node[at : at + MOST_NODES] for at in range(0, len(graph.node), MOST_NODES)]
    read = [dict.fromkeys(name for node in part for name in _read(node)) for part in parts]
    last = {name: at for at, names in enumerate(read) for name in names}
    last.update({one.name: len(parts) for one in graph.output})
    for at, part in enumerate(parts):
        made = [name for node in part for name in node.output if name]
        own = set(made)
        yield Piece(
            part,
            weights=[name for name in read[at] if name in weights],
            reads=[name for name in read[at] if name not in own and name not in weights],
            gives=[name for name in made if last.get(name, -1) > at],
        )


def _read(node: onnx.NodeProto) -> list[str]:
    """Return what a node reads of its own scope, its bodies included."""
    found = [name for name in node.input if name]
    if node.op_type in SUBGRAPH_ATTRIBUTES:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                found += _read_from_outside(body)
    return found


def _read_from_outside(body: onnx.GraphProto) -> list[str]:
    inside = {one.name for one in (*body.input, *body.initializer)}
    inside.update(name for node in body.node for name in node.output)
    read = [name for node in body.node for name in _read(node)] + [one.name for one in body.output]
    return [name for name in read if name not in inside]


def _model(
    piece: Piece, whole: onnx.ModelProto, weights: Mapping[str, onnx.TensorProto], values: Values
) -> onnx.ModelProto:
    part = onnx.ModelProto(ir_version=whole.ir_version)
    part.opset_import.extend(whole.opset_import)
    part.graph.name = "piece"
    part.graph.node.extend(piece.nodes)
    part.graph.initializer.extend(weights[name] for name in piece.weights)
    declared = {one.name: one for one in whole.graph.input}
    part.graph.input.extend(declared.get(name) or _input(name, values[name]) for name in piece.reads)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in piece.gives)
    return part


def _input(name: str, value: Array) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
    return onnx.helper.make_tensor_value_info(name, kind, None)
