"""Samples that are remembered in part: the first one, to try the result with, and a fingerprint of all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.calibration.data import Feeds


class Watched(Feeds):
    """Feeds that note, while they are gone through, what passes by."""

    first: dict[str, npt.NDArray[Any]] | None = None
    fingerprint: str | None = None

    def __iter__(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        digest = hashlib.blake2b(digest_size=16)
        for sample in super().__iter__():
            if self.first is None:
                self.first = dict(sample)
            _add(digest, sample)
            yield sample
        self.fingerprint = digest.hexdigest()


def _add(digest: Any, sample: Mapping[str, npt.NDArray[Any]]) -> None:
    for name in sorted(sample):
        array = sample[name]
        digest.update(f"{name}:{array.dtype}:{array.shape};".encode())
        if array.dtype.kind == "O":
            digest.update(repr(array.tolist()).encode())
        else:
            digest.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data if array.size else b"")
