"""What an engine is: something that maps a job over shards of work, wherever the work is done.

A *job* knows how to do a shard; a *shard* says which part of the work it is; an *engine* has the workers.
Each worker opens the job once (that loads a session) and then takes shard after shard. Results come back in
the order in which they arrive, each shard's exactly once: a worker that is lost is replaced, and what it had
not finished is done again. A caller who merges results exactly gets the same bits from every engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from octavo.errors import RecipeError, closest

S = TypeVar("S")
R = TypeVar("R")
S_contra = TypeVar("S_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

Progress: TypeAlias = Callable[[int, int | None], None]

ENGINES = ("auto", "serial", "processes", "ray")
ATTEMPTS = 3  # times that a shard is tried when workers are lost with it


class Job(Protocol[S_contra, R_co]):
    """Work that is done shard by shard; other processes get it pickled."""

    def open(self, threads: int | None) -> AbstractContextManager[Callable[[S_contra], R_co]]:
        """Load what the work needs, once in each worker; what is given does one shard.

        ``threads`` is the worker's share of the machine, None all of it.
        """
        ...


@runtime_checkable
class FileJob(Protocol):
    """A job that leaves what is large (a model) in files, which other processes and machines read."""

    def pack(self, folder: Path) -> Any:
        """Write the files into a folder; returns the job that reads them there, which can be pickled."""
        ...

    def at(self, folder: Path) -> Any:
        """The packed job where its folder was copied to this place, perhaps on another machine."""
        ...


def elsewhere(shards: Iterable[S]) -> Iterable[S]:
    """The shards for workers in other processes: those that are drawn for this one may have another form."""
    change = getattr(shards, "elsewhere", None)
    return shards if change is None else change()


class Engine(Protocol):
    """Workers that do the shards of a job."""

    @property
    def name(self) -> str:
        """The name by which it is asked for."""
        ...

    @property
    def workers(self) -> int:
        """How many shards are done at the same time."""
        ...

    def map(
        self, job: Job[S, R], shards: Iterable[S], *, progress: Progress | None = None
    ) -> Iterator[tuple[int, R]]:
        """``(index of the shard, its result)`` in the order of arrival, each index exactly once.

        Shards are drawn a few ahead of the work, never all at once. ``progress`` gets the number of shards
        that are done and of all, if known. What a job raises is raised here as it is. Closing the iterator
        ends the workers. In this process a shard is done before the next is drawn.
        """
        ...


def held(engine: Engine) -> AbstractContextManager[Any]:
    """Keep what an engine works with (a connection) for all maps within, where it has such a thing."""
    hold = getattr(engine, "held", None)
    return nullcontext() if hold is None else hold()


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def divided(threads: int | None, workers: int) -> int:
    """The threads of each worker, where all of them share these (None: the machine's cores)."""
    return max(1, (threads or cores()) // workers)


def known_length(shards: Iterable[object]) -> int | None:
    """The number of shards, where they say so before they are drawn."""
    try:
        return len(shards)  # type: ignore[arg-type]
    except TypeError:
        return None


def engine_of(
    engine: str | Engine = "auto",
    workers: int | None = None,
    address: str | None = None,
    threads: int | None = None,
) -> Engine:
    """The engine that goes by a name; one that is given as an object is taken as it is.

    ``auto`` begins in this process and goes on in several where the rest of the work is worth starting them.
    ``threads`` are the threads of all workers on this machine together; in Ray, of each worker.
    """
    if not isinstance(engine, str):
        return engine
    if engine not in ENGINES:
        raise RecipeError(
            f"There is no engine {engine!r}{closest(engine, ENGINES) or ';'} "
            f"The engines are {', '.join(ENGINES)}."
        )
    if workers is not None and workers < 1:
        raise RecipeError(f"{workers} workers can't do anything; ask for 1 or more.")
    if address is not None and engine != "ray":
        raise RecipeError(f"An address is for the engine 'ray', and {engine!r} was asked for; choose one.")
    match engine:
        case "ray":
            from octavo.calibration.engines.ray import RayEngine

            return RayEngine(workers, address, threads)
        case "processes":
            from octavo.calibration.engines.processes import Processes

            return Processes(workers, threads)
        case "auto" if min(workers or cores(), threads or cores()) > 1:
            from octavo.calibration.engines.auto import Auto

            return Auto(workers, threads)
        case _:
            from octavo.calibration.engines.serial import Serial

            return Serial(threads)
