"""Samples that are remembered in part: the first one, to try the result with, and a fingerprint of all."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.calibration.data import MOST, Data, Feeds, copied
from octavo.calibration.findings import SEEN, Findings
from octavo.model.session import InputSpec


class Watched(Feeds):
    """Feeds that note, while they are gone through, what passes by.

    ``small`` are the inputs that expect values near 1 (:func:`~octavo.calibration.findings.expects_small`).
    """

    def __init__(
        self,
        data: Data,
        specs: Sequence[InputSpec],
        *,
        limit: int | None = None,
        small: Collection[str] = (),
    ) -> None:
        super().__init__(data, specs, limit=limit)
        self.first: dict[str, npt.NDArray[Any]] | None = None
        self.fingerprint: str | None = None
        self._findings = Findings(specs, small)
        self._count: int | None = None
        self.digests: list[bytes] = []  # of the samples that the pass has given so far

    def __iter__(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        digests = self.digests = []
        for index, sample in enumerate(super().__iter__()):
            digests.append(self._look(index, sample))
            yield sample
        self._count = len(digests)
        self.fingerprint = combined(digests)

    def peek(self) -> None:
        """Look at the first samples without a pass, where other processes do the work.

        Of data that can be gone through only once this takes the samples away.
        """
        for index, sample in enumerate(self.portion(0, SEEN)):
            self._look(index, sample)

    def _look(self, index: int, sample: dict[str, npt.NDArray[Any]]) -> bytes:
        found = digest(sample)
        if self.first is None:
            self.first = copied(sample)
        if index == self._findings.samples:
            self._findings.add(sample, found)
        return found

    @property
    def findings(self) -> tuple[str, ...]:
        """What is to be said about the data: what its source notes, its number, and what looks wrong."""
        return (*getattr(self.source, "notes", ()), *self._number(), *self._findings.sentences())

    def _number(self) -> tuple[str, ...]:
        if self.cut_short:
            return (
                f"the calibration data does not tell its length; the first {MOST} samples are used, say "
                "samples=N (--samples N) for another number",
            )
        samples = getattr(self.source, "sample_count", self.source.length)
        there = samples if samples is not None else self._count
        if self.limit is not None and there is not None and there < self.limit:
            return (
                f"{self.limit} samples were asked for, and the calibration data has {there}; all are used",
            )
        return ()


def digest(sample: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The digest of one sample."""
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
    """A sample in its place as a number. The sum over samples is their fingerprint, in whatever order."""
    return int.from_bytes(
        hashlib.blake2b(index.to_bytes(8, "little") + digest, digest_size=16).digest(), "little"
    )


def combined(digests: Iterable[bytes]) -> str:
    """The fingerprint of data out of the digests of its samples, from the first on."""
    return f"{sum(mark(index, one) for index, one in enumerate(digests)) % (1 << 128):032x}"
