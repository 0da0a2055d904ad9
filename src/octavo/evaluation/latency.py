"""How long things take, side by side: they take turns, so that a busy machine is unfair to none of them."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.evaluation.metrics import F64
from octavo.evaluation.paired import median_interval

GRAIN = 0.02  # seconds that a measurement lasts at least, so that the clock's grain does not matter
FEWEST, MOST = 9, 400  # rounds
WARM_UP = 3  # calls before anything is measured


@dataclass(frozen=True)
class Latency:
    """Seconds of one call: the median of all rounds, quartiles and the best."""

    median: float
    low: float
    high: float
    best: float

    @classmethod
    def of(cls, seconds: F64) -> Latency:
        """Of one row of :func:`interleaved`."""
        low, median, high = np.percentile(seconds, [25, 50, 75])
        return cls(float(median), float(low), float(high), float(seconds.min()))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"median": self.median, "low": self.low, "high": self.high, "best": self.best}


@dataclass(frozen=True)
class Ratio:
    """How many times as fast: the median of the rounds' ratios, with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"value": self.value, "low": self.low, "high": self.high}


def taking_turns(threads: int | None) -> dict[str, str]:
    """The configuration of sessions that are timed in turns.

    Threads that spin after a run (35 ms with onnxruntime 1.31) would slow down the model whose turn is next.
    And where there is a thread for every core, each is bound to one, as the runtime does by itself where the
    number is left to it: on a busy machine two of a session may else share a core for as long as it lives.
    """
    config = {"session.force_spinning_stop": "1"}
    cores = _cores()
    if threads is not None and threads == len(cores) > 1:
        config["session.intra_op_thread_affinities"] = ";".join(str(core + 1) for core in cores[1:])
    return config


@contextlib.contextmanager
def on_first_core(threads: int | None) -> Iterator[None]:
    """This thread where those of sessions :func:`taking_turns` are not; they have to be open already."""
    cores = _cores()
    if len(cores) < 2 or threads not in (None, len(cores)):
        yield
        return
    with contextlib.suppress(OSError):  # where it is not allowed, threads stay where the system puts them
        os.sched_setaffinity(0, cores[:1])
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def interleaved(
    calls: Sequence[Callable[[], object]],
    *,
    seconds: float = 3.0,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[int, int | None], None] | None = None,
) -> F64:
    """Seconds of one call, a row for each of ``calls`` and a column for each round.

    In a round each is called once (or often enough for the clock), in an order that rotates. Rounds go on
    until ``seconds`` are over, and are at least ``FEWEST``.
    """
    for call in calls:
        for _ in range(WARM_UP):
            call()
    repeats = _repeats(calls[0], clock)
    taken: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    end = time.monotonic() + seconds
    for number in range(MOST):
        if number >= FEWEST and time.monotonic() > end:
            break
        for index in order:
            taken[index].append(_timed(calls[index], repeats, clock))
        order = order[1:] + order[:1]
        if progress is not None:
            progress(number + 1, None)
    return np.array(taken, np.float64)


def _timed(call: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats


def _repeats(call: Callable[[], object], clock: Callable[[], float]) -> int:
    """How often to call for one measurement: doubled until it lasts long enough."""
    repeats = 1
    while repeats < 4096:
        once = _timed(call, repeats, clock)
        if once * repeats >= GRAIN / 2:
            return max(1, math.ceil(GRAIN / once))
        repeats *= 2
    return repeats


def ratio(first: F64, second: F64) -> Ratio:
    """How many times as fast the second is as the first, from rounds in which both took turns."""
    ratios = first / np.maximum(second, 1e-12)
    interval = median_interval(ratios)
    return Ratio(float(np.median(ratios)), interval.low, interval.high)
