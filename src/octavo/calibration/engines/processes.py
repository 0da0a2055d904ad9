"""Several processes on this machine, each with a session and its share of the threads.

A worker is a fresh interpreter (never a fork of this one, whose runtime has threads) that gets nothing but
the job: the caller's script is not run again in it. Large weights lie in a file that all of them map.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic

from octavo.calibration.engines.engine import (
    ATTEMPTS,
    FileJob,
    Job,
    Progress,
    R,
    S,
    cores,
    divided,
    elsewhere,
    known_length,
)
from octavo.calibration.engines.worker import read_frame, unpacked, write_frame
from octavo.core import scratch
from octavo.errors import OctavoError

_START = "import sys; sys.path[:] = {path!r}; from octavo.calibration.engines.worker import main; main()"
_PARTING = 2.0  # seconds for a worker to leave by itself


class Processes:
    """The engine of worker processes."""

    name: ClassVar[str] = "processes"

    def __init__(self, workers: int | None = None, threads: int | None = None) -> None:
        self._asked = workers
        self._threads = threads
        self.workers = workers or cores()

    def map(
        self, job: Job[S, R], shards: Iterable[S], *, progress: Progress | None = None
    ) -> Iterator[tuple[int, R]]:
        """See :class:`Engine`."""
        with scratch.folder() as folder:
            packed = self.packed(job, Path(folder))
            yield from self.go(packed, Path(folder), elsewhere(shards), progress)

    def packed(self, job: Job[S, R], folder: Path) -> Packed[S, R]:
        """The job as its workers get it; its files are written into the folder."""
        content: Any = job.pack(folder) if isinstance(job, FileJob) else job
        if self._asked is None:
            self.workers = min(cores(), affordable(folder))
        return Packed(pickle.dumps((content, divided(self._threads, self.workers)), protocol=5))

    def go(
        self, job: Packed[S, R], folder: Path, shards: Iterable[S], progress: Progress | None
    ) -> Iterator[tuple[int, R]]:
        """The work itself. What workers leave behind lies in the folder."""
        with _Crew(self.workers, job.content, folder) as crew:
            yield from crew.work(shards, progress)


@dataclass(frozen=True)
class Packed(Generic[S, R]):
    """A job in the form that workers get."""

    content: bytes


def affordable(folder: Path) -> int:
    """How many workers memory allows: each has weights in its own layout beside those it maps."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if size == 0 or not hasattr(os, "sysconf"):
        return cores()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, memory // 2 // (2 * size))


class _Crew:
    """Workers, each with a thread of this process that hands it one shard after the other."""

    def __init__(self, size: int, job: bytes, folder: Path) -> None:
        self._size = size
        self._job = job
        self._folder = folder
        self._tasks: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[int, bytes | _Lost]] = queue.SimpleQueue()
        self._hands = [_Hand(self, number) for number in range(size)]
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._lock:
            self._over = True
        for hand in self._hands:
            self._tasks.put(None)
            hand.dismiss(at_once=kind is not None)
        for hand in self._hands:
            hand.leave()

    def work(self, shards: Iterable[S], progress: Progress | None) -> Iterator[tuple[int, Any]]:
        total = known_length(shards)
        stream = enumerate(shards)
        open_: dict[int, tuple[bytes, int]] = {}  # shards that are out, and how often they were given out
        done, more = 0, True
        while more or open_:
            while more and len(open_) < 2 * self._size:
                index, shard = next(stream, (-1, None))
                more = index >= 0
                if more:
                    open_[index] = (pickle.dumps(shard, protocol=5), 1)
                    self._give(index, open_[index][0])
            if not open_:
                return
            index, answer = self._answers.get()
            if isinstance(answer, _Lost):
                content, attempts = open_[index]
                answer.refuse(index, attempts)
                open_[index] = (content, attempts + 1)
                self._give(index, content)
                continue
            result = unpacked(answer)
            del open_[index]
            done += 1
            yield index, result
            if progress is not None:
                progress(done, total)

    def _give(self, index: int, shard: bytes) -> None:
        waiting = next((hand for hand in self._hands if not hand.is_alive()), None)
        if waiting is not None:
            waiting.start()
        self._tasks.put((index, shard))

    def start(self) -> subprocess.Popen[bytes]:
        """A new worker, which has been given the job."""
        with self._lock:
            if self._over:
                raise EOFError
            return subprocess.Popen(
                [sys.executable, "-c", _START.format(path=[str(entry) for entry in sys.path])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "TMPDIR": str(self._folder)},
                start_new_session=True,  # an interrupt from the keyboard is for the parent alone
            )

    def next_task(self) -> tuple[int, bytes] | None:
        return self._tasks.get()

    def answer(self, index: int, answer: bytes | _Lost) -> None:
        self._answers.put((index, answer))

    @property
    def job(self) -> bytes:
        return self._job


class _Lost:
    """A worker went while it had a shard."""

    def __init__(self, code: int | None) -> None:
        self._code = code

    def refuse(self, index: int, attempts: int) -> None:
        """Raise where the shard has been tried often enough."""
        if attempts >= ATTEMPTS:
            raise OctavoError(
                f"Worker processes were lost {attempts} times while they had shard {index} (the last one "
                f"ended with code {self._code}); if memory ran out, use fewer workers."
            )


class _Hand(threading.Thread):
    """One worker, and the thread that speaks with it; a lost worker is replaced for the next shard."""

    def __init__(self, crew: _Crew, number: int) -> None:
        super().__init__(name=f"octavo-worker-{number}", daemon=True)
        self._crew = crew
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        while (task := self._crew.next_task()) is not None:
            index, shard = task
            try:
                self._crew.answer(index, self._ask(shard))
            except (EOFError, OSError):
                self._crew.answer(index, _Lost(self._gone()))

    def _ask(self, shard: bytes) -> bytes:
        fresh = self._process is None
        process = self._process = self._process or self._crew.start()
        if process.stdin is None or process.stdout is None:
            raise EOFError
        if fresh:
            write_frame(process.stdin, self._crew.job)
        write_frame(process.stdin, shard)
        return read_frame(process.stdout)

    def _gone(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        _close(process)
        return process.wait()

    def dismiss(self, at_once: bool) -> None:
        """Tell the worker to go."""
        process = self._process
        if process is not None and at_once:
            process.kill()
        elif process is not None and process.stdin is not None and not process.stdin.closed:
            process.stdin.close()

    def leave(self) -> None:
        """Wait until the worker is gone."""
        process = self._process
        if process is not None:
            try:
                process.wait(_PARTING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.is_alive():
            self.join()
        if process is not None:
            _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # what could not be sent any more
                continue
