"""What every reader of calibration data gives: samples by index, and how many there are where that is known.

A source that comes from paths or names is a frozen dataclass that can be pickled: a worker process gets it
and opens the files itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy.typing as npt

from octavo.model.session import InputSpec

Array: TypeAlias = npt.NDArray[Any]
Sample: TypeAlias = Mapping[str, Any]
Specs: TypeAlias = Sequence[InputSpec]
T = TypeVar("T")


class Source(Protocol):
    """Samples that can be gone through, from anywhere to anywhere."""

    @property
    def length(self) -> int | None:
        """The number of samples; None where only going through them would tell."""
        ...

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """The samples with an index from ``first`` up to, but not including, ``stop``."""
        ...


@runtime_checkable
class Given(Protocol):
    """Data that becomes a source once the inputs of the model are known."""

    def for_inputs(self, specs: Specs) -> Source:
        """The samples for a model with these inputs."""
        ...


class Found(dict[str, Any]):
    """A sample that remembers the file it was found in."""

    def __init__(self, arrays: Mapping[str, Any], where: str) -> None:
        super().__init__(arrays)
        self.where = where


def place(sample: object, index: int) -> str:
    """How to speak of a sample in an error: by its number, and its file where it has one."""
    where = getattr(sample, "where", "")
    return f"Sample {index} of the calibration data{f' ({where})' if where else ''}"


def window(items: Iterable[T], first: int, stop: int | None) -> Iterator[T]:
    """A portion of what can only be gone through from its beginning."""
    return itertools.islice(items, first, stop)


def span(length: int, first: int, stop: int | None) -> range:
    """The indices of a portion of something with a known length."""
    return range(first, length if stop is None else min(stop, length))


def least(length: int | None, limit: int | None) -> int | None:
    """The smaller of two numbers, either of which may be unknown."""
    return length if limit is None else limit if length is None else min(limit, length)
