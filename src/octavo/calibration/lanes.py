"""Two samples at a time: the runtime works on the next ones while what it gave for the last is looked at.

The runtime seldom keeps two cores busy with one sample, and none while Python counts. So runs are handed to
threads, a few ahead, and their results are taken in the order of the samples. A run that takes long by
itself, or reads or gives much, has the cores and the memory for itself: the first one tells, and every later
one that is large.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy.typing as npt

Outputs: TypeAlias = Mapping[str, npt.NDArray[Any]]
Run: TypeAlias = Callable[[], Outputs]
Then: TypeAlias = Callable[[Outputs], None]

_WIDE = 2  # runs at a time
_QUICK = 0.5  # seconds of the first run; what takes longer uses its threads well, and much memory
_SMALL = 1 << 26  # bytes that a run reads and gives


class Lanes:
    """Runs under way, and what is to be done with what they give."""

    def __init__(self, *, wide: bool) -> None:
        self._may: bool | None = None if wide else False  # None: the first run will tell
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[Outputs], Then]] = deque()

    @property
    def is_ahead(self) -> bool:
        """Whether a run may still be under way when :meth:`put` is done with it."""
        return self._may is True

    def put(self, run: Run, then: Then, size: int = 0) -> None:
        """Run it, now or soon; ``then`` gets the result in this thread, after those that came before.

        ``size`` is the number of bytes that it reads.
        """
        if self._may and size >= _SMALL:
            self._may = False
        if not self._may:
            self.settle()
            then(self._timed(run, size))
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_WIDE, thread_name_prefix="octavo-lane")
        self._waiting.append((self._pool.submit(run), then))
        while len(self._waiting) > _WIDE:
            self._take()

    def _timed(self, run: Run, size: int) -> Outputs:
        """A run by itself; the first one tells whether others may go beside each other."""
        begun = time.monotonic()
        outputs = run()
        if self._may is None:
            took = time.monotonic() - begun
            self._may = took < _QUICK and size + bytes_of(outputs) < _SMALL
        return outputs

    def _take(self) -> None:
        future, then = self._waiting.popleft()
        outputs = future.result()
        if self._may and bytes_of(outputs) >= _SMALL:
            self._may = False
        then(outputs)

    def settle(self) -> None:
        """Wait for all that is under way, and let go of the threads."""
        while self._waiting:
            self._take()
        self.forget()

    def forget(self) -> None:
        """Drop what is under way, and let go of the threads."""
        self._waiting.clear()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def bytes_of(arrays: Outputs) -> int:
    """What some arrays take."""
    return sum(values.nbytes for values in arrays.values())
