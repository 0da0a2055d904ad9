"""The work of one worker: open the models once, then turn batches into rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from octavo.evaluation.task import Batch, PairReading, Reading
from octavo.model.session import Session

Rows = list[Sequence[Any]]  # for each model, a row for each sample


@dataclass(frozen=True)
class Inference:
    """Run models on batches. With ``pair`` the second model is what the first is held against."""

    models: tuple[Path, ...]
    reading: Reading
    pair: bool = False
    custom_ops: tuple[str, ...] = ()

    @contextlib.contextmanager
    def open(self, threads: int | None) -> Iterator[Callable[[Batch], Rows]]:
        """Load the models; gives a function from a batch to its rows."""
        sessions = [
            Session.open(path, threads=threads or None, custom_ops=self.custom_ops) for path in self.models
        ]

        def answer(batch: Batch) -> Rows:
            feed = self.reading.feed(batch)
            outputs = [session.run(feed) for session in sessions]
            if self.pair:
                return [cast(PairReading, self.reading).pair_rows(outputs[0], outputs[1], batch)]
            return [self.reading.rows(one, batch, feed) for one in outputs]

        yield answer
