"""What a task is: how data becomes feeds, outputs become a row for each sample, and rows become figures.

A task is a small frozen dataclass of options. ``open`` looks at the data and gives a :class:`Work`: batches
of samples, a :class:`Reading` that goes to the workers, and the figures that are computed from all rows at
the end. Rows depend on nothing but their own batch, and batches on nothing but the data: whoever computes
them, in whatever order, the figures are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from octavo.model.session import InputSpec

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Batch:
    """Samples that are fed together: their numbers, and what each is made of."""

    indices: tuple[int, ...]
    parts: tuple[Any, ...]


class Reading(Protocol):
    """The part of a task that runs in a worker; it can be pickled."""

    def feed(self, batch: Batch) -> Feeds:
        """The model's inputs for a batch."""
        ...

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """What is kept of the outputs: a row for each sample of the batch."""
        ...


class PairReading(Reading, Protocol):
    """A reading that sets the outputs of two models beside each other."""

    def pair_rows(self, outputs: Outputs, reference: Outputs, batch: Batch) -> Sequence[Any]:
        """A row for each sample, from what both models say."""
        ...


@dataclass(frozen=True)
class Figure:
    """A metric: a number out of the rows, and how sure it is.

    ``right`` marks figures that are a share of right answers; their intervals have closed forms.
    """

    name: str
    of: Callable[[Any], float]
    higher_is_better: bool = True
    percent: bool = False
    right: Callable[[Any], npt.NDArray[np.bool_]] | None = None
    resamples: int = 1000


@dataclass(frozen=True)
class ClassScore:
    """The figure of one class, and how many samples or objects it is made of."""

    name: str
    value: float
    count: int


def stacked(rows: Sequence[Any]) -> Any:
    """Rows as one array."""
    return np.asarray(rows, np.float64)


@dataclass(frozen=True)
class Work:
    """A task that has met its data."""

    batches: Sequence[Batch]
    samples: int
    reading: Reading
    figures: tuple[Figure, ...]
    fold: Callable[[Sequence[Any]], Any] = stacked
    choose: Callable[[Any], tuple[Figure, ...]] | None = None  # figures that depend on what the rows hold
    per_class: Callable[[Any], list[ClassScore]] | None = None
    class_figure: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """What a task is told of the call: the model's inputs and place, how much data, and the batch."""

    specs: Sequence[InputSpec]
    model: Path
    samples: int | None = None
    batch: int | None = None


class Task(Protocol):
    """A kind of evaluation, with its options."""

    @property
    def name(self) -> str:
        """The name by which it is asked for."""
        ...

    @property
    def summary(self) -> str:
        """What it measures, in a few words."""
        ...

    def open(self, data: Any, setting: Setting) -> Work:
        """Look at the data."""
        ...


def batches(parts: Sequence[Any], size: int, order: Sequence[int] | None = None) -> list[Batch]:
    """Parts in batches, in their own order or another one."""
    places = list(range(len(parts))) if order is None else list(order)
    groups = (places[start : start + size] for start in range(0, len(places), size))
    return [Batch(tuple(group), tuple(parts[i] for i in group)) for group in groups]
