"""Float operators fed by DequantizeLinear in a graph, with the conversions around each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from octavo.model.graph.operators import CONVERSIONS, DEQUANTIZE, QUANTIZE


@dataclass(frozen=True)
class Between:
    """An operator that reads dequantized values: the conversions before it, those behind it."""

    node: onnx.NodeProto
    before: tuple[onnx.NodeProto, ...]
    after: tuple[onnx.NodeProto, ...]
    sharers: tuple[int, ...]  # how many operators read each of those before


def between(graph: onnx.GraphProto) -> Iterator[Between]:
    """Yield all of them, those in subgraphs too."""
    for inner in _graphs(graph):
        yield from _of_graph(inner)


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
            found += [deeper for one in inner for deeper in _graphs(one)]
    return found


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
