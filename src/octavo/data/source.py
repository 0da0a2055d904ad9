"""What every reader of data gives: samples by index, and how many there are where that is known.

A source that comes from paths or names is a frozen dataclass that can be pickled: a worker process gets it
and opens the files itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy.typing as npt

from octavo.model.runtime.session import InputSpec

Array: TypeAlias = npt.NDArray[Any]
Sample: TypeAlias = Mapping[str, Any]
Specs: TypeAlias = Sequence[InputSpec]


class Source(Protocol):
    """Samples that can be iterated over, from any index to any other.

    A source may also have ``notes`` (sentences for the user), ``inner`` (the source that it is made from),
    and, where its samples are feeds of several, ``sample_count`` and ``limited(samples)``.
    """

    @property
    def length(self) -> int | None:
        """Return the number of samples; None where only iterating over them would tell."""
        ...

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give the samples with an index from ``first`` up to, but not including, ``stop``."""
        ...


@runtime_checkable
class Given(Protocol):
    """Data that becomes a source once the inputs of the model are known."""

    def for_inputs(self, specs: Specs) -> Source:
        """Return the samples for a model with these inputs."""
        ...


class FoundIn(dict[str, Any]):
    """A sample that remembers the file it was found in."""

    def __init__(self, arrays: Mapping[str, Any], where: str) -> None:
        super().__init__(arrays)
        self.where = where


def described(sample: object, index: int) -> str:
    """Name a sample in a message: by its number, and its file where it has one."""
    where = getattr(sample, "where", "")
    return f"Sample {index} of the calibration data{f' ({where})' if where else ''}"


def innermost(source: Source) -> Source:
    """Return the source that a source is made from, through all wrappers."""
    while (inner := getattr(source, "inner", None)) is not None:
        source = inner
    return source


def span(length: int, first: int, stop: int | None) -> range:
    """Return the indices of a portion of something with a known length."""
    return range(first, length if stop is None else min(stop, length))


def least(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two numbers, either of which may be unknown."""
    return one if other is None else other if one is None else min(one, other)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts ``s10`` after ``s9``: numbers inside names count as numbers."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Return paths in the natural order of their names."""
    return sorted(paths, key=lambda path: natural(path.as_posix()))
