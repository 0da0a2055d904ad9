"""Calibration by an engine: shards go out, statistics come back in any order, and are merged exactly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from octavo.calibration.engines import Engine
from octavo.calibration.observe.collect import Collector, few_samples_below
from octavo.calibration.saved import Checkpoint
from octavo.core.origin import MODULUS, Origin
from octavo.core.requests import Request
from octavo.core.stats import Stats
from octavo.data.feeds import Feeds
from octavo.data.fingerprints import FingerprintedSamples, digest, mark
from octavo.data.shards import Portion, Sample, Shard, Shards, can_be_sent
from octavo.errors import DataError, RecipeError
from octavo.model.files import io

_FEW_SAMPLES = 3  # fewer are not worth optimizing any graph, nor threads that wait for work
_FILE = "model.onnx"


def gather(
    model: ir.Model,
    requests: Mapping[str, Request],
    samples: FingerprintedSamples,
    engine: Engine,
    *,
    origin: Origin | None = None,
    shard: tuple[int, int] | None = None,
    checkpoint: str | Path | None = None,
    providers: Sequence[str] | None = None,
    custom_ops: Sequence[str | Path] = (),
    progress: Callable[[int, int | None], None] | None = None,
) -> Stats:
    """Return statistics of the data, or of its ``shard`` (which one of how many, from 1), by an engine.

    With a ``checkpoint`` what is finished is kept in that file, and a later call goes on from there; the
    caller removes it when the result is safe. ``origin`` says which model and data it is.
    """
    first, stop = _span(samples, shard)
    total = None if stop is None else stop - first
    words = {tensor: str(request) for tensor, request in requests.items()}
    about = replace(origin or Origin("", "", {}), needs=words)
    saved = Checkpoint(checkpoint)
    finished = saved.load(about, first, stop)
    merger = _Merger()
    if finished is not None:
        merger.add(finished)
    done = finished.origin.spans if finished is not None and finished.origin is not None else ()

    def tell(samples: int) -> None:
        if progress is not None:
            progress(samples, total)

    def sample_taken() -> None:
        merger.begun += 1
        tell(merger.samples + merger.begun)

    shards = Shards(samples, first, stop, done, engine.workers, sample_taken)
    job = CalibrationJob(
        model,
        requests,
        samples,
        about,
        total=samples.length,
        few_samples=shards.fewer_than(max(few_samples_below(model), _FEW_SAMPLES)),
        providers=providers,
        custom_ops=custom_ops,
    )
    _merge(engine.map(job, shards), merger, saved, tell)
    found = merger.total() if merger.samples else Stats({}, 0, about)
    if shard is None and found.origin is not None:
        samples.fingerprint = found.origin.fingerprint
    return found if origin is not None else Stats(found, found.samples)


def _merge(
    results: Iterable[tuple[int, Stats]], merger: _Merger, saved: Checkpoint, tell: Callable[[int], None]
) -> None:
    """Merge what shards give, and keep it where it is due or where the run is interrupted.

    The engine ends its workers before an error leaves here, not when Python lets go of the error.
    """
    try:
        for _, stats in results:
            merger.add(stats)
            tell(merger.samples)
            if saved.is_due():
                saved.write(merger.total())
    except (KeyboardInterrupt, SystemExit):
        if merger.samples:
            saved.write(merger.total())
        raise
    finally:
        if isinstance(results, Generator):
            results.close()


def _span(samples: FingerprintedSamples, shard: tuple[int, int] | None) -> tuple[int, int | None]:
    """Return the samples of a shard of the whole: the first index, and the one after the last."""
    if samples.length == 0:
        next(iter(samples))  # raises the error for data without samples
    if shard is None:
        return 0, samples.length
    number, count = shard
    if not 1 <= number <= count:
        raise RecipeError(f"There is no shard {number} of {count}; shards are numbered from 1 to {count}.")
    if samples.length is None:
        raise DataError(
            "The calibration data does not tell how many samples it has, so it can't be divided into shards; "
            "give files or a folder, or a list."
        )
    if count > samples.length:
        raise DataError(
            f"{samples.length} samples can't be divided into {count} shards; use {samples.length} or fewer."
        )
    return samples.length * (number - 1) // count, samples.length * number // count


@dataclass(frozen=True, eq=False)
class CalibrationJob:
    """A model that is opened once in each worker, and gives statistics for shard after shard.

    Each result says where it comes from.
    """

    model: ir.Model | Path
    requests: Mapping[str, Request]
    feeds: Feeds | None
    origin: Origin
    total: int | None = None  # samples of all the data, where it is known
    few_samples: bool = False
    providers: Sequence[str] | None = None
    custom_ops: Sequence[str | Path] = ()

    def pack(self, folder: Path) -> CalibrationJob:
        """Write the model with its weights in a file of their own, which all workers of a machine map."""
        if isinstance(self.model, ir.Model):
            io.save(self.model, folder / _FILE, external_data=True)
        feeds = self.feeds if self.feeds is not None and can_be_sent(self.feeds) else None
        return replace(self, model=folder, feeds=feeds)

    def at(self, folder: Path) -> CalibrationJob:
        """Return the job with its files there."""
        return replace(self, model=folder)

    @contextlib.contextmanager
    def open(self, threads: int | None) -> Iterator[Callable[[Shard], Stats]]:
        """Load the model and open a session that observes it."""
        model = self.model if isinstance(self.model, ir.Model) else io.load(self.model / _FILE)
        with Collector(
            model,
            self.requests,
            total=self.total,
            few_samples=self.few_samples,
            providers=self.providers,
            custom_ops=self.custom_ops,
            threads=threads,
        ) as collector:
            yield lambda shard: self._do(collector, shard)

    def _do(self, collector: Collector, shard: Shard) -> Stats:
        if not isinstance(shard, Portion):
            shard = self._read(*shard)
        stats = collector.collect(shard.samples, shard.first)
        samples = stats.samples if collector else sum(1 for _ in shard.samples)
        spans = ((shard.first, shard.first + samples),) if samples else ()
        return Stats(stats, samples, replace(self.origin, spans=spans, data=sum(shard.marks) % MODULUS))

    def _read(self, first: int, stop: int) -> Portion:
        """Return the samples with these indices, read here."""
        marks: list[int] = []

        def samples() -> Iterator[Sample]:
            if self.feeds is None:
                return
            for index, sample in enumerate(self.feeds.portion(first, stop), first):
                marks.append(mark(index, digest(sample)))
                yield sample

        return Portion(first, samples(), marks)


@dataclass
class _Merger:
    """Statistics merged like the digits of a binary counter: with as few and as small merges as can be."""

    parts: list[tuple[int, Stats]] = field(default_factory=list)
    samples: int = 0
    begun: int = 0  # samples of the shard that is under way here

    def add(self, stats: Stats) -> None:
        """Add statistics; the parts stay as they are until the merges are done."""
        count, height, parts = stats.samples, 0, list(self.parts)
        while parts and parts[-1][0] <= height:
            height, (_, other) = parts[-1][0] + 1, parts.pop()
            stats = other.merge(stats)
        self.parts, self.samples, self.begun = [*parts, (height, stats)], self.samples + count, 0

    def total(self) -> Stats:
        """Merge all parts into one, and return it."""
        found = self.parts[-1][1]
        for _, part in reversed(self.parts[:-1]):
            found = part.merge(found)
        self.parts = [(self.parts[0][0], found)]
        return found
