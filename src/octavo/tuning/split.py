"""Data in two parts: one for calibration, one for judging trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from octavo.data.feeds import Feeds
from octavo.data.fingerprints import FingerprintedSamples
from octavo.errors import DataError
from octavo.model.runtime.samples import sample_inputs, specs_of

Feed = Mapping[str, npt.NDArray[Any]]

HELD_BACK = 64  # samples at most, a quarter of the data at most
_MADE = 2  # samples that are made up where there are none


class Part:
    """Some of the samples, as data that can be gone through again and again."""

    def __init__(self, feeds: Feeds, stop: int) -> None:
        self._feeds, self._stop = feeds, stop

    def __len__(self) -> int:
        return self._stop

    def __iter__(self) -> Iterator[Feed]:
        return self._feeds.portion(0, self._stop)


@dataclass(frozen=True)
class Split:
    """Data to calibrate with, and samples that were held back."""

    calibration: Part | None
    held: Sequence[Feed]
    notes: tuple[str, ...] = ()  # about the data
    unseen: int = 0  # how many of those held back calibration has not seen

    @classmethod
    def of(cls, data: Any, model: ir.Model, samples: int | None) -> Split:
        """A quarter of the samples is held back; without data, two are made from the model's inputs."""
        specs = specs_of(model)
        if data is None:
            return cls(None, [sample_inputs(specs, seed=seed) for seed in range(_MADE)])
        feeds = FingerprintedSamples.of(data, model, limit=samples)
        notes: tuple[str, ...] = ()
        if feeds.length is None:
            listed = list(feeds)
            notes = feeds.notes
            feeds = FingerprintedSamples(listed, specs)
        else:
            feeds.peek()
            notes = feeds.notes
        total = len(feeds)
        if not total:
            raise DataError("There is no sample to calibrate with; give at least one, better some dozens.")
        if total == 1:
            once = "there is only one sample: trials were calibrated and judged with the same one"
            return cls(Part(feeds, 1), list(feeds.portion(0, 1)), (*notes, once))
        count = max(1, min(HELD_BACK, total // 4))
        return cls(Part(feeds, total - count), list(feeds.portion(total - count, total)), notes, count)
