"""One shard after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from octavo.calibration.engines.protocol import Job, R, S


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
