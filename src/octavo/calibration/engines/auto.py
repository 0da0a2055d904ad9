"""Begin in this process, and go on in several where what is left is worth starting them.

Starting a worker takes about a second and a session of its own, which a small job never earns back. So the
first shards are timed: if the rest would take longer than ``PAYS`` seconds here, other processes do it.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from octavo.calibration.engines.engine import Job, Progress, R, S, cores, elsewhere, known_length
from octavo.calibration.engines.processes import Packed, Processes
from octavo.core import scratch

PAYS = 12.0  # seconds of work


class Auto:
    """Serial first, processes when it pays."""

    name: ClassVar[str] = "auto"

    def __init__(self, workers: int | None = None, threads: int | None = None) -> None:
        self._processes = Processes(workers, threads)
        self._threads = threads
        self.workers = workers or cores()

    def map(
        self, job: Job[S, R], shards: Iterable[S], *, progress: Progress | None = None
    ) -> Iterator[tuple[int, R]]:
        """See :class:`Engine`."""
        total, stream = known_length(shards), iter(shards)
        with ExitStack() as stack:
            packed: Packed[S, R] | None = None
            done, spent, may = 0, 0.0, True
            with job.open(self._threads) as do:
                for shard in stream:
                    begun = time.monotonic()
                    result = do(shard)
                    spent += time.monotonic() - begun
                    yield done, result
                    done += 1
                    if progress is not None:
                        progress(done, total)
                    if may and pays(spent, done, total):
                        folder = Path(stack.enter_context(scratch.folder()))
                        packed = self._packed(job, folder)
                        may = packed is not None
                        if may:
                            break
            if packed is None:
                return
            more = None if progress is None else lambda count, _: progress(done + count, total)
            rest = elsewhere(shards) if hasattr(shards, "elsewhere") else stream
            for index, result in self._processes.go(packed, folder, rest, more):
                yield done + index, result

    def _packed(self, job: Job[S, R], folder: Path) -> Packed[S, R] | None:
        """The job for other processes; None where they can't take it: it is of the caller's own script."""
        try:
            packed = self._processes.packed(job, folder)
        except (pickle.PicklingError, AttributeError, TypeError):
            return None
        return None if b"__main__" in packed.content or self._processes.workers == 1 else packed


def pays(spent: float, done: int, total: int | None) -> bool:
    """Whether the rest is worth other processes, by what it will take, or else by what it took so far."""
    return (spent if total is None else (total - done) * spent / done) > PAYS
