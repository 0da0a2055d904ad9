"""Data in two parts: one for calibration, one for judging trials.

What is held back is spread evenly over the data. Data often has an order, by class, by source or by time: the
last samples would be of a kind that calibration has not seen, and the result would never see it either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from octavo.data.feeds import Feeds, copied
from octavo.data.fingerprints import FingerprintedSamples
from octavo.errors import DataError
from octavo.model.runtime.samples import sample_inputs, specs_of

Feed = Mapping[str, npt.NDArray[Any]]

HELD_BACK = 64  # samples at most, a quarter of the data at most
_MADE = 2  # samples that are made up where there are none


class Part:
    """The samples that are not held back, as data that can be gone through again and again."""

    def __init__(self, feeds: Feeds, held: Collection[int] = ()) -> None:
        self._feeds, self._held = feeds, frozenset(held)

    def __len__(self) -> int:
        return len(self._feeds) - len(self._held)

    def __iter__(self) -> Iterator[Feed]:
        samples = self._feeds.portion(0, len(self._feeds))
        return (sample for index, sample in enumerate(samples) if index not in self._held)


@dataclass(frozen=True)
class Split:
    """Data to calibrate with, and samples that were held back."""

    calibration: Part | None
    held: Sequence[Feed]
    notes: tuple[str, ...] = ()  # about the data
    unseen: int = 0  # how many of those held back calibration has not seen

    @classmethod
    def of(cls, data: Any, model: ir.Model, samples: int | None) -> Split:
        """A quarter of the samples is held back, evenly spread; without data, two are made up."""
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
            return cls(Part(feeds), list(feeds.portion(0, 1)), (*notes, once))
        count = max(1, min(HELD_BACK, total // 4))
        held = {(2 * number + 1) * total // (2 * count) for number in range(count)}
        kept = [copied(one) for index, one in enumerate(feeds.portion(0, total)) if index in held]
        return cls(Part(feeds, held), kept, notes, count)
