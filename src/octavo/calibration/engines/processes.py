"""Several processes on this machine, each with a session and its share of the threads.

A worker is a fresh interpreter (never a fork of this one, whose runtime has threads) that gets nothing but
the job: the caller's script is not run again in it. Large weights lie in a file that all of them map.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from octavo.calibration.engines.protocol import (
    ATTEMPTS,
    Job,
    R,
    S,
    for_other_processes,
    known_length,
    packed,
    threads_each,
)
from octavo.calibration.engines.worker import read_frame, unpacked, write_frame
from octavo.core import scratch
from octavo.core.cpu import cores
from octavo.errors import OctavoError

_START = "import sys; sys.path[:] = {path!r}; from octavo.calibration.engines.worker import main; main()"
_GOODBYE = 2.0  # seconds for a worker to end by itself


class Processes:
    """The engine of worker processes."""

    name: ClassVar[str] = "processes"

    def __init__(self, workers: int | None = None, threads: int | None = None) -> None:
        self._given = workers
        self._threads = threads
        self.workers = workers or cores()

    def map(self, job: Job[S, R], shards: Iterable[S]) -> Iterator[tuple[int, R]]:
        """See :class:`Engine`."""
        with scratch.folder() as folder:
            content = self.pack(job, Path(folder))
            yield from self.run(content, Path(folder), for_other_processes(shards))

    def pack(self, job: Job[Any, Any], folder: Path) -> bytes:
        """Return the job as workers get it; its files are written into the folder."""
        content = packed(job, folder)
        if self._given is None:
            self.workers = min(cores(), affordable(folder))
        return pickle.dumps((content, threads_each(self._threads, self.workers)), protocol=5)

    def run(self, job: bytes, folder: Path, shards: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Do the shards of a packed job. What workers leave behind lies in the folder."""
        with _Pool(self.workers, job, folder) as pool:
            yield from pool.map(shards)


def affordable(folder: Path) -> int:
    """Return how many workers memory allows: each has weights in its own layout beside those it maps."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if size == 0 or not hasattr(os, "sysconf"):
        return cores()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, memory // 2 // (2 * size))


class _Pool:
    """Workers, and as many threads of this process that each hand a shard to an idle one."""

    def __init__(self, size: int, job: bytes, folder: Path) -> None:
        self._size = size
        self._workers = [_Worker(job, folder) for _ in range(size)]
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="octavo-worker")

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for worker in self._workers:
            worker.dismiss(at_once=kind is not None)
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.join()

    def map(self, shards: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Give the results of the shards as they arrive; twice as many are out as there are workers."""
        out: dict[Future[bytes], int] = {}
        for index, shard in enumerate(shards):
            content = pickle.dumps(shard, protocol=5)
            out[self._threads.submit(self._do, index, content)] = index
            while len(out) >= 2 * self._size:
                yield from _arrived(out)
        while out:
            yield from _arrived(out)

    def _do(self, index: int, shard: bytes) -> bytes:
        """Have a shard done by an idle worker; one that is lost with it is replaced."""
        worker = self._idle.get()
        code: int | None = None
        try:
            for _ in range(ATTEMPTS):
                try:
                    return worker.ask(shard)
                except (EOFError, OSError):
                    code = worker.end()
        finally:
            self._idle.put(worker)
        raise OctavoError(
            f"Worker processes were lost {ATTEMPTS} times while they had shard {index} (the last one ended "
            "with "
            f"code {code}); if memory ran out, use fewer workers."
        )


def _arrived(out: dict[Future[bytes], int]) -> Iterator[tuple[int, Any]]:
    """Wait for results, and give them."""
    for future in wait(out, return_when=FIRST_COMPLETED).done:
        yield out.pop(future), unpacked(future.result())


class _Worker:
    """One process, started when it gets its first shard, and again after it was lost."""

    def __init__(self, job: bytes, folder: Path) -> None:
        self._job, self._folder = job, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_dismissed = False

    def ask(self, shard: bytes) -> bytes:
        """Return the answer to a shard; EOFError or OSError where the process is gone."""
        process, is_new = self._started()
        if process.stdin is None or process.stdout is None:
            raise EOFError
        if is_new:
            write_frame(process.stdin, self._job)
        write_frame(process.stdin, shard)
        return read_frame(process.stdout)

    def _started(self) -> tuple[subprocess.Popen[bytes], bool]:
        with self._lock:
            if self._is_dismissed:
                raise EOFError
            if self._process is not None:
                return self._process, False
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START.format(path=[str(entry) for entry in sys.path])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "TMPDIR": str(self._folder)},
                start_new_session=True,  # an interrupt from the keyboard is for the parent alone
            )
            return self._process, True

    def end(self) -> int | None:
        """End the process at once and return its exit code; the next shard starts another."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        _close(process)
        return process.wait()

    def dismiss(self, *, at_once: bool) -> None:
        """Tell the process to end, and start no other."""
        with self._lock:
            self._is_dismissed = True
        process = self._process
        if process is not None and at_once:
            process.kill()
        elif process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def join(self) -> None:
        """Wait until the process has ended."""
        process = self._process
        if process is None:
            return
        try:
            process.wait(_GOODBYE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # what could not be sent any more
                stream.close()


# ---- Begin in this process, and go on in several where what is left is worth starting them
#
# Starting a worker takes about a second and a session of its own, which a small job never earns back. So the
# first shards are timed: if the rest would take longer than ``PAYS`` seconds here, other processes do it.

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
