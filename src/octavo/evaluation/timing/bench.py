"""Measure models: latency side by side, memory, load time, size, and where the time goes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from octavo.core.arguments import check_arguments
from octavo.core.outputs import note_inputs
from octavo.core.progress import Progress, silent
from octavo.data.decoder import with_own_types
from octavo.errors import ModelError, RecipeError
from octavo.evaluation.model_paths import check_same_inputs, model_title, runnable_path
from octavo.evaluation.task import F64
from octavo.evaluation.timing.decoding import Decoding, decoding
from octavo.evaluation.timing.footprint import file_bytes, footprint
from octavo.evaluation.timing.latency import Latency, interleaved, on_first_core, ratio, taking_turns
from octavo.evaluation.timing.measurements import Bench, Measured
from octavo.evaluation.timing.profiler import profile as run_profiler
from octavo.evaluation.timing.timed_feeds import Feed, batch_of, bench_feeds, random_feeds
from octavo.model.files import io
from octavo.model.runtime.session import InputSpec, Session
from octavo.reporting.text import many

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


_UNCERTAIN = (
    "the interval of the speed is too wide to tell fast from slow, as other programs use the machine; measure"
    " for longer, or count processor time of one thread (clock cpu, threads 1)"
)


def bench(
    model: io.ModelSource,
    other: io.ModelSource | Sequence[io.ModelSource] | None = None,
    data: Any = None,
    *,
    batch: int | None = None,
    threads: int | None = None,
    seconds: float = 3.0,
    clock: str = "wall",
    profile: bool = True,
    memory: bool = True,
    progress: Progress | None = None,
) -> Bench:
    """Measure speed, memory and size of a model, usually the float one, and of others beside it.

    All take turns on the same samples: the first of ``data``, or random ones. ``batch`` samples are fed
    together where the batch axis is dynamic. ``threads`` are those of the runtime (default: its own choice),
    ``seconds`` how long all are timed; ``clock="cpu"`` counts processor time, which is steadier on a busy
    machine. Memory and load time are measured in separate processes.
    """
    check_arguments(seconds=seconds, batch=batch, threads=threads, clock=clock)
    if seconds <= 0 or (batch is not None and batch < 1) or (threads is not None and threads < 1):
        raise RecipeError("seconds, batch and threads must be above zero.")
    if clock not in CLOCKS:
        raise RecipeError(f"There is no clock {clock!r}; choose {' or '.join(CLOCKS)}.")
    say = progress if progress is not None else silent
    with contextlib.ExitStack() as stack:
        others = list(other) if isinstance(other, list | tuple) else [] if other is None else [other]
        sources: list[Any] = [model, *others]
        opened = [runnable_path(source, stack) for source in sources]
        paths = [path for path, _ in opened]
        config = taking_turns(threads)
        sessions = [Session.open(path, threads=threads, config=config) for path in paths]
        specs = sessions[0].inputs
        check_same_inputs([session.inputs for session in sessions], sources)
        feeds = random_feeds(sessions[0], batch) if data is None else bench_feeds(data, specs, batch)
        inputs = [session.inputs for session in sessions]
        own = [[with_own_types(feed, session.inputs, timed=True) for feed in feeds] for session in sessions]
        _check_runs(sessions, own, sources)
        calls = [partial(_run_all, session, mine) for session, mine in zip(sessions, own, strict=True)]
        with on_first_core(threads):
            taken = interleaved(calls, seconds=seconds, clock=CLOCKS[clock], progress=partial(say, "timing"))
            spoken = decoding(sessions, feeds, seconds, CLOCKS[clock])
        taken /= len(feeds)
        del calls, sessions
        notes = [note for _, note in opened if note]
        found = tuple(
            _Details(own[number], inputs[number], threads, memory, profile, say, notes).measured(
                number, source, path, taken[number], spoken[number] if spoken else None
            )
            for number, (source, path) in enumerate(zip(sources, paths, strict=True))
        )
    ratios = tuple(ratio(taken[0], row) for row in taken[1:])
    if not all(one.is_known for one in ratios):
        notes.append(_UNCERTAIN)
    made = Bench(
        found,
        ratios,
        taken.shape[1],
        batch_of(feeds[0], specs),
        threads,
        _described(data, len(feeds)),
        clock,
        tuple(notes),
    )
    return note_inputs(made, {"models": sources, "data": data})


def _described(data: Any, count: int) -> str:
    if data is None:
        return "random samples"
    samples = many(count, "sample")
    return f"{samples} of {data}" if isinstance(data, str | Path) else samples


def _run_all(session: Session, feeds: Sequence[Feed]) -> None:
    for feed in feeds:
        session.run(feed)


def _check_runs(sessions: Sequence[Session], feeds: Sequence[Sequence[Feed]], sources: Sequence[Any]) -> None:
    for session, own, source in zip(sessions, feeds, sources, strict=True):
        try:
            session.run(own[0])
        except ModelError as error:
            raise ModelError(
                f"{model_title(source)} does not run on the samples: {error} Set data=… to samples that "
                "fit, or correct the model."
            ) from error


@dataclass
class _Details:
    """Measures memory and profiles, and collects notes on what could not be measured."""

    feeds: Sequence[Feed]
    specs: Sequence[InputSpec]
    threads: int | None
    memory: bool
    profile: bool
    say: Progress
    notes: list[str] = field(default_factory=list)

    def measured(
        self, number: int, source: Any, path: Path, seconds: F64, spoken: Decoding | None
    ) -> Measured:
        """Return one model's times, and its memory and operators where they are requested."""
        given = Path(source) if isinstance(source, str | os.PathLike) else path
        one = Measured(model_title(source), file_bytes(given), Latency.of(seconds), decoding=spoken)
        if self.memory:
            self.say("memory", number, None)
            one = self.with_memory(one, path)
        if self.profile:
            self.say("profiling", number, None)
            one = self.with_profile(one, path)
        return one

    def with_memory(self, one: Measured, path: Path) -> Measured:
        found = footprint(path, self.feeds[0], self.specs, self.threads)
        if found.error is not None:
            self.notes.append(f"memory and load time of {one.name} could not be measured: {found.error}")
        return replace(one, memory_bytes=found.memory_bytes, load_seconds=found.load_seconds)

    def with_profile(self, one: Measured, path: Path) -> Measured:
        found = run_profiler(path, self.feeds, self.threads)
        if found.graph is None:
            self.notes.append(
                f"the optimized graph of {one.name} can't be read, so unfused operators are not listed"
            )
        return replace(one, ops=found.by_op(), unfused=found.unfused(), nodes=found.nodes)
