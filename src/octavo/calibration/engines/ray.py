"""A Ray cluster: one actor for each worker, wherever Ray puts it.

The job's files go into Ray's object store, which brings them to each node once; there they are written to a
folder that all actors of the node read. Where the caller's own folder can be seen, nothing is copied. Actors
that are lost (a node goes, memory runs out) are replaced, and their shards given out again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import secrets
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from octavo.calibration.engines.protocol import (
    ATTEMPTS,
    FileJob,
    Job,
    R,
    S,
    for_other_processes,
    known_length,
    packed,
)
from octavo.calibration.engines.worker import raised, unpacked
from octavo.core import scratch
from octavo.errors import OctavoError, RecipeError

# ---- The files of a job on other machines: written once on each, read by all workers there

_MARK = "octavo.job"  # the file that says whose files a folder holds, written when they are complete


@dataclass(frozen=True)
class JobFiles:
    """A folder as it was packed, and where the content of its files can be had elsewhere."""

    folder: Path
    token: str
    files: Mapping[str, Any]  # file name → what the store gave for its content

    @classmethod
    def of(cls, folder: Path, token: str, put: Callable[[Any], Any]) -> JobFiles:
        """Put the files of a folder into a store; their content is mapped, not read."""
        files = {
            file.name: put(np.memmap(file, np.uint8, "r") if file.stat().st_size else np.empty(0, np.uint8))
            for file in sorted(folder.iterdir())
        }
        (folder / _MARK).write_text(token)
        return cls(folder, token, files)

    @contextlib.contextmanager
    def open(self, get: Callable[[Any], Any]) -> Iterator[Path]:
        """Give the folder with the files: the packed one where this machine sees it, else a copy."""
        if self._are_in(self.folder):
            yield self.folder
            return
        folder = Path(tempfile.gettempdir()) / f"octavo-{self.token}"
        lock = folder.with_suffix(".lock")
        try:
            with _locked(lock):
                if not self._are_in(folder):
                    self._write(folder, get)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)

    def _are_in(self, folder: Path) -> bool:
        try:
            return (folder / _MARK).read_text() == self.token
        except OSError:
            return False

    def _write(self, folder: Path, get: Callable[[Any], Any]) -> None:
        """Write the files; the mark comes last, so that a folder that has it is complete."""
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, content in self.files.items():
            with (folder / name).open("wb") as file:
                file.write(memoryview(get(content)))
        (folder / _MARK).write_text(self.token)


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Let only one worker of a machine in at a time; the lock goes with its process."""
    try:
        import fcntl
    except ImportError:  # no such locks: workers may write the same content over each other's
        yield
        return
    handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


_LIKELY_WORKERS = 64  # of a cluster, before Ray can tell
_TIMEOUT = 10.0  # seconds for a cluster to answer
_GOODBYE = 5.0  # seconds for the actors to clean up


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RecipeError("The engine 'ray' needs Ray: pip install 'octavo[ray]'.") from error
    return ray


@dataclass
class RayEngine:
    """The engine of Ray actors.

    ``address`` is that of a cluster (``auto``: the one this machine belongs to); without, and without
    ``RAY_ADDRESS``, Ray is started on this machine alone, on loopback, and ended afterwards. ``threads`` are
    those of each worker.
    """

    given: int | None = None  # workers
    address: str | None = None
    threads: int | None = None
    name: ClassVar[str] = "ray"

    @property
    def workers(self) -> int:
        """As many as were given, else as Ray has room for; a likely number before it is connected."""
        ray: Any = sys.modules.get("ray")
        return (
            self._shares(ray)[0]
            if ray is not None and ray.is_initialized()
            else self.given or _LIKELY_WORKERS
        )

    def map(self, job: Job[S, R], shards: Iterable[S]) -> Iterator[tuple[int, R]]:
        """See :class:`Engine`."""
        with _connected(self.address) as ray, scratch.folder() as folder:
            content = pickle.dumps(packed(job, Path(folder)), protocol=5)
            workers, processors, threads = self._shares(ray)
            files = JobFiles.of(Path(folder), uuid.uuid4().hex, ray.put)
            with contextlib.closing(_Actors(ray, workers, processors, (content, files, threads))) as actors:
                yield from actors.map(for_other_processes(shards))

    def held(self) -> contextlib.AbstractContextManager[Any]:
        """Keep Ray connected for all maps within: one on this machine takes seconds to start."""
        return _connected(self.address)

    def _shares(self, ray: Any) -> tuple[int, float, int]:
        """Return the number of workers, and for each its processors and its threads."""
        total = float(ray.cluster_resources().get("CPU", 1))
        workers = self.given or max(1, int(total // (self.threads or 1)))
        share = total / workers
        processors = min(self.threads or share, share)
        return workers, processors if processors < 1 else int(processors), self.threads or max(1, int(share))


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Connect to Ray; what was connected before stays so."""
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    if where == "local" and "ray" not in sys.modules:
        _restrict_to_this_machine()
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    alone: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    options = alone if where == "local" else {}
    _check_listening(where)
    try:
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises all kinds, plain Exception where a node takes too long to start
        raise _no_cluster(where, error) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_listening(address: str) -> None:
    """Find out at once whether a cluster listens: Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), _TIMEOUT).close()
    except OSError as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> OctavoError:
    reason = str(error).strip().split("\n")[0]
    if address == "local":
        return OctavoError(f"Ray could not be started on this machine ({reason}); try again with less load.")
    return OctavoError(
        f"There is no Ray cluster to connect to at {address!r} ({reason}); check the address, and that the "
        "cluster runs the same version of Ray and knows the same token."
    )


def _restrict_to_this_machine() -> None:
    """Set what Ray reads when it is imported, for one on this machine alone: loopback, and a token."""
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


class _Actor:
    """A worker: opens the job with its first shard."""

    def __init__(self, job: bytes, files: JobFiles, threads: int) -> None:
        self._job, self._files, self._threads = job, files, threads
        self._open = contextlib.ExitStack()
        self._do: Any = None

    def ready(self) -> None:
        """Return as soon as the worker runs."""

    def do(self, shard: Any) -> bytes:
        """Do one shard; what is raised is returned, too."""
        try:
            if self._do is None:
                job = pickle.loads(self._job)
                folder = self._open.enter_context(self._files.open(_ray().get))
                job = job.at(folder) if isinstance(job, FileJob) else job
                self._do = self._open.enter_context(job.open(self._threads))
            return pickle.dumps((True, self._do(shard)), protocol=5)
        except Exception as error:
            return raised(error)

    def leave(self) -> None:
        """Close the session and remove what was copied."""
        self._open.close()


@dataclass
class _Actors:
    """The actors, and what each of them does."""

    ray: Any
    size: int
    processors: float
    arguments: tuple[Any, ...]
    actors: list[Any] = field(default_factory=list)
    calls: dict[Any, tuple[Any, int | None]] = field(default_factory=dict)  # reference → actor, shard
    out: dict[int, tuple[Any, int]] = field(default_factory=dict)  # shards that are out, and their attempts
    failed_starts: int = 0  # actors lost in a row before they had a shard
    last_error: Exception | None = None

    def map(self, shards: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Give the results of the shards as they arrive; an actor gets the next shard when it is idle."""
        total, stream = known_length(shards), enumerate(shards)
        waiting: list[int] = []
        more = True
        for _ in range(self.size if total is None else min(self.size, total)):
            self._start()
        while more or self.out:
            (reference, *_), _ = self.ray.wait(list(self.calls))
            actor, index = self.calls.pop(reference)
            answer = self._answer(reference)
            if answer is None:
                self._replace(actor, index)
                if index is not None:
                    waiting.append(index)
                continue
            if not waiting and more:
                number, shard = next(stream, (-1, None))
                more = number >= 0
                if more:
                    self.out[number] = (self.ray.put(shard), 0)
                    waiting.append(number)
            if waiting:
                self._give(actor, waiting.pop())
            if index is not None:
                del self.out[index]
                yield index, unpacked(answer)

    def _start(self) -> None:
        """Start one more actor; it gets a shard when it says that it runs."""
        actor = (
            self.ray.remote(_Actor).options(num_cpus=self.processors, max_restarts=0).remote(*self.arguments)
        )
        self.actors.append(actor)
        self.calls[actor.ready.remote()] = (actor, None)

    def _give(self, actor: Any, index: int) -> None:
        shard, attempts = self.out[index]
        self.out[index] = (shard, attempts + 1)
        self.calls[actor.do.remote(shard)] = (actor, index)

    def _answer(self, reference: Any) -> Any:
        """Return the answer of an actor, empty where it only says that it runs; None where it is lost."""
        try:
            return self.ray.get(reference) or b""
        except self.ray.exceptions.RayError as error:
            self.last_error = error
            return None

    def _replace(self, actor: Any, index: int | None) -> None:
        """Replace a lost actor, unless too many were lost."""
        self.failed_starts = self.failed_starts + 1 if index is None else 0
        if self.failed_starts >= ATTEMPTS or (index is not None and self.out[index][1] >= ATTEMPTS):
            what = "could not be started" if index is None else f"were lost while they had shard {index}"
            reason = str(self.last_error).strip().split("\n")[0]
            raise OctavoError(
                f"Ray workers {what}, {ATTEMPTS} times ({reason}); octavo must be installed on every node, "
                "and "
                "if memory ran out, use fewer workers."
            )
        self.actors.remove(actor)
        self._start()

    def close(self) -> None:
        """End the actors; those that still run clean up first."""
        leaving = [actor.leave.remote() for actor in self.actors]
        if leaving:
            self.ray.wait(leaving, num_returns=len(leaving), timeout=_GOODBYE)
        for actor in self.actors:
            self.ray.kill(actor)
