"""What the runtime's profiler says: how long each node takes, as the median over runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from octavo.core import scratch
from octavo.errors import ModelError
from octavo.evaluation.task import Feeds
from octavo.model.session import Session

RUNS = 7  # of which the first warms up
_SUFFIX = "_kernel_time"
_CONTAINERS = frozenset(("If", "Loop", "Scan"))  # their time is that of the nodes inside


@dataclass(frozen=True)
class NodeTime:
    """One node of the graph that runs."""

    name: str
    op_type: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "op_type": self.op_type, "seconds": self.seconds}


@dataclass(frozen=True)
class OpTime:
    """All nodes of one op type."""

    op_type: str
    count: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"op_type": self.op_type, "count": self.count, "seconds": self.seconds}


@dataclass(frozen=True, eq=False)
class Profile:
    """The nodes with their times, and the graph as the runtime has rewritten it (None: it can't be read)."""

    nodes: tuple[NodeTime, ...]
    graph: onnx.GraphProto | None

    def by_op(self) -> tuple[OpTime, ...]:
        """Sums over op types, the longest first."""
        groups: dict[str, list[float]] = defaultdict(list)
        for node in self.nodes:
            groups[node.op_type].append(node.seconds)
        found = [OpTime(op, len(times), float(sum(times))) for op, times in groups.items()]
        return tuple(sorted(found, key=lambda op: (-op.seconds, op.op_type)))


def profiled(model: Path, feeds: Sequence[Feeds], threads: int | None) -> Profile:
    """Run a model under the profiler."""
    with scratch.folder() as folder:
        dumped = Path(folder) / "optimized.onnx"
        session, graph = _open(model, threads, Path(folder) / "profile", dumped)
        for number in range(RUNS):
            session.run(feeds[number % len(feeds)])
        events = json.loads(session.end_profile().read_text(encoding="utf-8", errors="replace"))
    return Profile(tuple(_nodes(events)), graph)


def _open(
    model: Path, threads: int | None, profile: Path, dumped: Path
) -> tuple[Session, onnx.GraphProto | None]:
    """A session with its optimized graph; a graph that can't be written out must not stop the profile."""
    prefix = "session.optimized_model_external_initializers_"
    config = {f"{prefix}file_name": "weights.bin", f"{prefix}min_size_in_bytes": "1024"}
    try:
        session = Session.open(model, threads=threads, profile=profile, optimized_to=dumped, config=config)
        graph = onnx.load(str(dumped), load_external_data=False).graph
    except (ModelError, OSError, ValueError):
        return Session.open(model, threads=threads, profile=profile), None
    return session, graph


def _nodes(events: Sequence[dict[str, Any]]) -> list[NodeTime]:
    runs = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in events
        if event.get("cat") == "Session" and event.get("name") == "model_run"
    )
    taken: dict[tuple[str, str], list[float]] = {}
    starts = np.array([start for start, _ in runs])
    for event in events:
        op_type = event.get("args", {}).get("op_name", "")
        if event.get("cat") != "Node" or not str(event.get("name", "")).endswith(_SUFFIX):
            continue
        if op_type in _CONTAINERS:
            continue
        run = int(np.searchsorted(starts, float(event["ts"]), side="right")) - 1
        key = (str(event["name"]).removesuffix(_SUFFIX), op_type)
        times = taken.setdefault(key, [0.0] * len(runs))
        if 0 <= run < len(runs):
            times[run] += float(event["dur"]) * 1e-6
    return [
        NodeTime(name, op_type, float(np.median(times[1:] or times)))
        for (name, op_type), times in taken.items()
    ]
