"""The runtime's profile: the median time of each node, and the quantized parts that did not fuse.

A float operator that is fed by DequantizeLinear in the graph that runs computes in float and converts as
well, so that it is slower than before quantization. Its cost is its own time and that of the conversions.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from octavo.core import scratch
from octavo.core.files import read_bytes
from octavo.errors import ModelError
from octavo.evaluation.task import Feeds
from octavo.model.files.reading import written_message
from octavo.model.graph.dequantized import Between, between
from octavo.model.graph.operators import SUBGRAPH_ATTRIBUTES
from octavo.model.runtime.session import Session, weights_beside

RUNS = 7  # of which the first warms up
_MOST_BYTES = 1 << 30  # of the profile that is read
_KERNEL_SUFFIX = "_kernel_time"


@dataclass(frozen=True)
class NodeTime:
    """A node of the graph that runs."""

    name: str
    op_type: str
    seconds: float


@dataclass(frozen=True)
class OpTime:
    """All nodes of one op type."""

    op_type: str
    count: int
    seconds: float


@dataclass(frozen=True)
class Unfused:
    """A float operator between conversions, and what it costs in one run (seconds)."""

    node: str
    op_type: str
    seconds: float
    conversion_seconds: float

    @property
    def cost(self) -> float:
        """Return the seconds of the operator and its conversions."""
        return self.seconds + self.conversion_seconds


@dataclass(frozen=True, eq=False)
class Profile:
    """The nodes with their times, and the graph as the runtime has rewritten it (None: it can't be read)."""

    nodes: tuple[NodeTime, ...]
    graph: onnx.GraphProto | None

    def by_op(self) -> tuple[OpTime, ...]:
        """Return the sums over op types, the longest first."""
        groups: dict[str, list[float]] = defaultdict(list)
        for node in self.nodes:
            groups[node.op_type].append(node.seconds)
        found = [OpTime(op, len(times), float(sum(times))) for op, times in groups.items()]
        return tuple(sorted(found, key=lambda op: (-op.seconds, op.op_type)))

    def unfused(self) -> tuple[Unfused, ...]:
        """Return float operators fed by DequantizeLinear, also in subgraphs, the costliest first."""
        return unfused(self.graph, self.nodes) if self.graph is not None else ()


def unfused(graph: onnx.GraphProto, times: Sequence[NodeTime]) -> tuple[Unfused, ...]:
    """Return float operators fed by DequantizeLinear in a graph, also in subgraphs, the costliest first."""
    seconds = {time.name: time.seconds for time in times}
    found = [_cost(one, seconds) for one in between(graph)]
    return tuple(sorted(found, key=lambda one: (-one.cost, one.node)))


def _cost(part: Between, seconds: Mapping[str, float]) -> Unfused:
    # A conversion that several operators share is divided among them.
    shares = zip(part.before, part.sharers, strict=True)
    cost = sum(seconds.get(dq.name, 0.0) / sharers for dq, sharers in shares)
    cost += sum(seconds.get(one.name, 0.0) for one in part.after)
    node = part.node
    return Unfused(node.name or node.output[0], node.op_type, seconds.get(node.name, 0.0), cost)


def profile(model: Path, feeds: Sequence[Feeds], threads: int | None) -> Profile:
    """Run a model under the runtime's profiler."""
    with scratch.folder() as folder:
        dumped = Path(folder) / "optimized.onnx"
        session, graph = _open(model, threads, Path(folder) / "profile", dumped)
        for number in range(RUNS):
            session.run(feeds[number % len(feeds)])
        content = read_bytes(session.end_profile(), _MOST_BYTES)
        events = json.loads(content.decode("utf-8", "replace"))
    return Profile(tuple(_nodes(events)), graph)


def _open(
    model: Path, threads: int | None, profile: Path, dumped: Path
) -> tuple[Session, onnx.GraphProto | None]:
    """Open a session with its optimized graph; None where the runtime can't write the graph."""
    config = weights_beside(1 << 10)
    try:
        session = Session.open(model, threads=threads, profile=profile, optimized_to=dumped, config=config)
        graph = written_message(dumped).graph
    except (ModelError, OSError, ValueError):
        return Session.open(model, threads=threads, profile=profile), None
    return session, graph


def _nodes(events: Sequence[dict[str, Any]]) -> list[NodeTime]:
    starts = np.sort(
        [
            float(event["ts"])
            for event in events
            if event.get("cat") == "Session" and event.get("name") == "model_run"
        ]
    )
    taken: dict[tuple[str, str], list[float]] = {}
    for event in events:
        op_type = event.get("args", {}).get("op_name", "")
        name = str(event.get("name", ""))
        if event.get("cat") != "Node" or not name.endswith(_KERNEL_SUFFIX) or op_type in SUBGRAPH_ATTRIBUTES:
            continue
        run = int(np.searchsorted(starts, float(event["ts"]), side="right")) - 1
        times = taken.setdefault((name.removesuffix(_KERNEL_SUFFIX), op_type), [0.0] * len(starts))
        if run >= 0:
            times[run] += float(event["dur"]) * 1e-6
    return [
        NodeTime(name, op_type, float(np.median(times[1:] or times)))
        for (name, op_type), times in taken.items()
    ]
