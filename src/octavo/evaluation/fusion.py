"""Which quantized parts did not fuse: float operators fed by DequantizeLinear in the graph that runs.

Such a part computes in float and converts as well, so that it is slower than before quantization. Its cost is
the operator's own time and that of the conversions around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from octavo.evaluation.profile import NodeTime
from octavo.model.fusion import Between, between


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
    found = [_priced(one, seconds) for one in between(graph)]
    return tuple(sorted(found, key=lambda one: (-one.cost, one.node)))


def _priced(part: Between, seconds: Mapping[str, float]) -> Unfused:
    # A conversion that several operators share is paid for by each in part.
    shares = zip(part.before, part.sharers, strict=True)
    cost = sum(seconds.get(dq.name, 0.0) / sharers for dq, sharers in shares)
    cost += sum(seconds.get(one.name, 0.0) for one in part.after)
    node = part.node
    return Unfused(node.name or node.output[0], node.op_type, seconds.get(node.name, 0.0), cost)
