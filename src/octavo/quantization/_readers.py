"""The protocol of calibration data."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any


class CalibrationDataReader(metaclass=abc.ABCMeta):
    """Gives samples one after the other: ``get_next()`` returns ``{input name: array}``, and None at the end.

    Any class that has a ``get_next`` counts as a reader. ``__len__`` and ``set_range`` are needed only where
    the samples are asked for in strides.
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return callable(getattr(other, "get_next", None)) or NotImplemented

    @abc.abstractmethod
    def get_next(self) -> dict[str, Any] | None:
        """The next sample, or None."""
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
