"""Measure models: latency side by side, memory, load time, size, and where the time goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from octavo.errors import ModelError, RecipeError
from octavo.evaluation.feeds import Feed, batch_of, bench_feeds, made_up
from octavo.evaluation.footprint import Footprint, file_bytes, footprint
from octavo.evaluation.fusion import unfused
from octavo.evaluation.latency import Latency, interleaved, on_first_core, ratio, taking_turns
from octavo.evaluation.measurement import Bench, Measured
from octavo.evaluation.profile import profiled
from octavo.evaluation.sources import on_disk, same_inputs, title
from octavo.model import io
from octavo.model.session import InputSpec, Session

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
Progress = Callable[[str, int, int | None], None]


def bench(
    model: io.ModelSource,
    other: io.ModelSource | None = None,
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
    """Measure a model, as a rule the float one, and another one beside it.

    Both run in turn on the same samples: the first of ``data``, or made-up ones. ``batch`` samples are fed
    together where the models leave that open. ``threads`` are those of the runtime (default: its own choice),
    ``seconds`` how long both are timed; ``clock="cpu"`` counts processor time, which is steadier on a busy
    machine. Memory and load time come from processes of their own.
    """
    if seconds <= 0 or (batch is not None and batch < 1) or (threads is not None and threads < 1):
        raise RecipeError("seconds, batch and threads have to be above zero.")
    if clock not in CLOCKS:
        raise RecipeError(f"There is no clock {clock!r}; choose {' or '.join(CLOCKS)}.")
    say = progress if progress is not None else _silent
    with contextlib.ExitStack() as stack:
        sources = [model] if other is None else [model, other]
        paths = [on_disk(source, stack) for source in sources]
        config = taking_turns(threads)
        sessions = [Session.open(path, threads=threads, config=config) for path in paths]
        same_inputs([session.inputs for session in sessions], sources)
        first = sessions[0]
        feeds = made_up(first, batch) if data is None else bench_feeds(data, first.inputs, batch)
        _check_runs(sessions, feeds, sources)
        calls = [partial(_run_all, session, feeds) for session in sessions]
        with on_first_core(threads):
            taken = interleaved(calls, seconds=seconds, clock=CLOCKS[clock], progress=partial(say, "timing"))
        taken /= len(feeds)
        specs = sessions[0].inputs
        del calls, sessions, first
        found = [
            _measured(title(source), path, Latency.of(row))
            for source, path, row in zip(sources, paths, taken, strict=True)
        ]
        notes: list[str] = []
        if memory:
            found = [
                _with_memory(one, path, feeds[0], specs, threads, notes, partial(say, "memory", number))
                for number, (one, path) in enumerate(zip(found, paths, strict=True))
            ]
        if profile:
            found = [
                _with_profile(one, path, feeds, threads, notes, partial(say, "profiling", number))
                for number, (one, path) in enumerate(zip(found, paths, strict=True))
            ]
    return Bench(
        tuple(found),
        ratio(taken[0], taken[1]) if len(taken) == 2 else None,
        taken.shape[1],
        batch_of(feeds[0], specs),
        threads,
        _described(data, len(feeds)),
        clock,
        tuple(notes),
    )


def _silent(phase: str, done: int, total: int | None) -> None:
    """Nobody watches."""


def _described(data: Any, count: int) -> str:
    if data is None:
        return "made-up samples"
    return f"{count} samples of {data}" if isinstance(data, str | Path) else f"{count} samples"


def _run_all(session: Session, feeds: Sequence[Feed]) -> None:
    for feed in feeds:
        session.run(feed)


def _check_runs(sessions: Sequence[Session], feeds: Sequence[Feed], sources: Sequence[Any]) -> None:
    for session, source in zip(sessions, sources, strict=True):
        try:
            session.run(feeds[0])
        except ModelError as error:
            raise ModelError(
                f"{title(source)} does not run on the samples: {error} Give samples that fit: data=…"
            ) from error


def _measured(name: str, path: Path, latency: Latency) -> Measured:
    return Measured(name, file_bytes(path), latency)


def _with_memory(
    one: Measured,
    path: Path,
    feed: Feed,
    specs: Sequence[InputSpec],
    threads: int | None,
    notes: list[str],
    say: Callable[[int | None], None],
) -> Measured:
    say(None)
    found: Footprint = footprint(path, feed, specs, threads)
    if found.error is not None:
        notes.append(f"memory and load time of {one.name} could not be measured: {found.error}")
    return replace(one, memory_bytes=found.memory_bytes, load_seconds=found.load_seconds)


def _with_profile(
    one: Measured,
    path: Path,
    feeds: Sequence[Feed],
    threads: int | None,
    notes: list[str],
    say: Callable[[int | None], None],
) -> Measured:
    say(None)
    found = profiled(path, feeds, threads)
    if found.graph is None:
        notes.append(f"the optimized graph of {one.name} can't be read, so unfused parts are not listed")
        return replace(one, ops=found.by_op(), nodes=found.nodes)
    return replace(one, ops=found.by_op(), unfused=unfused(found.graph, found.nodes), nodes=found.nodes)
