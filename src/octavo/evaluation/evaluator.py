"""Evaluate a model: batches go to the workers, rows come back, metrics and intervals come from the rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from octavo.calibration.engines import Engine, engine_of
from octavo.core.outputs import note_inputs
from octavo.core.progress import Progress
from octavo.data.decoder import with_own_types
from octavo.errors import DataError, RecipeError
from octavo.evaluation import metric_intervals
from octavo.evaluation.model_paths import check_same_inputs, model_title, runnable_path
from octavo.evaluation.scores import Difference, Evaluation, Score
from octavo.evaluation.task import (
    Batch,
    Metric,
    PreparedTask,
    Processing,
    ReferenceProcessing,
    Task,
    TaskContext,
)
from octavo.evaluation.task_registry import task_of
from octavo.model.files import io
from octavo.model.runtime.samples import specs_of
from octavo.model.runtime.session import Session

Rows = list[Sequence[Any]]  # for each model, a row for each sample

_LISTED_VALUES = 20  # an option with more values than this is reported by their count alone


def evaluate(
    model: io.ModelSource,
    data: Any,
    task: str | Task | Callable[..., float] = "classification",
    *,
    against: io.ModelSource | None = None,
    samples: int | None = None,
    batch: int | None = None,
    engine: str | Engine = "serial",
    workers: int | None = None,
    address: str | None = None,
    threads: int | None = None,
    custom_ops: Sequence[str | Path] = (),
    progress: Progress | None = None,
    **options: Any,
) -> Evaluation:
    """Measure the accuracy of a model on labelled data, alone or beside another one on the same samples.

    :func:`evaluate_several` takes more than two models.

    ``task`` is a name (``octavo.evaluation.TASKS``), a task object, or a function ``(outputs, label)``;
    ``options`` are those of the task. ``against`` is the model to compare with, as a rule the float one:
    differences are ``model − against``. ``engine`` distributes the batches; every engine gives the same
    metrics.
    """
    if isinstance(data, str | Path) and str(data).endswith(".onnx"):
        raise RecipeError(
            f"{data} is a model, and evaluate takes data behind the model: octavo.evaluate(quantized, data,"
            " against=float_model)."
        )
    chosen = task_of(task, options)
    pair = bool(getattr(chosen, "needs_reference", False))
    if pair and against is None:
        raise RecipeError(f"The task {chosen.name!r} compares a model with its float model; give both.")
    sources = [model] if against is None else [model, against]
    run = _Run(samples, batch, engine_of(engine, workers, address, threads), tuple(custom_ops), progress)
    reference = None if against is None else 1
    found = _measured(chosen, sources, data, run, pair=pair, reference=reference)
    made = _evaluation(chosen, found, found.rows, [model_title(source) for source in sources])
    return note_inputs(made, {"model": sources, "data": data, "task": chosen})


def evaluate_several(
    models: Sequence[io.ModelSource],
    data: Any,
    task: str | Task | Callable[..., float] = "classification",
    *,
    samples: int | None = None,
    batch: int | None = None,
    engine: str | Engine = "serial",
    workers: int | None = None,
    address: str | None = None,
    threads: int | None = None,
    custom_ops: Sequence[str | Path] = (),
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Evaluation, ...]:
    """Compare each of several models with the first one on the same samples, read once.

    The keywords are those of :func:`evaluate`.
    """
    if len(models) < 2:
        raise RecipeError("Several models are compared with the first; give at least two.")
    chosen = task_of(task, options)
    run = _Run(samples, batch, engine_of(engine, workers, address, threads), tuple(custom_ops), progress)
    names = [model_title(source) for source in models]
    if getattr(chosen, "needs_reference", False):
        pairs = [_measured(chosen, [one, models[0]], data, run, pair=True, reference=1) for one in models[1:]]
        made = [
            _evaluation(chosen, found, found.rows, [name, names[0]])
            for found, name in zip(pairs, names[1:], strict=True)
        ]
    else:
        found = _measured(chosen, models, data, run, pair=False, reference=0)
        made = [
            _evaluation(chosen, found, [rows, found.rows[0]], [name, names[0]])
            for rows, name in zip(found.rows[1:], names[1:], strict=True)
        ]
    inputs = {"models": list(models), "data": data, "task": chosen}
    return tuple(note_inputs(one, inputs) for one in made)


@dataclass(frozen=True)
class _Run:
    """How an evaluation is carried out."""

    samples: int | None
    batch: int | None
    engine: Engine
    custom_ops: tuple[str | Path, ...]
    progress: Progress | None

    def __post_init__(self) -> None:
        for name, value in (("samples", self.samples), ("batch", self.batch)):
            if value is not None and value < 1:
                raise RecipeError(f"{name} must be at least 1, not {value}.")


@dataclass(frozen=True)
class _Measured:
    """The rows of each model, and the task that they are of."""

    prepared: PreparedTask
    rows: list[list[Any]]
    seconds: float
    notes: tuple[str, ...]


def _measured(
    chosen: Task,
    sources: Sequence[io.ModelSource],
    data: Any,
    run: _Run,
    *,
    pair: bool,
    reference: int | None = None,
) -> _Measured:
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        custom_ops = tuple(str(path) for path in run.custom_ops)
        found = [runnable_path(source, stack, custom_ops) for source in sources]
        paths = [path for path, _ in found]
        specs = [specs_of(io.load(path)) for path in paths]
        check_same_inputs(specs, sources)
        prepared = chosen.open(data, TaskContext(specs[0], paths[0], run.samples, run.batch))
        job = Inference(tuple(paths), prepared.processing, pair, custom_ops, reference)
        rows = _all_rows(job, prepared, run.engine, run.progress)
    notes = tuple(note for _, note in found if note)
    return _Measured(prepared, rows, time.monotonic() - began, notes)


@dataclass(frozen=True)
class Inference:
    """The job of a worker: run models on batches.

    ``reference`` is the place of a model that rows of the others may be compared with; with ``pair`` there
    are rows of the first model alone.
    """

    models: tuple[Path, ...]
    processing: Processing
    pair: bool = False
    custom_ops: tuple[str, ...] = ()
    reference: int | None = None

    @contextlib.contextmanager
    def open(self, threads: int | None) -> Iterator[Callable[[Batch], Rows]]:
        """Load the models, and yield a function from a batch to its rows."""
        sessions = [
            Session.open(path, threads=threads or None, custom_ops=self.custom_ops) for path in self.models
        ]

        def run(batch: Batch) -> Rows:
            feed = self.processing.feed(batch)
            outputs = [session.run(with_own_types(feed, session.inputs)) for session in sessions]
            if self.reference is None or not hasattr(self.processing, "rows_beside"):
                return [self.processing.rows(one, batch, feed) for one in outputs]
            rows_beside = cast(ReferenceProcessing, self.processing).rows_beside
            measured = outputs[:1] if self.pair else outputs
            return [rows_beside(one, outputs[self.reference], batch, feed) for one in measured]

        yield run


def _all_rows(
    job: Inference, prepared: PreparedTask, engine: Engine, progress: Progress | None
) -> list[list[Any]]:
    """Return the rows of each model, in the order of the data."""
    total = sum(len(batch.indices) for batch in prepared.batches)
    if not total:
        raise DataError("There are no samples to evaluate; give at least one.")
    found: list[list[Any]] = []
    done = 0
    for number, answers in engine.map(job, prepared.batches):
        batch = prepared.batches[number]
        if not found:
            found = [[None] * total for _ in answers]
        for rows, answer in zip(found, answers, strict=True):
            for index, row in zip(batch.indices, answer, strict=True):
                rows[index] = row
        done += len(batch.indices)
        if progress is not None:
            progress("evaluating", done, total)
    return found


def _evaluation(
    task: Task, found: _Measured, rows: Sequence[Sequence[Any]], names: Sequence[str]
) -> Evaluation:
    prepared = found.prepared
    folded = [prepared.fold(own) for own in rows]
    metrics = prepared.metrics(folded[0]) if callable(prepared.metrics) else prepared.metrics
    scores = [tuple(_score(metric, own) for metric in metrics) for own in folded]
    per_class = prepared.per_class
    classes = [tuple(per_class(own)) if per_class is not None else () for own in folded]
    both = len(folded) == 2
    return Evaluation(
        task=task.name,
        model=names[0],
        samples=prepared.samples,
        scores=scores[0],
        against=names[1] if len(names) == 2 else None,
        against_scores=scores[1] if both else (),
        differences=tuple(_difference(metric, *folded) for metric in metrics) if both else (),
        class_metric=prepared.class_metric,
        per_class=classes[0],
        against_per_class=classes[1] if both else (),
        settings={**_options(task), **prepared.settings},
        notes=(*prepared.notes, *found.notes),
        seconds=found.seconds,
    )


def _options(task: Task) -> dict[str, Any]:
    """Return the options of a task as plain data, without those that are None."""
    names: list[str] = [field.name for field in fields(task)] if is_dataclass(task) else []
    found = {name: getattr(task, name) for name in names}
    return {key: _plain(value) for key, value in found.items() if value is not None and not callable(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "__len__") and not isinstance(value, Path):
        return [str(one) for one in value] if len(value) <= _LISTED_VALUES else f"{len(value)} values"
    return str(value)


def _score(metric: Metric, rows: Any) -> Score:
    if metric.correct is not None:
        interval = metric_intervals.share(metric.correct(rows))
    else:
        interval = metric_intervals.resampled(metric.compute, rows, metric.resamples)
    value = metric.compute(rows)
    return Score(metric.name, value, interval.low, interval.high, metric.higher_is_better, metric.percent)


def _difference(metric: Metric, rows: Any, other: Any) -> Difference:
    if metric.correct is not None:
        interval = metric_intervals.share_difference(metric.correct(rows), metric.correct(other))
    else:
        interval = metric_intervals.resampled_difference(metric.compute, rows, other, metric.resamples)
    value = metric.compute(rows) - metric.compute(other)
    return Difference(metric.name, value, interval.low, interval.high, interval.method, interval.p_value)
