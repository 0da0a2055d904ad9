"""Two samples at a time: the runtime works on the next ones while the outputs of the last are counted.

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

_RUNS_AT_ONCE = 2  # a third one only adds memory: see docs/decisions/0012
_MAX_SECONDS = 0.5  # of the first run; a longer one uses its threads well, and much memory
_LEAST_SECONDS = 0.01  # of the first of few runs; to start threads for shorter ones takes what they save
_MAX_BYTES = 1 << 26  # that a run reads and gives


class RunQueue:
    """Runs under way, and what is done with their outputs."""

    def __init__(self, *, concurrent: bool, few_runs: bool = False) -> None:
        self._least_seconds = _LEAST_SECONDS if few_runs else 0.0
        self._concurrent: bool | None = None if concurrent else False  # None: the first run will tell
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[Outputs], Then]] = deque()

    @property
    def is_concurrent(self) -> bool:
        """Whether a run may still be under way when :meth:`put` returns."""
        return self._concurrent is True

    def put(self, run: Run, then: Then, size: int = 0) -> None:
        """Run it, now or soon; ``then`` gets the outputs in this thread, after those that came before.

        ``size`` is the number of bytes that it reads.
        """
        if self._concurrent and size >= _MAX_BYTES:
            self._concurrent = False
        if not self._concurrent:
            self.finish()
            then(self._timed(run, size))
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_RUNS_AT_ONCE, thread_name_prefix="octavo-run")
        self._waiting.append((self._pool.submit(run), then))
        while len(self._waiting) > _RUNS_AT_ONCE:
            self._take()

    def _timed(self, run: Run, size: int) -> Outputs:
        """Do a run by itself; the first one tells whether others may go beside each other."""
        begun = time.monotonic()
        outputs = run()
        if self._concurrent is None:
            seconds = time.monotonic() - begun
            pays = self._least_seconds <= seconds < _MAX_SECONDS
            self._concurrent = pays and size + bytes_of(outputs) < _MAX_BYTES
        return outputs

    def _take(self) -> None:
        future, then = self._waiting.popleft()
        outputs = future.result()
        if self._concurrent and bytes_of(outputs) >= _MAX_BYTES:
            self._concurrent = False
        then(outputs)

    def finish(self) -> None:
        """Wait for all that is under way, and let go of the threads."""
        while self._waiting:
            self._take()
        self.cancel()

    def cancel(self) -> None:
        """Drop what is under way, and let go of the threads."""
        self._waiting.clear()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def bytes_of(arrays: Outputs) -> int:
    """Return the number of bytes that some arrays take."""
    return sum(values.nbytes for values in arrays.values())
