"""Fidelity and speed of trials beside the float model.

Fidelity is a job for any engine: a shard is one trial and one sample. Speed is measured afterwards, in this
process and with nothing else at work: float and all trials take turns.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from octavo.calibration.engines import Engine
from octavo.evaluation.latency import Ratio, interleaved, on_first_core, ratio, taking_turns
from octavo.model.session import Session
from octavo.tuning.fidelity import Fidelity, Part, Tally, judged, parts_of, tallies
from octavo.tuning.split import Feed

Shard = tuple[str, int]  # the file of a trial, the number of a sample
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Judging:
    """Compare the answers of trials with those of float; all of it lies in files of one folder."""

    folder: Path
    parts: tuple[Part, ...]

    def pack(self, folder: Path) -> Judging:
        """Link the files into a folder that goes to the workers."""
        for file in self.folder.iterdir():
            _link(file, folder / file.name)
        return replace(self, folder=folder)

    def at(self, folder: Path) -> Judging:
        """The job with its files there."""
        return replace(self, folder=folder)

    @contextlib.contextmanager
    def open(self, threads: int | None) -> Iterator[Callable[[Shard], tuple[Tally, ...]]]:
        """Gives a function from a shard to its sums; the session of the last trial stays open."""
        opened: dict[str, Session] = {}

        def judge(shard: Shard) -> tuple[Tally, ...]:
            name, number = shard
            if name not in opened:
                opened.clear()
                opened[name] = Session.open(self.folder / name, threads=threads or None)
            sample, expected = (_load(self.folder / f"{kind}{number}.npz") for kind in ("sample", "answer"))
            return tallies(self.parts, expected, opened[name].run(sample), sample)

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
    content: dict[str, Any] = {f"a{i}": array for i, array in enumerate(arrays.values())}
    np.savez(path, names=np.array(list(arrays), dtype=np.str_), **content)


class Reference:
    """What the float model answers on the samples that were held back."""

    def __init__(self, session: Session, samples: Sequence[Feed], folder: Path) -> None:
        self.session, self.samples = session, samples
        answers = [session.run(sample) for sample in samples]
        for number, (sample, answer) in enumerate(zip(samples, answers, strict=True)):
            _save(folder / f"sample{number}.npz", sample)
            _save(folder / f"answer{number}.npz", answer)
        self.job = Judging(folder, parts_of(answers))

    def fidelity(
        self, names: Sequence[str], engine: Engine, progress: Progress | None = None
    ) -> dict[str, Fidelity]:
        """The figures of trials, by their files; every engine gives the same."""
        shards = [(name, number) for name in names for number in range(len(self.samples))]
        found: dict[Shard, tuple[Tally, ...]] = {}
        tell = None if progress is None else lambda done, total: progress("judge", done, total)
        for index, sums in engine.map(self.job, shards, progress=tell):
            found[shards[index]] = sums
        count = range(len(self.samples))
        return {name: judged(self.job.parts, [found[name, i] for i in count]) for name in names}


def speeds(
    reference: Session, models: Sequence[Path], sample: Feed, *, threads: int | None, seconds: float
) -> list[Ratio]:
    """How many times as fast as float each model is; all take turns.

    With one thread the time of the processor is that of the call, and what else the machine does is left out.
    """
    config = taking_turns(threads)
    sessions = [reference, *(Session.open(path, threads=threads, config=config) for path in models)]
    calls = [lambda session=session: session.run(sample) for session in sessions]
    clock = time.process_time if threads == 1 else time.perf_counter
    with on_first_core(threads):
        taken = interleaved(calls, seconds=seconds, clock=clock)
    return [ratio(taken[0], row) for row in taken[1:]]
