"""Several models timed in turns, in one process, at a given number of threads.

A *round* times every model once, in an order that rotates. Before its turn a model runs once untimed. With
one thread the clock is the process's CPU time, which other work on the machine disturbs little; with more it
is wall time, and two things are kept from disturbing it. The runtime's idle threads spin for a while (35 ms
with onnxruntime 1.31): a turn waits until those of the model before have come to rest. And where there is a
thread for every core, each is bound to one, as the runtime does by itself where the number is left to it: on
a busy machine the system may else leave two of a session on one core for as long as it lives.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _measure import open_session

PAUSE, QUIET, LONGEST = 0.003, 3, 0.3  # seconds of a look, looks in a row without work, seconds in all
GRAIN = 0.008  # seconds that a turn lasts at least
FEWEST, MOST = 5, 60  # rounds


def timed_session(path: str | Path, threads: int) -> Any:
    """A session for :func:`turns`."""
    cores = _all_cores(threads)
    bound = ";".join(str(core + 1) for core in cores[1:])  # the runtime counts from one
    return open_session(path, threads, {"session.intra_op_thread_affinities": bound} if cores else None)


def _all_cores(threads: int) -> list[int]:
    """The cores of this process, where there are as many as threads, and several."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return cores if threads > 1 and len(cores) == threads else []


@contextlib.contextmanager
def _on_first_core(threads: int) -> Iterator[None]:
    """This thread beside those of a :func:`timed_session`."""
    cores = _all_cores(threads)
    if not cores:
        yield
        return
    os.sched_setaffinity(0, cores[:1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def turns(
    calls: Mapping[str, Callable[[], object]], *, threads: int, seconds: float, fewest: int = FEWEST
) -> dict[str, list[float]]:
    """Seconds of one call of each, round by round, until `seconds` are over."""
    with _on_first_core(threads):
        return _turns(calls, threads, seconds, fewest)


def _turns(
    calls: Mapping[str, Callable[[], object]], threads: int, seconds: float, fewest: int
) -> dict[str, list[float]]:
    clock = time.process_time if threads == 1 else time.perf_counter
    names = list(calls)
    repeats = {name: _repeats(call) for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in names}
    end = time.monotonic() + seconds
    for number in range(MOST):
        if number >= fewest and time.monotonic() > end:
            break
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if threads > 1:
                settle()
            call = calls[name]
            call()
            start = clock()
            for _ in range(repeats[name]):
                call()
            taken[name].append((clock() - start) / repeats[name])
    return taken


def settle() -> None:
    """Wait until this process does nothing: until no thread of it spins any more."""
    end, quiet = time.monotonic() + LONGEST, 0
    while quiet < QUIET and time.monotonic() < end:
        before = time.process_time()
        time.sleep(PAUSE)
        quiet = quiet + 1 if time.process_time() - before < PAUSE / 4 else 0


def _repeats(call: Callable[[], object]) -> int:
    for _ in range(2):
        call()
    start = time.perf_counter()
    call()
    return max(1, math.ceil(GRAIN / max(time.perf_counter() - start, 1e-6)))


def times_as_fast(base: Sequence[float], other: Sequence[float], *, threads: int = 1) -> float:
    """How many times as fast `other` is as `base`: the median over rounds that both took part in.

    Several threads are measured in wall time, which other work on the machine can only lengthen: there it is
    the lower quartile of one against that of the other.
    """
    if threads == 1:
        return float(np.median(np.asarray(base) / np.asarray(other)))
    return float(np.quantile(base, 0.25) / np.quantile(other, 0.25))


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
