"""Agreement with a reference model, where there are no labels: the same answer, and how far outputs differ.

Outputs that look like scores of classes (``[samples, classes]``) are held against each other by their best
class. All outputs are compared by the signal to noise ratio ``10 log10(Σ x² / Σ (x − y)²)`` and the cosine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from octavo.calibration.data import checked
from octavo.calibration.readers import Source, source_of
from octavo.calibration.readers.objects import OneWay
from octavo.errors import DataError, ModelError
from octavo.evaluation.batching import batch_size
from octavo.evaluation.metrics import F64, Array, sqnr_db
from octavo.evaluation.task import Batch, ClassScore, Feeds, Figure, Outputs, Setting, Work, batches
from octavo.evaluation.tasks.classification import column
from octavo.model.session import InputSpec

_ALIKE, _OUTPUTS, _FIELDS = 0, 1, 5  # a row: share of like answers, then five sums for each output


@dataclass(frozen=True)
class Agreement:
    """No options: data is whatever a model can be calibrated with."""

    name: ClassVar[str] = "agreement"
    summary: ClassVar[str] = "how often a model answers as the float model, and how far outputs differ"
    pair: ClassVar[bool] = True

    def open(self, data: Any, setting: Setting) -> Work:
        """Feeds as they come, taken by number in the workers."""
        batch_size(setting, 1)
        if setting.batch is not None and setting.batch > 1:
            from octavo.calibration.readers.batches import Batched

            data = Batched(data, setting.batch)
        source, count = _counted(source_of(data, setting.specs), setting)
        return Work(
            batches(range(count), 1),
            count,
            PairReading(source, tuple(setting.specs)),
            (),
            fold=_folded,
            choose=_figures,
            per_class=_by_output,
            class_figure="sqnr_db",
            notes=(f"each sample is a batch of {setting.batch}",) if setting.batch else (),
        )


def _counted(source: Source, setting: Setting) -> tuple[Source, int]:
    """A source that can be asked for samples by number, and how many there are."""
    length = source.length
    if length is None or isinstance(source, OneWay):
        taken = list(source.portion(0, setting.samples))
        source, length = source_of(taken, setting.specs), len(taken)
    count = length if setting.samples is None else min(length, setting.samples)
    if not count:
        raise DataError("There is no sample to evaluate; give at least one.")
    return source, count


@dataclass(frozen=True)
class PairReading:
    """A sample in, what both models' outputs have in common out."""

    source: Source
    specs: tuple[InputSpec, ...]

    def feed(self, batch: Batch) -> Feeds:
        """The sample of this number, checked against the model's inputs."""
        index = batch.parts[0]
        return checked(next(iter(self.source.portion(index, index + 1))), self.specs, index)

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """One model has nothing to agree with."""
        raise DataError("Agreement needs two models.")

    def pair_rows(self, outputs: Outputs, reference: Outputs, batch: Batch) -> Sequence[Any]:
        """The share of like answers, and sums for each output."""
        _check_alike(outputs, reference)
        names = [name for name, value in reference.items() if value.dtype.kind in "fViub"]
        row = [_alike(outputs, reference)]
        for name in names:
            x = np.asarray(reference[name], np.float64).ravel()
            y = np.asarray(outputs[name], np.float64).ravel()
            row += [float(x @ x), float(((x - y) ** 2).sum()), float(x @ y), float(y @ y), 1.0]
        return [(tuple(row), tuple(names))]


def _check_alike(outputs: Outputs, reference: Outputs) -> None:
    ours, theirs = ({n: list(v.shape) for n, v in one.items()} for one in (outputs, reference))
    if ours != theirs:
        raise ModelError(
            f"The models have different outputs: {ours} and {theirs}; they have no common measure."
        )


def _is_scores(value: Array) -> bool:
    return value.dtype.kind in "fV" and value.ndim == 2 and value.shape[1] >= 2


def _alike(outputs: Outputs, reference: Outputs) -> float:
    """The share of rows with the same best class, over outputs that look like scores; NaN without any."""
    shares = [
        float((np.argmax(outputs[name], axis=1) == np.argmax(value, axis=1)).mean())
        for name, value in reference.items()
        if _is_scores(value) and len(value)
    ]
    return float(np.mean(shares)) if shares else math.nan


class _Table:
    """Rows of numbers with the names of the outputs."""

    def __init__(self, values: F64, names: Sequence[str]) -> None:
        self.values, self.names = values, names

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> _Table:
        return _Table(self.values[index], self.names)

    def output(self, place: int) -> F64:
        """The five sums of an output."""
        start = _OUTPUTS + place * _FIELDS
        return self.values[:, start : start + _FIELDS]


def _folded(rows: Sequence[Any]) -> _Table:
    """Rows as one table."""
    return _Table(np.array([row for row, _ in rows], np.float64), rows[0][1])


def _figures(table: _Table) -> tuple[Figure, ...]:
    figures = [Figure("sqnr_db", _sqnr), Figure("cosine", _cosine)]
    alike = table.values[:, _ALIKE]
    if not np.isnan(alike).any():
        whole = bool(np.isin(alike, (0.0, 1.0)).all())
        figures.insert(0, Figure("agreement", _agreement, percent=True, right=_agrees if whole else None))
    return tuple(figures)


def _agreement(table: _Table) -> float:
    return column(_ALIKE)(table.values)


def _agrees(table: _Table) -> Any:
    return table.values[:, _ALIKE] > 0.5


def _sqnr(table: _Table) -> float:
    return sqnr_db(np.concatenate([table.output(i) for i in range(len(table.names))]))


def _cosine(table: _Table) -> float:
    sums = sum(table.output(i).sum(axis=0) for i in range(len(table.names)))
    norm = math.sqrt(float(sums[0]) * float(sums[3]))
    return float(sums[2]) / norm if norm else 1.0


def _by_output(table: _Table) -> list[ClassScore]:
    return [
        ClassScore(name, sqnr_db(table.output(place)), len(table)) for place, name in enumerate(table.names)
    ]
