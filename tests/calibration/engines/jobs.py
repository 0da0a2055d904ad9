"""Jobs and engines of the tests."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo.calibration.engines.protocol import Serial
from octavo.errors import DataError


@dataclass(frozen=True)
class Square:
    """The square of each shard; later shards are faster, so that they overtake earlier ones."""

    pause: float = 0.0

    @contextlib.contextmanager
    def open(self, threads: int | None) -> Iterator[Callable[[int], tuple[int, int, int | None]]]:
        def do(shard: int) -> tuple[int, int, int | None]:
            time.sleep(self.pause / (1 + shard))
            return shard * shard, os.getpid(), threads

        yield do


@dataclass(frozen=True)
class Deadly:
    """A job whose worker is killed on one shard: the first time, or every time."""

    shard: int
    mark: Path
    always: bool = False

    @contextlib.contextmanager
    def open(self, threads: int | None) -> Iterator[Callable[[int], int]]:
        def do(shard: int) -> int:
            if shard == self.shard and (self.always or not self.mark.exists()):
                self.mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return shard * shard

        yield do


@dataclass(frozen=True)
class Refusing:
    """A job that raises: on one shard, or when it is opened."""

    shard: int | None
    error: type[Exception] = DataError

    @contextlib.contextmanager
    def open(self, threads: int | None) -> Iterator[Callable[[int], int]]:
        if self.shard is None:
            raise self.error("can't be opened.")

        def do(shard: int) -> int:
            if shard == self.shard:
                raise self.error(f"shard {shard} is bad.")
            return shard

        yield do


@dataclass(frozen=True)
class Packing:
    """A job that reads its number from a file."""

    number: int
    folder: Path | None = None

    def pack(self, folder: Path) -> Packing:
        (folder / "number").write_text(str(self.number))
        return Packing(0, folder)

    def at(self, folder: Path) -> Packing:
        return Packing(0, folder)

    @contextlib.contextmanager
    def open(self, threads: int | None) -> Iterator[Callable[[int], tuple[int, str]]]:
        number = int((self.folder / "number").read_text()) if self.folder is not None else self.number
        yield lambda shard: (number + shard, str(self.folder))


@dataclass(frozen=True, eq=False)
class Fragile:
    """Another job, whose worker is killed once, on the first shard after this many."""

    job: Any
    after: int
    mark: Path

    def pack(self, folder: Path) -> Fragile:
        return replace(self, job=self.job.pack(folder))

    def at(self, folder: Path) -> Fragile:
        return replace(self, job=self.job.at(folder))

    @contextlib.contextmanager
    def open(self, threads: int | None) -> Iterator[Callable[[Any], Any]]:
        with self.job.open(threads) as do:
            seen = itertools.count()

            def one(shard: Any) -> Any:
                if next(seen) == self.after and not self.mark.exists():
                    self.mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return do(shard)

            yield one


@dataclass(frozen=True)
class Killing:
    """An engine one of whose workers is killed on the way."""

    engine: Any
    mark: Path
    name: str = "killing"

    @property
    def workers(self) -> int:
        return int(self.engine.workers)

    def map(self, job: Any, shards: Any) -> Iterator[tuple[int, Any]]:
        yield from self.engine.map(Fragile(job, 1, self.mark), shards)


@dataclass(frozen=True)
class Shuffled:
    """An engine whose results arrive in a random order."""

    seed: int
    workers: int = 3
    name: str = "shuffled"

    def map(self, job: Any, shards: Any) -> Iterator[tuple[int, Any]]:
        results = list(Serial().map(job, shards))
        random.Random(self.seed).shuffle(results)
        yield from results
