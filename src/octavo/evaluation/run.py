"""Evaluate a model: batches out to the workers, rows back, figures and intervals from the rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from octavo.calibration.engines import Engine, engine_of
from octavo.errors import DataError, RecipeError
from octavo.evaluation import paired
from octavo.evaluation.job import Inference
from octavo.evaluation.registry import task_of
from octavo.evaluation.result import Difference, Evaluation, Score
from octavo.evaluation.sources import on_disk, same_inputs, title
from octavo.evaluation.task import Figure, Setting, Task, Work
from octavo.model import io
from octavo.model.samples import specs_of

Progress = Callable[[str, int, int | None], None]
_FEW = 20  # values of an option that a report repeats


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
    """How well a model does on labelled data, alone or beside another one on the same samples.

    ``task`` is a name (``octavo.evaluation.TASKS``), a task with its options, or a function marked with
    :func:`octavo.metric`; ``options`` are those of a task that is given by name. ``against`` is the model to
    compare with, as a rule the float one: differences are ``model − against``. Work is shared out by
    ``engine`` in batches; every engine gives the same figures.
    """
    chosen = task_of(task, options)
    if samples is not None and samples < 1:
        raise RecipeError(f"{samples} samples leave nothing to evaluate; use at least 1.")
    if batch is not None and batch < 1:
        raise RecipeError(f"A batch of {batch} holds no sample; use at least 1.")
    pair = bool(getattr(chosen, "pair", False))
    if pair and against is None:
        raise RecipeError(
            f"The task {chosen.name!r} compares two models; give the float model as well: against=…"
        )
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        sources = [model] if against is None else [model, against]
        paths = [on_disk(source, stack) for source in sources]
        specs = [specs_of(io.load(path)) for path in paths]
        same_inputs(specs, sources)
        setting = Setting(specs[0], paths[0], samples, batch)
        work = chosen.open(data, setting)
        job = Inference(tuple(paths), work.reading, pair, tuple(str(path) for path in custom_ops))
        found = _rows(job, work, engine_of(engine, workers, address, threads), progress)
    names = [title(source) for source in sources]
    return _judged(chosen, work, found, names, time.monotonic() - began)


def _rows(job: Inference, work: Work, engine: Engine, progress: Progress | None) -> list[list[Any]]:
    """For each model a row for each part, in the order of the data."""
    total = sum(len(batch.indices) for batch in work.batches)
    if not total:
        raise DataError("There is no sample to evaluate; give at least one.")
    found: list[list[Any]] = []
    done = 0
    for number, answers in engine.map(job, work.batches):
        batch = work.batches[number]
        if not found:
            found = [[None] * total for _ in answers]
        for rows, answer in zip(found, answers, strict=True):
            for index, row in zip(batch.indices, answer, strict=True):
                rows[index] = row
        done += len(batch.indices)
        if progress is not None:
            progress("evaluating", done, total)
    return found


def _judged(
    task: Task, work: Work, found: Sequence[Sequence[Any]], names: Sequence[str], seconds: float
) -> Evaluation:
    folded = [work.fold(rows) for rows in found]
    figures = work.figures if work.choose is None else work.choose(folded[0])
    scores = [tuple(_score(figure, rows) for figure in figures) for rows in folded]
    classes = [tuple(work.per_class(rows)) if work.per_class is not None else () for rows in folded]
    both = len(folded) == 2
    return Evaluation(
        task=task.name,
        model=names[0],
        samples=work.samples,
        scores=scores[0],
        against=names[1] if len(names) == 2 else None,
        against_scores=scores[1] if both else (),
        differences=tuple(_difference(f, folded[0], folded[1]) for f in figures) if both else (),
        class_figure=work.class_figure,
        per_class=classes[0],
        against_per_class=classes[1] if both else (),
        settings={**_options(task), **work.settings},
        notes=work.notes,
        seconds=seconds,
    )


def _options(task: Task) -> dict[str, Any]:
    """The options of a task as plain data; those left at None are not worth a line."""
    names: list[str] = [field.name for field in fields(task)] if is_dataclass(task) else []
    found = {name: getattr(task, name) for name in names}
    return {key: _plain(value) for key, value in found.items() if value is not None and not callable(value)}


def _plain(value: Any) -> Any:
    """A value for a report; long lists are only counted."""
    if isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "__len__") and not isinstance(value, Path):
        return [str(one) for one in value] if len(value) <= _FEW else f"{len(value)} values"
    return str(value)


def _score(figure: Figure, rows: Any) -> Score:
    value = figure.of(rows)
    if figure.right is not None:
        interval = paired.share(figure.right(rows))
    else:
        interval = paired.resampled(figure.of, rows, figure.resamples)
    return Score(
        figure.name, value, interval.low, interval.high, figure.higher_is_better, percent=figure.percent
    )


def _difference(figure: Figure, rows: Any, other: Any) -> Difference:
    if figure.right is not None:
        interval = paired.share_difference(figure.right(rows), figure.right(other))
    else:
        interval = paired.resampled_difference(figure.of, rows, other, figure.resamples)
    value = figure.of(rows) - figure.of(other)
    return Difference(figure.name, value, interval.low, interval.high, interval.method, interval.p_value)
