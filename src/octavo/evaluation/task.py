"""Tasks: how data becomes model inputs, outputs become a row for each sample, and rows become metrics.

A task is a small frozen dataclass whose fields are its options. ``open`` reads the data and returns a
:class:`PreparedTask`: batches of samples, a :class:`Processing` that runs in the workers, and the metrics
that are computed from all rows at the end. A row depends on its own batch only, and a batch on the data only,
so the metrics are the same whichever worker computes which batch, in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError, ModelError, RecipeError
from octavo.model.runtime.session import InputSpec

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
Outputs = Mapping[str, Array]
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Batch:
    """Samples that are fed together: their indices, and what each one is read from."""

    indices: tuple[int, ...]
    items: tuple[Any, ...]


def batches(items: Sequence[Any], size: int, order: Sequence[int] | None = None) -> list[Batch]:
    """Split items into batches, in their own order or in the given one."""
    indices = list(range(len(items))) if order is None else list(order)
    groups = (indices[start : start + size] for start in range(0, len(indices), size))
    return [Batch(tuple(group), tuple(items[i] for i in group)) for group in groups]


class Processing(Protocol):
    """The pre- and postprocessing of a task. It runs in a worker and can be pickled."""

    def feed(self, batch: Batch) -> Feeds:
        """Return the model's inputs for a batch."""
        ...

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """Return what is kept of the outputs: a row for each sample of the batch."""
        ...


class ReferenceProcessing(Processing, Protocol):
    """Processing whose rows need the outputs of a reference model, or say more where they are known."""

    def rows_beside(self, outputs: Outputs, reference: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """Return a row for each sample of the batch, with how far it is from the reference."""
        ...


@dataclass(frozen=True)
class Metric:
    """A number computed from the rows, and how its confidence interval is found.

    ``correct`` marks metrics that are a share of correct answers: their intervals have closed forms. All
    others are resampled ``resamples`` times.
    """

    name: str
    compute: Callable[[Any], float]
    higher_is_better: bool = True
    percent: bool = False
    correct: Callable[[Any], npt.NDArray[np.bool_]] | None = None
    resamples: int = 1000


def share(name: str, column: int) -> Metric:
    """Return the metric for a share of correct answers: the mean of a column that holds 0 and 1."""
    return Metric(
        name,
        partial(column_mean, column=column),
        percent=True,
        correct=partial(_column_is_set, column=column),
    )


def column_mean(rows: Any, column: int) -> float:
    """Return the mean of one column of the rows."""
    return float(rows[:, column].mean())


def _column_is_set(rows: Any, column: int) -> npt.NDArray[np.bool_]:
    return np.asarray(rows[:, column] > 0.5)


@dataclass(frozen=True)
class ClassScore:
    """The metric of one class, and how many samples or objects it was computed from."""

    name: str
    value: float
    count: int


def as_array(rows: Sequence[Any]) -> Any:
    """Return the rows as one array."""
    return np.asarray(rows, np.float64)


@dataclass(frozen=True)
class PreparedTask:
    """A task with its data: what is run, and what is computed from the rows.

    ``metrics`` is a function of the rows where which metrics there are depends on what the rows hold.
    """

    batches: Sequence[Batch]
    samples: int
    processing: Processing
    metrics: tuple[Metric, ...] | Callable[[Any], tuple[Metric, ...]]
    fold: Callable[[Sequence[Any]], Any] = as_array
    per_class: Callable[[Any], list[ClassScore]] | None = None
    class_metric: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskContext:
    """The model's inputs and path, how many samples to use, and the requested batch size."""

    specs: Sequence[InputSpec]
    model: Path
    samples: int | None = None
    batch: int | None = None

    @property
    def fixed_batch(self) -> int | None:
        """Return the batch size that is fixed in the model; None where the model leaves it open."""
        first = self.specs[0].shape[:1] if self.specs else ()
        return first[0] if first and isinstance(first[0], int) and first[0] > 0 else None

    def batch_size(self, default: int) -> int:
        """Return how many samples are fed together: as fixed in the model, as requested, or the default."""
        fixed = self.fixed_batch
        if fixed is not None and self.batch not in (None, fixed):
            raise ModelError(
                f"The model takes batches of {fixed}, but batch={self.batch} was given; leave the batch out, "
                "or export the model with a dynamic batch axis."
            )
        return fixed or self.batch or default


class Task(Protocol):
    """A kind of evaluation, with its options. ``needs_reference`` may be set where it compares two models."""

    @property
    def name(self) -> str:
        """Return the name of the task."""
        ...

    @property
    def summary(self) -> str:
        """Return what the task measures, in a few words."""
        ...

    def open(self, data: Any, context: TaskContext) -> PreparedTask:
        """Read the data and return what has to be run."""
        ...


def shapes_text(outputs: Mapping[str, Any]) -> str:
    """Return names and shapes for messages: ``'scores' [1, 10], 'boxes' [1, 4]``."""
    return ", ".join(f"{name!r} {list(np.shape(value))}" for name, value in outputs.items())


def named_output(outputs: Outputs, name: str) -> Array:
    """Return the output of this name, or raise with the names that there are."""
    if name not in outputs:
        raise RecipeError(f"The model has no output {name!r}; it has {', '.join(outputs)}.")
    return outputs[name]


# ---- Samples joined into one feed, and the rows of the padding removed again


def join_feeds(feeds: Sequence[Mapping[str, Array]], fixed: int | None) -> dict[str, Array]:
    """Join feeds of one sample each; the last one is repeated where the model needs a full batch."""
    if len(feeds) == 1 and fixed in (None, len(np.atleast_1d(next(iter(feeds[0].values()))))):
        return dict(feeds[0])
    try:
        joined = {
            name: np.concatenate([feed[name] for feed in feeds]) if feeds[0][name].ndim else feeds[0][name]
            for name in feeds[0]
        }
    except ValueError as error:
        raise DataError(
            f"Samples of different shapes can't be fed together ({error}); evaluate them one by one: batch=1."
        ) from error
    return {name: pad_rows(array, fixed) for name, array in joined.items()}


def pad_rows(array: Array, fixed: int | None) -> Array:
    """Repeat the last row until there are as many as the model's fixed batch size."""
    if fixed is None or array.ndim == 0 or len(array) >= fixed:
        return array
    return np.concatenate([array, np.repeat(array[-1:], fixed - len(array), axis=0)])


def strip_padding(array: Array, count: int) -> Array:
    """Return the rows of the ``count`` real samples."""
    if len(array) < count:
        raise ModelError(
            f"The model returned {len(array)} rows for {count} samples: the first axis of its output is not "
            "the batch. Evaluate the samples one by one: batch=1."
        )
    return array[:count]
