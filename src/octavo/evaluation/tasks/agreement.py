"""Agreement with a reference model, without labels: how often answers are equal, and how far outputs differ.

Outputs that look like scores of classes (``[samples, classes]``) are compared by their best class. All
outputs are compared by the signal to noise ratio ``10 log10(Σ x² / Σ (x − y)²)`` and the cosine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from octavo.data.feeds import checked
from octavo.data.readers import source_of
from octavo.data.readers.python_objects import OneWay
from octavo.data.source import Source
from octavo.errors import DataError, ModelError
from octavo.evaluation.task import (
    F64,
    Array,
    Batch,
    ClassScore,
    Feeds,
    Metric,
    Outputs,
    PreparedTask,
    TaskContext,
    batches,
    column_mean,
)
from octavo.evaluation.task_metrics import sqnr_db
from octavo.model.runtime.session import InputSpec

# A row is the share of equal answers, then five sums for each output.
_AGREES, _OUTPUTS, _SUMS = 0, 1, 5


@dataclass(frozen=True)
class Agreement:
    """Has no options: data is whatever a model can be calibrated with."""

    name: ClassVar[str] = "agreement"
    summary: ClassVar[str] = "how often a model answers as the float model does, and how far outputs differ"
    needs_reference: ClassVar[bool] = True

    def open(self, data: Any, context: TaskContext) -> PreparedTask:
        """Return one batch for each feed; workers read feeds by their index."""
        context.batch_size(1)
        if context.batch is not None and context.batch > 1:
            from octavo.data.batches import Batched

            data = Batched(data, context.batch)
        source, count = _counted(source_of(data, context.specs), context)
        samples = getattr(source, "sample_count", None)
        return PreparedTask(
            batches(range(count), 1),
            count if samples is None else samples,
            AgreementProcessing(source, tuple(context.specs)),
            _metrics,
            fold=_folded,
            per_class=_by_output,
            class_metric="sqnr_db",
            notes=(f"the samples were fed in batches of {context.batch}",) if context.batch else (),
        )


def _counted(source: Source, context: TaskContext) -> tuple[Source, int]:
    """Return a source that can be read by index, and how many feeds it has; the limit counts samples."""
    limited = getattr(source, "limited", None)
    if limited is not None and context.samples is not None:
        source = limited(context.samples)
        context = replace(context, samples=None)
    length = source.length
    if length is None or isinstance(source, OneWay):
        taken = list(source.portion(0, context.samples))
        source, length = source_of(taken, context.specs), len(taken)
    count = length if context.samples is None else min(length, context.samples)
    if not count:
        raise DataError("There are no samples to evaluate; give at least one.")
    return source, count


@dataclass(frozen=True)
class AgreementProcessing:
    """Feeds a sample to both models, and keeps sums of their outputs and differences."""

    source: Source
    specs: tuple[InputSpec, ...]

    def feed(self, batch: Batch) -> Feeds:
        """Return the sample of this index, checked against the model's inputs."""
        index = batch.items[0]
        return checked(next(iter(self.source.portion(index, index + 1))), self.specs, index)

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """Raise an error: one model alone has nothing to agree with."""
        raise DataError("Agreement needs two models.")

    def rows_beside(self, outputs: Outputs, reference: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """Return the share of equal answers, and sums for each output."""
        _check_same_outputs(outputs, reference)
        names = [name for name, value in reference.items() if value.dtype.kind in "fViub"]
        row = [_same_class(outputs, reference)]
        for name in names:
            x = np.asarray(reference[name], np.float64).ravel()
            y = np.asarray(outputs[name], np.float64).ravel()
            with np.errstate(invalid="ignore", over="ignore"):  # a model may give infinities
                row += [float(x @ x), float(((x - y) ** 2).sum()), float(x @ y), float(y @ y), 1.0]
        return [(tuple(row), tuple(names))]


def _check_same_outputs(outputs: Outputs, reference: Outputs) -> None:
    ours, theirs = ({n: list(v.shape) for n, v in one.items()} for one in (outputs, reference))
    if ours != theirs:
        raise ModelError(
            f"The models have different outputs, {ours} and {theirs}; give a model and the one made from it."
        )


def _is_scores(value: Array) -> bool:
    return value.dtype.kind in "fV" and value.ndim == 2 and value.shape[1] >= 2


def _same_class(outputs: Outputs, reference: Outputs) -> float:
    """Return the share of rows with the same best class, over all outputs that are scores; NaN if none is."""
    shares = [
        float((np.argmax(outputs[name], axis=1) == np.argmax(value, axis=1)).mean())
        for name, value in reference.items()
        if _is_scores(value) and len(value)
    ]
    return float(np.mean(shares)) if shares else math.nan


class _Table:
    """The rows, and the names of the outputs that they hold sums of."""

    def __init__(self, values: F64, names: Sequence[str]) -> None:
        self.values, self.names = values, names

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> _Table:
        return _Table(self.values[index], self.names)

    def output(self, index: int) -> F64:
        """Return the five sums of an output."""
        start = _OUTPUTS + index * _SUMS
        return self.values[:, start : start + _SUMS]


def _folded(rows: Sequence[Any]) -> _Table:
    return _Table(np.array([row for row, _ in rows], np.float64), rows[0][1])


def _metrics(table: _Table) -> tuple[Metric, ...]:
    metrics = [Metric("sqnr_db", _sqnr), Metric("cosine", _cosine)]
    same = table.values[:, _AGREES]
    if not np.isnan(same).any():
        single = bool(np.isin(same, (0.0, 1.0)).all())  # one answer for each sample
        metrics.insert(0, Metric("agreement", _agreement, percent=True, correct=_agrees if single else None))
    return tuple(metrics)


def _agreement(table: _Table) -> float:
    return column_mean(table.values, _AGREES)


def _agrees(table: _Table) -> Any:
    return table.values[:, _AGREES] > 0.5


def _sqnr(table: _Table) -> float:
    return sqnr_db(np.concatenate([table.output(i) for i in range(len(table.names))]))


def _cosine(table: _Table) -> float:
    sums = sum(table.output(i).sum(axis=0) for i in range(len(table.names)))
    norm = math.sqrt(float(sums[0]) * float(sums[3]))
    return float(sums[2]) / norm if norm else 1.0


def _by_output(table: _Table) -> list[ClassScore]:
    return [
        ClassScore(name, sqnr_db(table.output(index)), len(table)) for index, name in enumerate(table.names)
    ]
