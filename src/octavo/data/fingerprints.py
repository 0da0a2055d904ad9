"""Fingerprinted samples: while they are iterated over, their content is fingerprinted and looked at.

The fingerprint of data is the sum of a number for each sample and its index, so that it is the same in
whatever order and by whatever worker the samples are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core.origin import MODULUS
from octavo.data.feeds import MAX_UNCOUNTED, Data, Feeds, copied
from octavo.data.plausibility import LOOKED_AT, Plausibility, inputs_near_one
from octavo.data.readers.array_samples import is_batch
from octavo.data.source import Specs
from octavo.model.runtime.samples import specs_of


class FingerprintedSamples(Feeds):
    """Feeds that keep, while they are iterated over, the first sample and a fingerprint of all.

    ``near_one`` are the inputs that expect values near 1 (:func:`~.plausibility.inputs_near_one`).
    """

    def __init__(
        self, data: Data, specs: Specs, *, limit: int | None = None, near_one: Collection[str] = ()
    ) -> None:
        super().__init__(data, specs, limit=limit)
        self.first: dict[str, npt.NDArray[Any]] | None = None
        self.fingerprint: str | None = None
        self._plausibility = Plausibility(specs, near_one)
        self._count: int | None = None
        self.digests: list[bytes] = []  # of the samples that the pass has given so far

    @classmethod
    def of(cls, data: Data, model: ir.Model, *, limit: int | None = None) -> FingerprintedSamples:
        """Return the samples of data for a model."""
        return cls(data, specs_of(model), limit=limit, near_one=inputs_near_one(model))

    def __iter__(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        digests = self.digests = []
        for index, sample in enumerate(super().__iter__()):
            digests.append(self._look(index, sample))
            yield sample
        self._count = len(digests)
        self.fingerprint = fingerprint(digests)

    def peek(self) -> None:
        """Look at the first samples without a pass, where other processes do the work.

        Of data that can be iterated over only once this takes the samples away.
        """
        for index, sample in enumerate(self.portion(0, LOOKED_AT)):
            self._look(index, sample)

    def has(self, count: int) -> bool:
        """Whether there are at least so many samples; data that can't be counted is taken to have them.

        A feed counts as many samples as its batch has.
        """
        there = getattr(self.source, "sample_count", None)
        if there is None:
            there = self.length
        if self.can_repeat and (there is None or there < count):
            there = 0
            for feed in self.portion(0, count):
                there += self._batch(feed)
                if there >= count:
                    break
        return there is None or there >= count

    def _batch(self, feed: Mapping[str, npt.NDArray[Any]]) -> int:
        """Return the samples in a feed: more than one where the model leaves the size of a batch open."""
        shapes = {name: array.shape for name, array in feed.items()}
        is_whole = all(spec.name in shapes for spec in self._specs)
        if not self._specs or not is_whole or not is_batch(shapes, self._specs):
            return 1
        return max(1, int(shapes[self._specs[0].name][0]))

    def _look(self, index: int, sample: dict[str, npt.NDArray[Any]]) -> bytes:
        found = digest(sample)
        if self.first is None:
            self.first = copied(sample)
        if index == self._plausibility.samples:
            self._plausibility.add(sample, found)
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences about the data: the notes of its source, its number, and what looks wrong."""
        return (*getattr(self.source, "notes", ()), *self._number(), *self._plausibility.warnings())

    def _number(self) -> tuple[str, ...]:
        if self.cut_short:
            return (
                f"the calibration data does not tell its length; the first {MAX_UNCOUNTED} samples are used, "
                "ask for a number of samples to change that",
            )
        samples = getattr(self.source, "sample_count", self.source.length)
        available = samples if samples is not None else self._count
        if self.limit is not None and available is not None and available < self.limit:
            return (
                f"{self.limit} samples were requested, and the calibration data has {available}; all are "
                "used",
            )
        return ()


def digest(sample: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return the digest of one sample."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(sample):
        array = sample[name]
        found.update(f"{name}:{array.dtype}:{array.shape};".encode())
        if array.dtype.kind == "O":
            found.update(repr(array.tolist()).encode())
        else:
            found.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data if array.size else b"")
    return found.digest()


def mark(index: int, digest: bytes) -> int:
    """Return a number for a sample at its index; their sum is the fingerprint of the data."""
    return int.from_bytes(
        hashlib.blake2b(index.to_bytes(8, "little") + digest, digest_size=16).digest(), "little"
    )


def fingerprint(digests: Iterable[bytes]) -> str:
    """Return the fingerprint of data from the digests of its samples, from the first on."""
    return f"{sum(mark(index, one) for index, one in enumerate(digests)) % MODULUS:032x}"
