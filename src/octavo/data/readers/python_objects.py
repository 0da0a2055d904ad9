"""Samples from Python objects: lists, iterables, readers with ``get_next()``, datasets, loaders."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from octavo.data.source import FoundIn, Sample, Source, Specs, span
from octavo.errors import DataError, closest
from octavo.model.runtime.session import InputSpec


@runtime_checkable
class Reader(Protocol):
    """A source of samples that are taken one after the other; None ends it."""

    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next sample."""
        ...


def read(data: Any, specs: Specs) -> Source | None:
    """Return the samples of a Python object."""
    if isinstance(data, Reader | Iterator):
        return OneWay(data, specs)
    if is_dataset(data):
        return Rows.of(data, specs)
    if isinstance(data, Mapping):
        raise DataError(
            "The calibration data is a dict, which is one sample; put it into a list: [sample, …]."
        )
    if isinstance(data, list | tuple):
        return Listed(data, specs)
    return Repeatable(data, specs) if isinstance(data, Iterable) else None


def length_of(data: object) -> int | None:
    """Return how many samples an object has, where it can tell."""
    if not isinstance(data, Sized):
        return None
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # a wrapper around something without a length
        return None


def by_order(sample: Any, specs: Specs) -> Any:
    """Name the tensors of a tuple, as loaders give it, by the order of the inputs; labels are left out.

    An array by itself is the input of a model that has one.
    """
    if isinstance(sample, np.ndarray) and len(specs) == 1:
        return {specs[0].name: sample}
    if not isinstance(sample, list | tuple) or len(sample) < len(specs):
        return sample
    taken = sample[: len(specs)]
    if not all(callable(getattr(part, "numpy", None)) for part in taken):
        return sample
    return {spec.name: part for spec, part in zip(specs, taken, strict=True)}


@dataclass(frozen=True, eq=False)
class Listed:
    """A list or tuple of samples."""

    samples: Sequence[Any]
    specs: Specs

    @property
    def length(self) -> int:
        """Return the number of samples."""
        return len(self.samples)

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give samples by index."""
        for index in span(self.length, first, stop):
            yield by_order(self.samples[index], self.specs)


@dataclass(frozen=True, eq=False)
class Repeatable:
    """An iterable that starts again whenever it is asked to, such as a torch DataLoader."""

    samples: Iterable[Any]
    specs: Specs

    @property
    def length(self) -> int | None:
        """Return the number of samples, where the iterable can tell."""
        return length_of(self.samples)

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give the samples after those that are skipped."""
        return (by_order(sample, self.specs) for sample in itertools.islice(self.samples, first, stop))


class OneWay:
    """An iterator, or a reader: it only goes forward, unless it can be rewound.

    Portions may follow each other without a rewind.
    """

    def __init__(self, data: Iterator[Any] | Reader, specs: Specs) -> None:
        self._data = data
        self._specs = specs
        self._next: Callable[[], Any] = (
            data.get_next if isinstance(data, Reader) else lambda: next(data, None)
        )
        self._at = 0
        self.length = length_of(data)

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give the samples after those that are skipped."""
        if first != self._at and not self._jump(first) and first < self._at:
            self._rewind()
        while stop is None or self._at < stop:
            sample = self._next()
            if sample is None:
                return
            self._at += 1
            if self._at > first:
                yield by_order(sample, self._specs)

    @property
    def can_rewind(self) -> bool:
        """Whether the samples can be iterated over once more."""
        return hasattr(self._data, "rewind")

    def _jump(self, first: int) -> bool:
        """Go straight to a sample, if the reader can: ``set_range(first, length)``."""
        jump = getattr(self._data, "set_range", None)
        if jump is None or self.length is None:
            return False
        try:
            jump(first, self.length)
        except NotImplementedError:
            return False
        self._at = first
        return True

    def _rewind(self) -> None:
        rewind = getattr(self._data, "rewind", None)
        if rewind is None:
            raise DataError(
                "The calibration data can be iterated over only once, and is needed a second time; give a "
                "list, "
                "or a reader with rewind()."
            )
        rewind()
        self._at = 0


def is_dataset(data: object) -> bool:
    """Return whether an object is like a Hugging Face dataset: named columns, and rows."""
    return hasattr(data, "column_names") and hasattr(data, "features") and isinstance(data, Iterable | Sized)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a dataset, by number or, where it streams, one after the other."""

    rows: Any
    specs: Specs

    @classmethod
    def of(cls, data: Any, specs: Specs) -> Rows:
        """Return the rows, where there is a column for each input; a stream may not know its columns."""
        names = data.column_names
        if isinstance(names, Mapping):
            parts = ", ".join(names)
            raise DataError(
                f"The dataset has the parts {parts}; give one of them: dataset[{next(iter(names))!r}]."
            )
        if names is not None:
            _refuse_missing(names, specs)
        return cls(data, tuple(specs))

    @property
    def length(self) -> int | None:
        """Return the number of rows, where the dataset can tell."""
        return length_of(self.rows)

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give rows by number."""
        length = self.length
        rows: Iterable[Any]
        if length is not None and hasattr(self.rows, "__getitem__"):
            rows = (self.rows[index] for index in span(length, first, stop))
        else:
            rows = itertools.islice(self.rows, first, stop)
        for index, row in enumerate(rows, first):
            _refuse_missing(row, self.specs)
            yield FoundIn({spec.name: _cell(row[spec.name], spec) for spec in self.specs}, f"row {index}")


def _refuse_missing(names: Collection[str], specs: Specs) -> None:
    for spec in specs:
        if spec.name not in names:
            raise DataError(
                f"The dataset has no column {spec.name!r}{closest(spec.name, names) or ';'} It has "
                f"{', '.join(names)}. Rename a column to each input, or for texts use octavo.text(…)."
            )


def _cell(value: Any, spec: InputSpec) -> Any:
    """Return a value of a row as an array; the batch axis that rows lack is added."""
    if callable(getattr(value, "numpy", None)):
        value = value.numpy()
    try:
        array = np.asarray(value, None if spec.dtype.kind == "O" else spec.dtype)
    except (ValueError, TypeError, OverflowError):
        return value
    return array[None] if array.ndim == len(spec.shape) - 1 else array
