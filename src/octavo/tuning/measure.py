"""Fidelity and speed of trials beside the float model.

Fidelity is a job for any engine: a shard is one trial and one sample. Speed is measured afterwards, in this
process and with none of its workers at work: float and all trials take turns. What counts is processor time
with one thread, which does not depend on what else the machine does. Only where several threads were asked
for it is wall time, and only while no other program takes the cores.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.calibration.engines import Engine
from octavo.evaluation.timing.latency import (
    Ratio,
    interleaved,
    on_first_core,
    queue_seconds,
    ratio,
    taking_turns,
)
from octavo.model.runtime.session import Session
from octavo.tuning.fidelity import Fidelity, Outputs, Tally, judged, outputs_of, tallies
from octavo.tuning.split import Feed

Shard = tuple[str, int]  # the file of a trial, the number of a sample
Progress = Callable[[str, int, int | None], None]

PRECISION = 0.015  # of ln(speed), half an interval: speeds that differ by less than 5 % count as the same
BUSY = 0.1  # share of its time that a thread waits for a core, beyond which wall time is that of the machine
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
            sample, expected = (_load(self.folder / f"{kind}{number}.npz") for kind in ("sample", "answer"))
            return tallies(self.outputs, expected, opened[name].run(sample), sample)

        yield judge


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        names = archive["names"].tolist()
        return {str(name): archive[f"a{i}"] for i, name in enumerate(names)}


def _save(path: Path, arrays: Feed) -> None:
    # Texts come as objects, which are not read back without running code.
    content: dict[str, Any] = {
        f"a{i}": array.astype(np.str_) if array.dtype.kind == "O" else array
        for i, array in enumerate(map(np.asarray, arrays.values()))
    }
    np.savez(path, names=np.array(list(arrays), dtype=np.str_), **content)


class Reference:
    """What the float model answers on the samples that were held back."""

    def __init__(self, session: Session, samples: Sequence[Feed], folder: Path) -> None:
        self.session, self.samples = session, samples
        answers = [session.run(sample) for sample in samples]
        for number, (sample, answer) in enumerate(zip(samples, answers, strict=True)):
            _save(folder / f"sample{number}.npz", sample)
            _save(folder / f"answer{number}.npz", answer)
        self.job = Judging(folder, outputs_of(answers, samples[0]))

    def fidelity(
        self, names: Sequence[str], engine: Engine, progress: Progress | None = None
    ) -> dict[str, Fidelity]:
        """Return the figures of trials, by their files; every engine gives the same."""
        shards = [(name, number) for name in names for number in range(len(self.samples))]
        found: dict[Shard, tuple[Tally, ...]] = {}
        for index, sums in engine.map(self.job, shards):
            found[shards[index]] = sums
            if progress is not None:
                progress("compare with float", len(found), len(shards))
        count = range(len(self.samples))
        return {name: judged(self.job.outputs, [found[name, i] for i in count]) for name in names}


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
) -> list[Ratio]:
    """Return how many times as fast as the reference each model is; all take turns, until the intervals tell.

    Unless several threads are requested, processor time of one thread is counted. Where other programs take
    the cores it is so in any case, and a ``note`` says so.
    """
    if threads is not None and threads > 1:
        waited, began = queue_seconds(), time.monotonic()
        found = _take_turns(reference, models, samples, threads, seconds, progress)
        after, elapsed = queue_seconds(), time.monotonic() - began
        if waited is None or after is None or after - waited <= BUSY * elapsed * threads:
            return found
        if note is not None:
            note(f"the machine is busy: speed is processor time of one thread, not that of {threads} threads")
    return _take_turns(reference, models, samples, 1, seconds, progress)


def _take_turns(
    reference: Path | ir.Model,
    models: Sequence[Path | ir.Model],
    samples: Sequence[Feed],
    threads: int,
    seconds: float,
    progress: Callable[[int, int | None], None] | None,
) -> list[Ratio]:
    config = taking_turns(threads)
    sessions = [Session.open(model, threads=threads, config=config) for model in (reference, *models)]
    calls = [partial(_run_all, session, samples) for session in sessions]
    clock = time.thread_time if threads == 1 else time.perf_counter
    with on_first_core(threads):
        taken = interleaved(calls, seconds=seconds, clock=clock, precision=PRECISION, progress=progress)
    return [ratio(taken[0], row) for row in taken[1:]]


def _run_all(session: Session, samples: Sequence[Feed]) -> None:
    for sample in samples:
        session.run(sample)
