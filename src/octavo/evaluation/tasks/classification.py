"""Classification: the share of samples whose class is ranked first, or among the first five."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from octavo.errors import DataError, ModelError
from octavo.evaluation.image_samples import ImageFeeds, image_source
from octavo.evaluation.label_files import class_names, class_number
from octavo.evaluation.labelled_samples import LabelledSamples, labelled_samples
from octavo.evaluation.task import (
    Array,
    Batch,
    ClassScore,
    Feeds,
    Outputs,
    PreparedTask,
    TaskContext,
    batches,
    join_feeds,
    named_output,
    shapes_text,
    share,
    strip_padding,
)
from octavo.evaluation.task_metrics import top_k

DEFAULT_BATCH = 10  # images, which take much memory each
METRICS = (share("top1", 0), share("top5", 1))


@dataclass(frozen=True)
class Classification:
    """Options: where labels and class names are, how images become inputs, which output has the scores.

    ``offset`` is added to each label, for models that count the background as class 0. ``scale`` divides
    integers in arrays, such as pixels.
    """

    labels: Any = None
    classes: str | Path | Sequence[str] | None = None
    preprocess: Any = None
    size: tuple[int, int] | None = None
    output: str | None = None
    offset: int = 0
    scale: float | None = None
    name: ClassVar[str] = "classification"
    summary: ClassVar[str] = "top-1 and top-5 accuracy on labelled images or arrays"

    def open(self, data: Any, context: TaskContext) -> PreparedTask:
        """Return batches of samples with class numbers as labels."""
        source = image_source(data, self.preprocess, self.size)
        found = labelled_samples(source.location, self.labels, context, scale=self.scale)
        names = class_names(self.classes)
        if found.folders is not None and names is None:
            names = sorted({str(label) for label in found.labels})
        images = ImageFeeds.of(context.specs, source.preprocess, source.size) if found.are_images else None
        folders = found.folders if self.classes is None else None
        processing = ScoreProcessing(images, context.fixed_batch, self.output, folders)
        return from_samples(found, names, processing, context, DEFAULT_BATCH, METRICS, self.offset)


def from_samples(
    found: LabelledSamples,
    names: Sequence[str] | None,
    processing: Any,
    context: TaskContext,
    default_batch: int,
    metrics: Any,
    offset: int = 0,
) -> PreparedTask:
    """Return the task for labelled samples; without a requested batch, feeds stay as they came."""
    numbers = [
        class_number(label, names, f"Sample {index}") + offset for index, label in enumerate(found.labels)
    ]
    size = context.batch_size(default_batch)
    items = list(zip(found.items, numbers, strict=True))
    if found.groups is not None and context.batch is None:
        work = [Batch(tuple(group), tuple(items[i] for i in group)) for group in found.groups]
    else:
        work = batches(items, context.batch or size)
    return PreparedTask(
        work,
        len(numbers),
        processing,
        metrics,
        per_class=partial(by_class, names=names),
        class_metric=metrics[0].name,
        settings={"batch": size},
    )


@dataclass(frozen=True)
class ScoreProcessing:
    """Makes feeds from images or arrays, and keeps whether the label is ranked first or among five."""

    images: ImageFeeds | None
    fixed: int | None
    output: str | None
    folders: int | None = None

    def feed(self, batch: Batch) -> Feeds:
        """Read the images, in the worker, or join the feeds."""
        sources = [source for source, _ in batch.items]
        if self.images is not None:
            return self.images.feed(sources, self.fixed)[0]
        return join_feeds(sources, self.fixed)

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """Return ``(first, among five, label)`` for each sample."""
        return ranked_rows(outputs, self.output, batch, self.folders)


def ranked_rows(
    outputs: Outputs, output: str | None, batch: Batch, folders: int | None = None
) -> list[tuple[float, float, float]]:
    """Return ``(first, among five, label)`` for each sample of a batch of ``(source, label)``."""
    labels = np.array([label for _, label in batch.items])
    scores = strip_padding(score_table(outputs, output), len(labels))
    _check_labels(scores, labels, batch, folders)
    first, five = top_k(scores, labels, 1), top_k(scores, labels, 5)
    return [(float(a), float(b), float(label)) for a, b, label in zip(first, five, labels, strict=True)]


def score_table(outputs: Outputs, name: str | None) -> Array:
    """Return the scores ``[samples, classes]`` among a model's outputs."""
    if name is not None:
        table = _table(named_output(outputs, name))
        if table is None:
            raise ModelError(
                f"The output {name!r} has shape {list(outputs[name].shape)}; scores of classes are "
                "[samples, classes]."
            )
        return table
    tables = {key: table for key, value in outputs.items() if (table := _table(value)) is not None}
    if not tables:
        raise ModelError(
            f"None of the outputs {shapes_text(outputs)} are scores [samples, classes]; is this a "
            "classifier? Other tasks are detection, similarity, perplexity and agreement."
        )
    if len(tables) > 1:
        raise ModelError(
            f"The outputs {shapes_text(tables)} could all be scores; name one: output={next(iter(tables))!r}."
        )
    return next(iter(tables.values()))


def _table(value: Array) -> Array | None:
    if value.dtype.kind not in "fVui" or value.ndim < 2 or value.shape[1] < 2:
        return None
    if value.ndim > 2 and any(size != 1 for size in value.shape[2:]):
        return None
    return value.reshape(value.shape[:2])


def _check_labels(scores: Array, labels: Array, batch: Batch, folders: int | None) -> None:
    """Raise where a label is not one of the model's classes, or a score is NaN."""
    classes = scores.shape[1]
    unusable = np.isnan(np.asarray(scores, np.float64)).any(axis=1)
    if unusable.any():
        raise ModelError(
            f"The scores of sample {batch.indices[int(np.argmax(unusable))]} hold NaN; look at that "
            "sample, and at what the model computes from it."
        )
    if folders is not None and folders != classes:
        raise DataError(
            f"There are {folders} class folders, but the model has {classes} classes; say which folder "
            "is which class: classes=… with the names in the order of the model's outputs."
        )
    bad = (labels < 0) | (labels >= classes)
    if bad.any():
        place = int(np.argmax(bad))
        raise DataError(
            f"Sample {batch.indices[place]} has the label {labels[place]}, but the model has {classes} "
            f"classes, 0 to {classes - 1}; give the labels of this model, or shift them: offset=-1."
        )


def by_class(rows: Any, names: Sequence[str] | None) -> list[ClassScore]:
    """Return the share of correct answers for each class that occurs."""
    found = []
    for number in np.unique(rows[:, 2]).astype(int):
        own = rows[rows[:, 2] == number, 0]
        name = names[number] if names is not None and 0 <= number < len(names) else str(number)
        found.append(ClassScore(name, float(own.mean()), len(own)))
    return found
