"""One shard after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from octavo.calibration.engines.engine import Job, Progress, R, S, known_length


@dataclass(frozen=True)
class Serial:
    """The engine without workers: this process does it all, with all threads."""

    threads: int | None = None
    name: ClassVar[str] = "serial"
    workers: ClassVar[int] = 1

    def map(
        self, job: Job[S, R], shards: Iterable[S], *, progress: Progress | None = None
    ) -> Iterator[tuple[int, R]]:
        """See :class:`Engine`."""
        total = known_length(shards)
        with job.open(self.threads) as do:
            for index, shard in enumerate(shards):
                yield index, do(shard)
                if progress is not None:
                    progress(index + 1, total)
