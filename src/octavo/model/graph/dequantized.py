"""What a graph dequantizes: weights stored as integers, and operators fed by DequantizeLinear."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from octavo.model.graph import protos, query
from octavo.model.graph.edit import Editor
from octavo.model.graph.operators import CONVERSIONS, DEQUANTIZE, QUANTIZE
from octavo.model.graph.tensors import computed

# ---- Weights stored as integers that run as float: ``Mul(Cast(integers), scale)`` of constants

_INTEGERS = frozenset({ir.DataType.INT8, ir.DataType.UINT8})


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """The Mul that gives the weight, the integers before the Cast, and their scales."""

    mul: ir.Node
    cast: ir.Node
    integers: ir.Value
    scale: ir.Value


def stored_weight(mul: ir.Node) -> StoredWeight | None:
    """Return the stored weight that a node restores, or None."""
    if mul.op_type != "Mul" or mul.domain or len(mul.inputs) != 2:
        return None
    value, scale = mul.inputs
    cast = value.producer() if value is not None else None
    if cast is None or not query.is_op(cast, "Cast") or not cast.inputs or scale is None:
        return None
    integers = cast.inputs[0]
    constants = [query.constant(integers), query.constant(scale)]
    if integers is None or None in constants or query.element_type(integers) not in _INTEGERS:
        return None
    if query.attribute(cast, "to") != ir.DataType.FLOAT or not query.is_float(scale):
        return None
    small, large = query.static_shape(scale), query.static_shape(integers)
    if small is None or large is None or not _spreads(small, large):
        return None
    return StoredWeight(mul, cast, integers, scale)


def _spreads(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Whether scales of one shape broadcast over integers of the other."""
    ends = zip(reversed(small), reversed(large), strict=False)
    return len(small) <= len(large) and all(n in (1, m) for n, m in ends)


def restore(model: ir.Model) -> int:
    """Make stored weights float initializers again, computed when they are read; returns how many."""
    edit = Editor(model)
    found = [one for node in query.nodes(model) if (one := stored_weight(node)) is not None]
    found = [one for one in found if not one.mul.outputs[0].is_graph_output()]
    for one in found:
        result = one.mul.outputs[0]
        edit.take_over(edit.constant(f"{result.name}", _product(one)), result)
        edit.remove([one.mul])
        if not one.cast.outputs[0].uses() and not one.cast.outputs[0].is_graph_output():
            edit.remove([one.cast])
    return len(found)


def _product(one: StoredWeight) -> ir.LazyTensor:
    integers, scale = query.constant(one.integers), query.constant(one.scale)
    if integers is None or scale is None:
        raise AssertionError(f"{one.mul.name!r} restores no constant.")

    shape = integers.shape.numpy()
    return computed(lambda: integers.numpy().astype(np.float32) * scale.numpy(), ir.DataType.FLOAT, shape)


# ---- Float operators fed by DequantizeLinear in a graph, with the conversions around each


@dataclass(frozen=True)
class Between:
    """An operator that reads dequantized values: the conversions before it, those behind it."""

    node: onnx.NodeProto
    before: tuple[onnx.NodeProto, ...]
    after: tuple[onnx.NodeProto, ...]
    sharers: tuple[int, ...]  # how many operators read each of those before


def between(graph: onnx.GraphProto) -> Iterator[Between]:
    """Yield all of them, those in subgraphs too."""
    for inner in protos.graphs(graph):
        yield from _of_graph(inner)


def _of_graph(graph: onnx.GraphProto) -> Iterator[Between]:
    producer = {output: node for node in graph.node for output in node.output}
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in set(node.input):
            readers[name].append(node)
    for node in graph.node:
        if node.op_type in CONVERSIONS:
            continue
        before = tuple(
            producer[name]
            for name in dict.fromkeys(node.input)
            if name in producer and producer[name].op_type == DEQUANTIZE
        )
        if before:
            after = tuple(one for name in node.output for one in readers[name] if one.op_type == QUANTIZE)
            yield Between(node, before, after, tuple(len(readers[dq.output[0]]) for dq in before))
