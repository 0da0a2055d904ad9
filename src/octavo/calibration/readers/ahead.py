"""Work in threads, some steps ahead of the one who uses it, in order and with a bound on what waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from octavo.calibration.engines.engine import cores

T = TypeVar("T")
U = TypeVar("U")


def default_workers() -> int:
    """Threads that decode: one for each core, up to four."""
    return min(4, cores())


def ahead(function: Callable[[T], U], items: Iterable[T], workers: int, depth: int) -> Iterator[U]:
    """What the function gives for each item, in the order of the items.

    At most ``depth`` results are begun before they are asked for. Without workers nothing is done ahead.
    """
    if workers < 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="octavo-data")
    waiting: deque[Future[U]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= max(depth, workers):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
