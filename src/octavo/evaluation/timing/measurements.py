"""The result of ``bench``: measurements of one model, or of several side by side."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from octavo.core.shown import Shown
from octavo.evaluation.timing.decoding import Decoding
from octavo.evaluation.timing.latency import Latency, Ratio
from octavo.evaluation.timing.profiler import NodeTime, OpTime, Unfused
from octavo.reporting.bench_tables import bench_line, bench_table
from octavo.reporting.notebook import data_frame

if TYPE_CHECKING:
    import pandas

SCHEMA = 1  # the version of what to_dict() returns


@dataclass(frozen=True)
class Measured:
    """The measurements of one model, in seconds and bytes. None where one could not be taken."""

    name: str
    file_bytes: int
    latency: Latency
    load_seconds: float | None = None
    memory_bytes: int | None = None
    ops: tuple[OpTime, ...] = ()
    unfused: tuple[Unfused, ...] = ()
    nodes: tuple[NodeTime, ...] = ()
    decoding: Decoding | None = None  # of a language model with a cache


@dataclass(frozen=True, repr=False)
class Bench(Shown):
    """One model measured, or several side by side; prints as tables.

    ``ratios`` says how many times as fast each further model is as the first.
    """

    models: tuple[Measured, ...]
    ratios: tuple[Ratio, ...]
    rounds: int
    batch: int | None
    threads: int | None
    data: str
    clock: str = "wall"
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> Ratio | None:
        """Return how many times as fast the second model is as the first; None for one model."""
        return self.ratios[0] if self.ratios else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for machines; ``docs/bench.md`` describes the keys."""
        first = asdict(self.ratio) if self.ratio is not None else None
        return {"schema": SCHEMA, "kind": "bench", **_with_lists(asdict(self)), "ratio": first}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row for each op type of each model as a data frame; needs pandas."""
        return data_frame([{"model": model.name, **asdict(op)} for model in self.models for op in model.ops])

    def __str__(self) -> str:
        return bench_table(self.to_dict())

    def _line(self) -> str:
        return bench_line(self.to_dict())


def _with_lists(data: Any) -> Any:
    """Return plain data with lists in place of tuples, as JSON has them."""
    if isinstance(data, dict):
        return {key: _with_lists(value) for key, value in data.items()}
    return [_with_lists(value) for value in data] if isinstance(data, tuple | list) else data
