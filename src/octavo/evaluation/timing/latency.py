"""Latency of calls that take turns, so that a busy machine slows all of them down alike.

With one thread a session computes in the thread that calls it, and :func:`time.thread_time` counts what the
processor did for it: waiting for a core is left out, however busy the machine is. With more threads only wall
time tells how long a call takes, and :func:`queue_seconds` tells whether other programs were in the way.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo.evaluation.metric_intervals import median_interval
from octavo.evaluation.task import F64

MIN_SECONDS = 0.01  # of one measurement; shorter calls are repeated, for the clock's resolution
MIN_ROUNDS, MAX_ROUNDS = 9, 400  # fewer rounds give no useful interval, more do not narrow it
WARM_UP = 3  # calls before anything is measured
LONG_CALL = 0.1  # seconds of a call after which it counts as warmed up
WIDEST_INTERVAL = 0.25  # half of an interval, in ln(speed): ± 28 %. A wider one does not tell fast from slow
MAX_TIME_FACTOR = 3.0  # times the seconds given, where the interval does not tell before


@dataclass(frozen=True)
class Latency:
    """Seconds of one call: the median of all rounds, quartiles and the best."""

    median: float
    low: float
    high: float
    best: float

    @classmethod
    def of(cls, seconds: F64) -> Latency:
        """Return the latency of one row of :func:`interleaved`."""
        low, median, high = np.percentile(seconds, [25, 50, 75])
        return cls(float(median), float(low), float(high), float(seconds.min()))


@dataclass(frozen=True)
class Ratio:
    """How many times as fast: the median of the rounds' ratios, with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval, in units of ln(speed); infinite where there is none."""
        known = self.low > 0 and math.isfinite(self.high)
        return math.log(self.high / self.low) / 2 if known else math.inf

    @property
    def is_known(self) -> bool:
        """Whether the interval is narrow enough to say anything."""
        return self.half_width <= WIDEST_INTERVAL

    def reaches(self, least: float) -> bool | None:
        """Whether the speed is at least that; None where the interval holds speeds on both sides."""
        if self.low >= least:
            return True
        return None if self.high >= least else False

    def differs_from(self, other: Ratio) -> bool:
        """Whether two speeds can be told apart: they differ by more than both intervals together explain."""
        difference = abs(math.log(max(self.value, 1e-9) / max(other.value, 1e-9)))
        return difference > math.hypot(self.half_width, other.half_width)


def queue_seconds() -> float | None:
    """Return the seconds that this process's threads waited for a core; None where it can't be told."""
    try:
        tasks = [(task / "schedstat").read_text().split() for task in Path("/proc/self/task").iterdir()]
        return sum(int(fields[1]) for fields in tasks) * 1e-9
    except (OSError, IndexError, ValueError):
        return None


def taking_turns(threads: int | None) -> dict[str, str]:
    """Return the configuration of sessions that are timed in turns.

    Threads that spin after a run (35 ms with onnxruntime 1.31) would slow down the model whose turn is next.
    Where there is a thread for every core, each is bound to one, as the runtime itself does where the number
    is left to it: otherwise two threads of a session may share a core of a busy machine for its whole life.
    """
    config = {"session.force_spinning_stop": "1"}
    cores = _cores()
    if threads is not None and threads == len(cores) > 1:
        config["session.intra_op_thread_affinities"] = ";".join(str(core + 1) for core in cores[1:])
    return config


@contextlib.contextmanager
def on_first_core(threads: int | None) -> Iterator[None]:
    """Bind this thread to the first core, where no thread of a session of :func:`taking_turns` runs.

    The sessions have to be open already.
    """
    cores = _cores()
    if len(cores) < 2 or threads not in (None, len(cores)):
        yield
        return
    with contextlib.suppress(OSError):  # where it is not allowed, the system places the thread
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
    precision: float | None = None,
    is_enough: Callable[[F64], bool] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> F64:
    """Return the seconds of one call, a row for each of ``calls`` and a column for each round.

    In a round each is called once (or often enough for the clock), in an order that rotates. Rounds go on
    until ``seconds`` are over, and are at least ``MIN_ROUNDS``. With a ``precision`` (half an interval of
    each ratio to the first call, in ln(speed)) they end as soon as that is reached, or what was measured so
    far ``is_enough``, and go on for up to ``MAX_TIME_FACTOR`` times the seconds where neither is so.
    ``progress`` gets the rounds so far, and how many
    there will be as far as that can be told.
    """
    for call in calls:
        _warm_up(call)
    repeats = _repeats(calls[0], clock)
    taken: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    begun = time.monotonic()
    end = begun + seconds * (1.0 if precision is None else MAX_TIME_FACTOR)
    check = total = MIN_ROUNDS
    for number in range(MAX_ROUNDS):
        if number >= MIN_ROUNDS and time.monotonic() > end:
            break
        if number == check:
            elapsed = max(time.monotonic() - begun, 1e-9)
            total = max(number + 1, min(int(number * (end - begun) / elapsed), MAX_ROUNDS))
            if precision is not None:
                table = np.array(taken, np.float64)
                width = _widest(table)
                if width <= precision or (is_enough is not None and is_enough(table)):
                    break
                total = min(total, max(number + 1, _rounds_for(precision, number, width)))
            check += max(4, check // 4)  # seldom: each look is a chance to stop at a lucky moment
        for index in order:
            taken[index].append(_timed(calls[index], repeats, clock))
        order = order[1:] + order[:1]
        if progress is not None:
            progress(number + 1, max(total, number + 1))
    return np.array(taken, np.float64)


def _warm_up(call: Callable[[], object]) -> None:
    """Call a few times; a long call only once, as its caches are warm long before it ends."""
    began = time.monotonic()
    for _ in range(WARM_UP):
        call()
        if time.monotonic() - began > LONG_CALL:
            return


def _widest(taken: F64) -> float:
    """Return half of the widest interval, in ln(speed)."""
    return max((ratio(taken[0], row).half_width for row in taken[1:]), default=0.0)


def _rounds_for(precision: float, rounds: int, width: float) -> int:
    """Return the rounds that narrow an interval to a precision: it shrinks as their square root grows."""
    return math.ceil(min(rounds * (width / precision) ** 2, MAX_ROUNDS))


def _timed(call: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats


def _repeats(call: Callable[[], object], clock: Callable[[], float]) -> int:
    """Return how often to call for one measurement, so that it lasts long enough."""
    repeats = 1
    while repeats < 4096:
        once = _timed(call, repeats, clock)
        if once * repeats >= MIN_SECONDS / 2:
            return max(1, math.ceil(MIN_SECONDS / once))
        repeats *= 2
    return repeats


def ratio(first: F64, second: F64) -> Ratio:
    """Return how many times as fast the second is as the first, from rounds in which both took turns."""
    ratios = first / np.maximum(second, 1e-12)
    interval = median_interval(ratios)
    return Ratio(float(np.median(ratios)), interval.low, interval.high)
