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
import socket
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from octavo.calibration.engines.engine import ATTEMPTS, FileJob, Job, Progress, R, S, elsewhere, known_length
from octavo.calibration.engines.luggage import Luggage, open_luggage
from octavo.calibration.engines.worker import raised, unpacked
from octavo.core import scratch
from octavo.errors import OctavoError, RecipeError

_GUESS = 64  # workers of a cluster
_PATIENCE = 10.0  # seconds for a cluster to answer
_PARTING = 5.0  # seconds for the actors to leave


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RecipeError(
            "The engine 'ray' needs Ray, which is not installed: pip install octavo[ray]."
        ) from error
    return ray


@dataclass
class RayEngine:
    """The engine of Ray actors.

    ``address`` is that of a cluster (``auto``: the one this machine belongs to); without, and without
    ``RAY_ADDRESS``, Ray is started on this machine alone, on loopback, and ended afterwards. ``threads`` are
    those of each worker.
    """

    asked: int | None = None
    address: str | None = None
    threads: int | None = None
    name: ClassVar[str] = "ray"

    @property
    def workers(self) -> int:
        """As many as were asked for; before Ray is asked what it has room for, a guess."""
        ray: Any = sys.modules.get("ray")
        return self._shares(ray)[0] if ray is not None and ray.is_initialized() else self.asked or _GUESS

    def map(
        self, job: Job[S, R], shards: Iterable[S], *, progress: Progress | None = None
    ) -> Iterator[tuple[int, R]]:
        """See :class:`Engine`."""
        with _connected(self.address) as ray, scratch.folder() as folder:
            packed: Any = job.pack(Path(folder)) if isinstance(job, FileJob) else job
            workers, processors, threads = self._shares(ray)
            luggage = Luggage.of(Path(folder), uuid.uuid4().hex, ray.put)
            arguments = (pickle.dumps(packed, protocol=5), luggage, threads)
            with contextlib.closing(_Crew(ray, workers, processors, arguments)) as crew:
                yield from crew.work(elsewhere(shards), progress)

    def held(self) -> contextlib.AbstractContextManager[Any]:
        """Ray, connected for all maps within: one on this machine takes seconds to start."""
        return _connected(self.address)

    def _shares(self, ray: Any) -> tuple[int, float, int]:
        """Workers, and for each its processors and its threads."""
        total = float(ray.cluster_resources().get("CPU", 1))
        workers = self.asked or max(1, int(total // (self.threads or 1)))
        share = total / workers
        processors = min(self.threads or share, share)
        return workers, processors if processors < 1 else int(processors), self.threads or max(1, int(share))


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Ray, connected; what was connected before stays so."""
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    if where == "local" and "ray" not in sys.modules:
        _stay_alone()
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    alone: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    options = alone if where == "local" else {}
    _knock(where)
    try:
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _nobody(where, error) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Find out at once whether anybody listens: Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except OSError as error:
        raise _nobody(address, error) from error


def _nobody(address: str, error: Exception) -> OctavoError:
    reason = str(error).strip().split("\n")[0]
    return OctavoError(
        f"There is no Ray cluster to connect to at {address!r} ({reason}); check the address, and that the "
        "cluster runs the same version of Ray and knows the same token."
    )


def _stay_alone() -> None:
    """Settings of a Ray on this machine alone, read when Ray is imported: loopback, and a token."""
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


class _Actor:
    """A worker: opens the job with its first shard."""

    def __init__(self, job: bytes, luggage: Luggage, threads: int) -> None:
        self._job = job
        self._luggage = luggage
        self._threads = threads
        self._open = contextlib.ExitStack()
        self._do: Any = None

    def ready(self) -> None:
        """Answered as soon as the worker runs."""

    def do(self, shard: Any) -> bytes:
        """One shard; what is raised is sent, too."""
        try:
            if self._do is None:
                job = pickle.loads(self._job)
                folder = self._open.enter_context(open_luggage(self._luggage, _ray().get))
                job = job.at(folder) if isinstance(job, FileJob) else job
                self._do = self._open.enter_context(job.open(self._threads))
            return pickle.dumps((True, self._do(shard)), protocol=5)
        except Exception as error:
            return raised(error)

    def leave(self) -> None:
        """Close the session and remove what was copied."""
        self._open.close()


@dataclass
class _Crew:
    """The actors, and what each of them is at."""

    ray: Any
    size: int
    processors: float
    arguments: tuple[Any, ...]
    actors: list[Any] = field(default_factory=list)
    calls: dict[Any, tuple[Any, int | None]] = field(default_factory=dict)  # reference → actor, shard
    unborn: int = 0  # actors lost in a row before they had a shard
    last: Exception | None = None

    def hire(self) -> None:
        """Ask Ray for one more actor; it gets a shard when it says that it runs."""
        actor = (
            self.ray.remote(_Actor).options(num_cpus=self.processors, max_restarts=0).remote(*self.arguments)
        )
        self.actors.append(actor)
        self.calls[actor.ready.remote()] = (actor, None)

    def work(self, shards: Iterable[S], progress: Progress | None) -> Iterator[tuple[int, Any]]:
        total, stream = known_length(shards), enumerate(shards)
        again: list[int] = []
        open_: dict[int, tuple[Any, int]] = {}  # shards that are out, and how often they were given out
        done, more = 0, True
        for _ in range(self.size if total is None else min(self.size, total)):
            self.hire()
        while more or open_:
            (reference, *_), _ = self.ray.wait(list(self.calls))
            actor, index = self.calls.pop(reference)
            answer = self._answer(reference)
            if answer is None:
                self._lost(actor, index, open_)
                if index is not None:
                    again.append(index)
                continue
            if not again and more:
                number, shard = next(stream, (-1, None))
                more = number >= 0
                if more:
                    open_[number] = (self.ray.put(shard), 0)
                    again.append(number)
            if again:
                self._give(actor, again.pop(), open_)
            if index is not None:
                result = unpacked(answer)
                del open_[index]
                done += 1
                yield index, result
                if progress is not None:
                    progress(done, total)

    def _give(self, actor: Any, index: int, open_: dict[int, tuple[Any, int]]) -> None:
        shard, attempts = open_[index]
        open_[index] = (shard, attempts + 1)
        self.calls[actor.do.remote(shard)] = (actor, index)

    def _answer(self, reference: Any) -> Any:
        """What an actor answered; None where it is lost. A sign of life is an empty answer."""
        try:
            return self.ray.get(reference) or b""
        except self.ray.exceptions.RayError as error:
            self.last = error
            return None

    def _lost(self, actor: Any, index: int | None, open_: dict[int, tuple[Any, int]]) -> None:
        """Have the actor replaced, unless it is one too many."""
        self.unborn = self.unborn + 1 if index is None else 0
        if self.unborn >= ATTEMPTS or (index is not None and open_[index][1] >= ATTEMPTS):
            what = "started" if index is None else f"kept while they had shard {index}"
            reason = str(self.last).strip().split("\n")[0]
            raise OctavoError(
                f"Ray workers could not be {what}, {ATTEMPTS} times ({reason}); octavo has to be installed "
                "on every node, and if memory ran out, use fewer workers."
            )
        self.actors.remove(actor)
        self.hire()

    def close(self) -> None:
        """End the actors; those that can still hear it clean up first."""
        leaving = [actor.leave.remote() for actor in self.actors]
        if leaving:
            self.ray.wait(leaving, num_returns=len(leaving), timeout=_PARTING)
        for actor in self.actors:
            self.ray.kill(actor)
