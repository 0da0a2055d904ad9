"""What an engine is: something that maps a job over shards of work, wherever the work is done.

A *job* knows how to do a shard; a *shard* says which part of the work it is; an *engine* has the workers.
Each worker opens the job once (that loads a session) and then does shard after shard. Results come back in
the order in which they arrive, each shard's exactly once: a worker that is lost is replaced, and what it had
not finished is done again. A caller who merges results exactly gets the same bits from every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from octavo.core.cpu import cores

S = TypeVar("S")
R = TypeVar("R")
S_contra = TypeVar("S_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

ATTEMPTS = 3  # times that a shard is tried when workers are lost with it


class Job(Protocol[S_contra, R_co]):
    """Work that is done shard by shard; other processes get it pickled."""

    def open(self, threads: int | None) -> AbstractContextManager[Callable[[S_contra], R_co]]:
        """Load what the work needs, once in each worker, and give the function that does one shard.

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
        """Return the packed job for where its folder was copied to, perhaps on another machine."""
        ...


class Engine(Protocol):
    """Workers that do the shards of a job."""

    @property
    def name(self) -> str:
        """Return the name by which it is chosen."""
        ...

    @property
    def workers(self) -> int:
        """Return how many shards are done at the same time."""
        ...

    def map(self, job: Job[S, R], shards: Iterable[S]) -> Iterator[tuple[int, R]]:
        """Give ``(index of the shard, its result)`` in the order of arrival, each index exactly once.

        Shards are drawn a few ahead of the work, never all at once. What a job raises is raised here as it
        is. Closing the iterator ends the workers. In this process a shard is done before the next is drawn.
        """
        ...


def packed(job: Job[S, R], folder: Path) -> Any:
    """Return the job as other processes get it; its files are written into the folder."""
    return job.pack(folder) if isinstance(job, FileJob) else job


def for_other_processes(shards: Iterable[S]) -> Iterable[S]:
    """Return the shards for workers in other processes, which may differ from those drawn for this one."""
    change = getattr(shards, "elsewhere", None)
    return shards if change is None else change()


def held(engine: Engine) -> AbstractContextManager[Any]:
    """Keep what an engine works with (a connection) for all maps within, where it has such a thing."""
    hold = getattr(engine, "held", None)
    return nullcontext() if hold is None else hold()


def threads_each(threads: int | None, workers: int) -> int:
    """Return the threads of each worker, where all of them share these (None: the machine's cores)."""
    return max(1, (threads or cores()) // workers)


def known_length(shards: Iterable[object]) -> int | None:
    """Return the number of shards, where they can tell before they are drawn."""
    try:
        return len(shards)  # type: ignore[arg-type]
    except TypeError:
        return None


# ---- One shard after the other, in this process


@dataclass(frozen=True)
class Serial:
    """The engine without workers: this process does it all, with all threads."""

    threads: int | None = None
    name: ClassVar[str] = "serial"
    workers: ClassVar[int] = 1

    def map(self, job: Job[S, R], shards: Iterable[S]) -> Iterator[tuple[int, R]]:
        """See :class:`Engine`."""
        with job.open(self.threads) as do:
            for index, shard in enumerate(shards):
                yield index, do(shard)
