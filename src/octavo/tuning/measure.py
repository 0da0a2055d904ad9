"""Fidelity and speed of trials beside the float model.

Fidelity is a job for any engine: a shard is one trial and one sample. Speed is measured afterwards, in this
process and with none of its workers at work: float and all trials take turns. What counts is processor time
with one thread, which does not depend on what else the machine does. Only where several threads were asked
for it is wall time, and only while no other program takes the cores.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.calibration.engines import Engine
from octavo.core.progress import Progress
from octavo.core.scratch_arrays import load_arrays, save_arrays
from octavo.errors import ModelError, OctavoError
from octavo.evaluation.task import F64
from octavo.evaluation.timing.latency import (
    Ratio,
    interleaved,
    on_first_core,
    queue_seconds,
    ratio,
    taking_turns,
)
from octavo.model.files import io
from octavo.model.runtime.samples import sample_inputs, specs_of
from octavo.model.runtime.session import Session
from octavo.tuning.fidelity import Fidelity, Outputs, Tally, judged, outputs_of, tallies, with_answers_of
from octavo.tuning.language import LanguageModel, TokenSpeeds
from octavo.tuning.requirements import COUNTED_ANSWERS, FAITHFUL_DB, READABLE_DB, SAME_ANSWERS
from octavo.tuning.split import Feed

Shard = tuple[str, int]  # the file of a trial, the number of a sample

PRECISION = 0.015  # of ln(speed), half an interval: speeds that differ by less than 5 % count as the same
LEAST_PRECISION = 0.03  # where no speed within the intervals would change what is chosen
BUSY = 0.1  # share of its time that a thread waits for a core, beyond which wall time is that of the machine
MAX_MORE = 64  # samples of calibration whose answers are counted, where those held back have few
TIMED_SAMPLES = 4  # of different shapes; of one shape, one sample tells as much


@dataclass(frozen=True)
class Judging:
    """Compare the answers of trials with those of float; all of it lies in files of one folder."""

    folder: Path
    outputs: Outputs

    def pack(self, folder: Path) -> Judging:
        """Link the files into a folder that goes to the workers."""
        for file in self.folder.iterdir():
            _link(file, folder / file.name)
        return replace(self, folder=folder)

    def at(self, folder: Path) -> Judging:
        """Return the job with its files there."""
        return replace(self, folder=folder)

    @contextlib.contextmanager
    def open(self, threads: int | None) -> Iterator[Callable[[Shard], tuple[Tally, ...]]]:
        """Gives a function from a shard to its sums; the session of the last trial stays open."""
        opened: dict[str, Session] = {}

        def judge(shard: Shard) -> tuple[Tally, ...]:
            name, number = shard
            if name not in opened:
                opened.clear()
                opened[name] = Session.open(self.folder / name, threads=threads or None, trusted=True)
            sample, expected = (
                load_arrays(self.folder / f"{kind}{number}.npz") for kind in ("sample", "answer")
            )
            return tallies(self.outputs, expected, opened[name].run(sample), sample)

        yield judge


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


class Reference:
    """What the float model answers on the samples that were held back.

    Answers (boxes, classes, characters) tell more than decibels only where there are enough of them. Where
    those of the held-back samples are too few to decide, the answers of ``more`` samples are counted too.
    """

    def __init__(
        self, session: Session, samples: Sequence[Feed], folder: Path, more: Iterable[Feed] = ()
    ) -> None:
        self.language = LanguageModel.of(session, samples[0])
        self.session, self.samples = session, samples
        self._more, self._counted_too = more, range(0)
        if self.language is not None:
            self.samples = self.language.judged_on(samples)
        names = None if self.language is None else [self.language.logits]
        answers, taken = [], []
        for number, sample in enumerate(self.samples):
            began = time.process_time()
            answer = session.run(sample, names)
            taken.append(time.process_time() - began)
            save_arrays(folder / f"sample{number}.npz", sample)
            save_arrays(folder / f"answer{number}.npz", answer)
            if self.language is None:  # logits of all samples are large, and it is known what they are
                answers.append(answer)
        found = Outputs.of_language_model(self.language) if self.language else outputs_of(answers, samples[0])
        self.job = Judging(folder, found)
        self.run_seconds = median(taken)  # of processor time; the first run reserves memory as well

    def fidelity(
        self, names: Sequence[str], engine: Engine, progress: Progress | None = None
    ) -> dict[str, Fidelity]:
        """Return the figures of trials, by their files; every engine gives the same."""
        outputs, held = self.job.outputs, range(len(self.samples))
        sums = self._sums(names, held, engine, progress)
        found = {name: judged(outputs, rows) for name, rows in sums.items()}
        few = [name for name, one in found.items() if self.language is None and _has_few_answers(one)]
        if few and (further := self._answered_too()):
            for name, rows in self._sums(few, further, engine, progress).items():
                found[name] = with_answers_of(found[name], judged(outputs, rows))
        return found

    def _sums(
        self, names: Sequence[str], numbers: range, engine: Engine, progress: Progress | None
    ) -> dict[str, list[tuple[Tally, ...]]]:
        """Return the sums of some samples, for each trial in the order of the samples."""
        shards = [(name, number) for name in names for number in numbers]
        found: dict[Shard, tuple[Tally, ...]] = {}
        for index, sums in engine.map(self.job, shards):
            found[shards[index]] = sums
            if progress is not None:
                progress("compare with float", len(found), len(shards))
        return {name: [found[name, number] for number in numbers] for name in names}

    def _answered_too(self) -> range:
        """Return the numbers of further samples with enough answers of the float model; run them once."""
        if self._counted_too:
            return self._counted_too
        first, places = len(self.samples), 0.0
        for number, sample in enumerate(itertools.islice(self._more, MAX_MORE), first):
            answer = self.session.run(sample)
            save_arrays(self.job.folder / f"sample{number}.npz", sample)
            save_arrays(self.job.folder / f"answer{number}.npz", answer)
            self._counted_too = range(first, number + 1)
            places += sum(tally.places for tally in tallies(self.job.outputs, answer, answer, sample))
            if places >= COUNTED_ANSWERS:
                break
        return self._counted_too


def _has_few_answers(found: Fidelity) -> bool:
    """Whether equal answers would stand for decibels, were they not so few."""
    same = found.agreement
    return (
        READABLE_DB <= found.sqnr_db < FAITHFUL_DB
        and same is not None
        and same >= SAME_ANSWERS
        and found.places < COUNTED_ANSWERS
    )


def timed_samples(samples: Sequence[Feed]) -> list[Feed]:
    """Return the samples that models are timed on: one of each shape, a few at most."""
    by_shape: dict[Any, Feed] = {}
    for sample in samples:
        by_shape.setdefault(tuple((name, array.shape) for name, array in sample.items()), sample)
    return list(by_shape.values())[:TIMED_SAMPLES]


def speeds(
    reference: Path | ir.Model,
    models: Sequence[Path | ir.Model],
    samples: Sequence[Feed],
    *,
    threads: int | None,
    seconds: float,
    progress: Callable[[int, int | None], None] | None = None,
    note: Callable[[str], None] | None = None,
    is_settled: Callable[[Sequence[Ratio]], bool] | None = None,
) -> list[Ratio]:
    """Return how many times as fast as the reference each model is; all take turns, until the intervals tell.

    They need not be narrow once it ``is_settled`` what is made of the speeds. Unless several threads are
    requested, processor time of one thread is counted. Where other programs take the cores it is so in any
    case, and a ``note`` says so.
    """
    turns = _Turns(
        [reference, *models], lambda one: [partial(_run_all, one, samples)], seconds, progress, is_settled
    )
    (taken,) = turns.timed(threads, note)
    return _ratios(taken)


def _ratios(taken: F64) -> list[Ratio]:
    return [ratio(taken[0], row) for row in taken[1:]]


def token_speeds(
    language: LanguageModel,
    reference: Path | ir.Model,
    models: Sequence[Path | ir.Model],
    samples: Sequence[Feed],
    *,
    threads: int | None,
    seconds: float,
    progress: Callable[[int, int | None], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> list[TokenSpeeds]:
    """Return how fast language models read a prompt and write tokens, beside the reference."""
    turns = _Turns([reference, *models], language.calls(samples[0]), seconds, progress)
    taken = turns.timed(threads, note)
    return [
        language.speeds(
            samples[0],
            [ratio(rows[0], rows[i]) for rows in taken],
            [float(np.median(rows[i])) for rows in taken],
        )
        for i in range(1, len(models) + 1)
    ]


@dataclass(frozen=True)
class _Turns:
    """Models that take turns, in each kind of call that is timed; the first one is what is compared with."""

    models: Sequence[Path | ir.Model]
    calls: Callable[[Session], Sequence[Callable[[], object]]]
    seconds: float
    progress: Callable[[int, int | None], None] | None
    is_settled: Callable[[Sequence[Ratio]], bool] | None = None

    def timed(self, threads: int | None, note: Callable[[str], None] | None) -> list[F64]:
        """Return the seconds of each model, a table for each kind of call."""
        if threads is not None and threads > 1:
            waited, began = queue_seconds(), time.monotonic()
            found = self._with(threads)
            after, elapsed = queue_seconds(), time.monotonic() - began
            if waited is None or after is None or after - waited <= BUSY * elapsed * threads:
                return found
            if note is not None:
                note(
                    "the machine is busy: speed is processor time of one thread, not that of"
                    f" {threads} threads"
                )
        return self._with(1)

    def _with(self, threads: int) -> list[F64]:
        config = taking_turns(threads)
        sessions = [Session.open(model, threads=threads, config=config) for model in self.models]
        kinds = list(zip(*map(self.calls, sessions), strict=True))
        clock = time.thread_time if threads == 1 else time.perf_counter
        with on_first_core(threads):
            return [
                interleaved(
                    calls,
                    seconds=self.seconds / len(kinds),
                    clock=clock,
                    precision=PRECISION,
                    is_enough=self._is_enough,
                    progress=self.progress,
                )
                for calls in kinds
            ]

    def _is_enough(self, taken: F64) -> bool:
        """Whether the intervals are narrow enough for what is to be decided."""
        found = _ratios(taken)
        is_known = all(one.half_width <= LEAST_PRECISION for one in found)
        return is_known and self.is_settled is not None and self.is_settled(found)


def _run_all(session: Session, samples: Sequence[Feed]) -> None:
    for sample in samples:
        session.run(sample)


# ---- A quick look at speed, for a result that nothing else was tried beside

SECONDS = 0.5  # of timing
SAVED = 0.05  # of the bytes, or of the time: less is no gain


def quick_speed(
    model: io.ModelSource, other: str | Path | ir.Model, threads: int | None = None
) -> float | None:
    """Return how many times as fast the other is, on a made-up input; None where that can't be found out."""
    try:
        loaded = io.load(model)
        sample = sample_inputs(specs_of(loaded))
        source = Path(model) if isinstance(model, str | Path) else loaded
        made = other if isinstance(other, ir.Model) else Path(other)
        (found,) = speeds(source, [made], [sample], threads=threads, seconds=SECONDS)
    except OctavoError:
        return None
    return found.value if found.is_known else None


def refuse_no_gain(source: io.ModelSource, threads: int | None, made: ir.Model, float_bytes: int) -> None:
    """Raise for a model that was quantized without data and is neither smaller nor faster than float."""
    size = io.weight_bytes(made) / max(float_bytes, 1)
    if size <= 1 - SAVED:
        return
    speed = quick_speed(source, made, threads)
    if speed is None or speed > 1 + SAVED:
        return
    raise ModelError(
        f"{io.describe(io.load(source))} gains nothing without calibration: {size:.2f} × its size at"
        f" {speed:.2f} × its speed. Give data=… for static quantization; effort='plain' writes it anyway."
    )
