"""Several models timed in turns, in one process, at a given number of threads.

A *round* times every model once, in an order that rotates. Before its turn a model runs once untimed,
after a pause where there are several threads: the runtime's idle threads spin for a while, and those of
the model before would take cores away. With one thread the clock is the process's CPU time, which other
work on the machine disturbs little; with more it is wall time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

PAUSE = 0.004  # seconds; idle threads of the runtime have stopped spinning by then
GRAIN = 0.008  # seconds that a turn lasts at least
FEWEST, MOST = 5, 60  # rounds


def turns(
    calls: Mapping[str, Callable[[], object]], *, threads: int, seconds: float, fewest: int = FEWEST
) -> dict[str, list[float]]:
    """Seconds of one call of each, round by round, until `seconds` are over."""
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
                time.sleep(PAUSE)
            call = calls[name]
            call()
            start = clock()
            for _ in range(repeats[name]):
                call()
            taken[name].append((clock() - start) / repeats[name])
    return taken


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
