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

from octavo.calibration.engines.processes import Processes
from octavo.calibration.engines.protocol import Job, R, S, for_other_processes, known_length
from octavo.core import scratch
from octavo.core.cpu import cores

PAYS = 12.0  # seconds of work that are left


class Auto:
    """Serial first, processes when it pays."""

    name: ClassVar[str] = "auto"

    def __init__(self, workers: int | None = None, threads: int | None = None) -> None:
        self._processes = Processes(workers, threads)
        self._threads = threads
        self.workers = workers or cores()

    def map(self, job: Job[S, R], shards: Iterable[S]) -> Iterator[tuple[int, R]]:
        """See :class:`Engine`."""
        total, stream = known_length(shards), iter(shards)
        done, spent, may_leave = 0, 0.0, True
        content, folder = None, Path()
        with ExitStack() as stack:
            with job.open(self._threads) as do:
                for shard in stream:
                    begun = time.monotonic()
                    result = do(shard)
                    spent += time.monotonic() - begun
                    yield done, result
                    done += 1
                    if may_leave and pays(spent, done, total):
                        folder = Path(stack.enter_context(scratch.folder()))
                        content = self._packed(job, folder)
                        may_leave = content is not None
                        if may_leave:
                            break
            if content is None:
                return
            rest = for_other_processes(shards) if hasattr(shards, "elsewhere") else stream
            for index, result in self._processes.run(content, folder, rest):
                yield done + index, result

    def _packed(self, job: Job[S, R], folder: Path) -> bytes | None:
        """Return the job for other processes; None where they can't take it: it is of the caller's script."""
        try:
            content = self._processes.pack(job, folder)
        except (pickle.PicklingError, AttributeError, TypeError):
            return None
        return None if b"__main__" in content or self._processes.workers == 1 else content


def pays(spent: float, done: int, total: int | None) -> bool:
    """Return whether the rest is worth other processes: by the time it will take, or else took so far."""
    return (spent if total is None else (total - done) * spent / done) > PAYS
