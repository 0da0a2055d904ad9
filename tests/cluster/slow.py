"""Data that takes its time, and notes which samples were read by whom."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from octavo.data.source import Specs


class Slow:
    """Random samples that can be read anywhere; each takes some seconds and leaves a line in the log.

    It is no dataclass: a checkpoint would know the data by its fields, and the log grows.
    """

    def __init__(self, log: Path, length: int = 90, seconds: float = 0.15) -> None:
        self.log, self.length, self.seconds = log, length, seconds

    def for_inputs(self, specs: Specs) -> Slow:
        """Return the samples, which are made for one model."""
        return self

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[dict[str, np.ndarray]]:
        """Give samples by index."""
        for index in range(first, self.length if stop is None else min(stop, self.length)):
            time.sleep(self.seconds)
            with self.log.open("a") as file:
                file.write(f"{index} {os.getpid()}\n")
            yield {"x": np.random.default_rng(index).normal(size=(1, 8, 8, 8)).astype(np.float32)}

    def read(self) -> list[tuple[int, int]]:
        """The samples that were read so far, with the processes that read them."""
        if not self.log.exists():
            return []
        lines = (line.split() for line in self.log.read_text().splitlines())
        return [(int(words[0]), int(words[1])) for words in lines if len(words) == 2]
