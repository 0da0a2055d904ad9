"""Which quantized parts did not fuse: float operators fed by DequantizeLinear in the graph that runs.

Such a part computes in float and converts as well, so that it is slower than before quantization. Its cost is
the operator's own time and that of the conversions around it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from octavo.evaluation.profile import NodeTime

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True)
class Unfused:
    """A float operator between conversions, and what it costs in one run (seconds)."""

    node: str
    op_type: str
    seconds: float
    conversion_seconds: float

    @property
    def cost(self) -> float:
        """Both together."""
        return self.seconds + self.conversion_seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "node": self.node,
            "op_type": self.op_type,
            "seconds": self.seconds,
            "conversion_seconds": self.conversion_seconds,
        }


def unfused(graph: onnx.GraphProto, times: Sequence[NodeTime]) -> tuple[Unfused, ...]:
    """Float operators fed by DequantizeLinear, the costliest first; those in subgraphs too."""
    seconds = {time.name: time.seconds for time in times}
    found = [one for inner in _graphs(graph) for one in _of_graph(inner, seconds)]
    return tuple(sorted(found, key=lambda one: (-one.cost, one.node)))


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
            found += [deeper for one in inner for deeper in _graphs(one)]
    return found


def _of_graph(graph: onnx.GraphProto, seconds: Mapping[str, float]) -> list[Unfused]:
    producer = {output: node for node in graph.node for output in node.output}
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in set(node.input):
            readers[name].append(node)
    found = []
    for node in graph.node:
        if node.op_type in (_QUANTIZE, _DEQUANTIZE):
            continue
        before = [
            producer[name]
            for name in dict.fromkeys(node.input)
            if name in producer and producer[name].op_type == _DEQUANTIZE
        ]
        if not before:
            continue
        # A conversion that several operators share is paid for by each in part.
        cost = sum(seconds.get(dq.name, 0.0) / len(readers[dq.output[0]]) for dq in before)
        after = [one for name in node.output for one in readers[name] if one.op_type == _QUANTIZE]
        cost += sum(seconds.get(one.name, 0.0) for one in after)
        found.append(Unfused(node.name or node.output[0], node.op_type, seconds.get(node.name, 0.0), cost))
    return found
