"""Calibration as a job: a model is opened once in each worker, and gives statistics for shard after shard."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from octavo.calibration.data import Feeds
from octavo.calibration.run import Collector
from octavo.calibration.shards import Portion, Sample, Shard, can_travel
from octavo.calibration.watched import digest, mark
from octavo.core.origin import Origin
from octavo.core.stats import Need, Stats
from octavo.model import io

_FILE = "model.onnx"


@dataclass(frozen=True, eq=False)
class Calibration:
    """Statistics of a shard; each says where it comes from."""

    model: ir.Model | Path
    needs: Mapping[str, Need]
    feeds: Feeds | None
    origin: Origin
    total: int | None = None  # samples of all the data, where it is known
    few: bool = False
    providers: Sequence[str] | None = None
    custom_ops: Sequence[str | Path] = ()

    def pack(self, folder: Path) -> Calibration:
        """Weights go into a file of their own, which all workers of a machine map."""
        if isinstance(self.model, ir.Model):
            io.save(self.model, folder / _FILE, external_data=True)
        feeds = self.feeds if self.feeds is not None and can_travel(self.feeds) else None
        return replace(self, model=folder, feeds=feeds)

    def at(self, folder: Path) -> Calibration:
        """The job with its files there."""
        return replace(self, model=folder)

    @contextlib.contextmanager
    def open(self, threads: int | None) -> Iterator[Callable[[Shard], Stats]]:
        """Load the model and make it observable."""
        model = self.model if isinstance(self.model, ir.Model) else io.load(self.model / _FILE)
        options = {"providers": self.providers, "custom_ops": self.custom_ops, "threads": threads}
        with Collector(model, self.needs, total=self.total, few=self.few, **options) as collector:
            yield lambda shard: self._do(collector, shard)

    def _do(self, collector: Collector, shard: Shard) -> Stats:
        if not isinstance(shard, Portion):
            shard = self._opened(*shard)
        stats = collector.collect(shard.samples, shard.first)
        samples = stats.samples if collector else sum(1 for _ in shard.samples)
        origin = replace(
            self.origin,
            spans=((shard.first, shard.first + samples),) if samples else (),
            data=sum(shard.marks) % (1 << 128),
        )
        return Stats(stats, samples, origin)

    def _opened(self, first: int, stop: int) -> Portion:
        """The samples with these indices, read here."""
        marks: list[int] = []

        def samples() -> Iterator[Sample]:
            if self.feeds is None:
                return
            for index, sample in enumerate(self.feeds.portion(first, stop), first):
                marks.append(mark(index, digest(sample)))
                yield sample

        return Portion(first, samples(), marks)
