"""The protocol of calibration data."""

from __future__ import annotations

import abc
import copy
from collections.abc import Iterator, Sequence
from typing import Any


class CalibrationDataReader(metaclass=abc.ABCMeta):
    """Gives samples one after the other: ``get_next()`` returns ``{input name: array}``, and None at the end.

    Any class that has a ``get_next`` counts as a reader. ``__len__`` and ``set_range`` are needed only where
    the samples are requested in strides.
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return callable(getattr(other, "get_next", None)) or NotImplemented

    @abc.abstractmethod
    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample, or None."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        sample = self.get_next()
        if sample is None:
            raise StopIteration
        return sample

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not say how many samples it has; add __len__.")

    def set_range(self, start_index: int, end_index: int) -> None:
        """Give the samples of this range from now on."""
        raise NotImplementedError(f"{type(self).__name__} has no ranges of samples; add set_range.")


class ListReader(CalibrationDataReader):
    """Samples that are kept in a list."""

    def __init__(self, samples: Sequence[dict[str, Any]]) -> None:
        self._samples = samples
        self._left = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample, or None."""
        return next(self._left, None)

    def __len__(self) -> int:
        return len(self._samples)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Give the samples of this range from now on."""
        self._left = iter(self._samples[start_index:end_index])


def twice(reader: Any) -> tuple[Any, Any]:
    """A reader for each of two passes: a copy and the reader itself, or lists where it can't be copied."""
    try:
        return copy.deepcopy(reader), reader
    except Exception:  # a generator or an open file inside: whatever it is, its samples can be kept
        samples = list(iter(reader.get_next, None))
        return ListReader(samples), ListReader(samples)
