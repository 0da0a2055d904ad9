"""What a measurement hands over: figures of one model, or of two side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.evaluation.fusion import Unfused
from octavo.evaluation.latency import Latency, Ratio
from octavo.evaluation.profile import NodeTime, OpTime
from octavo.reporting.bench import bench_table
from octavo.reporting.html.notebook import table_html

if TYPE_CHECKING:
    import pandas

SCHEMA = 1


@dataclass(frozen=True)
class Measured:
    """The figures of one model; seconds and bytes. None where a figure could not be taken."""

    name: str
    file_bytes: int
    latency: Latency
    load_seconds: float | None = None
    memory_bytes: int | None = None
    ops: tuple[OpTime, ...] = ()
    unfused: tuple[Unfused, ...] = ()
    nodes: tuple[NodeTime, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "file_bytes": self.file_bytes,
            "latency": self.latency.to_dict(),
            "load_seconds": self.load_seconds,
            "memory_bytes": self.memory_bytes,
            "ops": [op.to_dict() for op in self.ops],
            "unfused": [one.to_dict() for one in self.unfused],
            "nodes": [node.to_dict() for node in self.nodes],
        }


@dataclass(frozen=True)
class Bench:
    """One model measured, or two side by side; prints as tables.

    ``ratio`` says how many times as fast the second model is as the first.
    """

    models: tuple[Measured, ...]
    ratio: Ratio | None
    rounds: int
    batch: int | None
    threads: int | None
    data: str
    clock: str = "wall"
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for machines; ``docs/bench.md`` describes the keys."""
        return {
            "schema": SCHEMA,
            "kind": "bench",
            "models": [model.to_dict() for model in self.models],
            "ratio": self.ratio.to_dict() if self.ratio is not None else None,
            "rounds": self.rounds,
            "batch": self.batch,
            "threads": self.threads,
            "data": self.data,
            "clock": self.clock,
            "notes": list(self.notes),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each op type of each model; needs pandas."""
        from octavo.evaluation.frames import frame

        return frame([{"model": model.name, **op.to_dict()} for model in self.models for op in model.ops])

    def __str__(self) -> str:
        return bench_table(self.to_dict())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return table_html(str(self))
