"""Classification: the share of samples whose class comes first, or among the first five."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError, ModelError, RecipeError
from octavo.evaluation.batching import batch_size, joined, without_padding
from octavo.evaluation.labelled import Labelled, labelled
from octavo.evaluation.labels import class_names, class_number
from octavo.evaluation.metrics import top_k
from octavo.evaluation.pictures import Pictures, described
from octavo.evaluation.task import Array, Batch, ClassScore, Feeds, Figure, Outputs, Setting, Work, batches

DEFAULT_BATCH = 10
_FIVE = 5


@dataclass(frozen=True)
class Classification:
    """Options: where labels and class names are, how pictures become inputs, which output has the scores.

    ``offset`` is added to each label, for models that count the background as class 0. ``scale`` divides
    whole numbers in arrays, such as pixels.
    """

    labels: Any = None
    classes: str | Path | Sequence[str] | None = None
    preprocess: Any = None
    size: tuple[int, int] | None = None
    output: str | None = None
    offset: int = 0
    scale: float | None = None
    name: ClassVar[str] = "classification"
    summary: ClassVar[str] = "top-1 and top-5 of labelled pictures or arrays"

    def open(self, data: Any, setting: Setting) -> Work:
        """Samples, labels as class numbers, and batches."""
        given = described(data, self.preprocess, self.size)
        found = labelled(given.place, self.labels, setting, scale=self.scale)
        names = class_names(self.classes)
        if found.folders is not None and names is None:
            names = sorted({str(label) for label in found.labels})
        numbers = [
            class_number(label, names, f"Sample {index}") + self.offset
            for index, label in enumerate(found.labels)
        ]
        pictures = bool(found.parts) and isinstance(found.parts[0], Path)
        reading = ScoreReading(
            Pictures.of(setting.specs, given.preprocess, given.size) if pictures else None,
            batch_size(setting, 0) or None,
            self.output,
            found.folders if self.classes is None else None,
        )
        size = batch_size(setting, DEFAULT_BATCH)
        return Work(
            grouped(found, numbers, setting.batch, size),
            len(numbers),
            reading,
            FIGURES,
            per_class=partial(by_class, names=names),
            class_figure="top1",
            settings={"batch": size},
        )


def grouped(found: Labelled, numbers: Sequence[int], wish: int | None, default: int) -> list[Batch]:
    """Batches of the size that was asked for; without a wish feeds stay as they came."""
    parts = list(zip(found.parts, numbers, strict=True))
    if found.groups is not None and wish is None:
        return [Batch(tuple(group), tuple(parts[i] for i in group)) for group in found.groups]
    return batches(parts, wish or default)


@dataclass(frozen=True)
class ScoreReading:
    """Feeds out of pictures or arrays; of the scores, whether the label is first, or among five."""

    pictures: Pictures | None
    fixed: int | None
    output: str | None
    folders: int | None = None

    def feed(self, batch: Batch) -> Feeds:
        """Pictures are read here, in the worker."""
        sources = [source for source, _ in batch.parts]
        if self.pictures is not None:
            return self.pictures.feed(sources, self.fixed)[0]
        return joined(sources, self.fixed)

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """``(first, among five, label)``."""
        labels = np.array([label for _, label in batch.parts])
        scores = without_padding(score_table(outputs, self.output), len(labels))
        check_labels(scores, labels, batch, self.folders)
        return right_rows(scores, labels)


def right_rows(scores: Array, labels: Array) -> list[tuple[float, float, float]]:
    """``(first, among five, label)`` for each sample."""
    first, five = top_k(scores, labels, 1), top_k(scores, labels, _FIVE)
    return [(float(a), float(b), float(label)) for a, b, label in zip(first, five, labels, strict=True)]


def score_table(outputs: Outputs, name: str | None) -> Array:
    """The scores ``[samples, classes]`` among a model's outputs."""
    if name is not None:
        if name not in outputs:
            raise RecipeError(f"The model has no output {name!r}; it has {', '.join(outputs)}.")
        table = _table(outputs[name])
        if table is None:
            raise ModelError(
                f"The output {name!r} has shape {list(outputs[name].shape)}; scores of classes are "
                "[samples, classes]."
            )
        return table
    tables = {key: table for key, value in outputs.items() if (table := _table(value)) is not None}
    if len(tables) == 1:
        return next(iter(tables.values()))
    shapes = ", ".join(f"{key!r} {list(value.shape)}" for key, value in outputs.items())
    if not tables:
        raise ModelError(
            f"The outputs {shapes} hold no scores [samples, classes]; is this a classifier? Choose another "
            "task: --task detection, similarity, perplexity or agreement."
        )
    raise ModelError(f"The outputs {shapes} could all be scores; say which: output={next(iter(tables))!r}.")


def _table(value: Array) -> Array | None:
    if value.dtype.kind not in "fVui" or value.ndim < 2 or value.shape[1] < 2:
        return None
    if value.ndim > 2 and any(size != 1 for size in value.shape[2:]):
        return None
    return value.reshape(value.shape[:2])


def check_labels(scores: Array, labels: Array, batch: Batch, folders: int | None) -> None:
    """Raise where labels are none of the model's classes, or scores are no numbers."""
    classes = scores.shape[1]
    unusable = np.isnan(np.asarray(scores, np.float64)).any(axis=1)
    if unusable.any():
        raise ModelError(
            f"The scores of sample {batch.indices[int(np.argmax(unusable))]} hold NaN; look at that "
            "sample, and at what the model computes from it."
        )
    if folders is not None and folders != classes:
        raise DataError(
            f"There are {folders} folders of classes, and the model has {classes} classes; say which folder "
            "is which class: classes=… with the names in the order of the model's outputs."
        )
    bad = (labels < 0) | (labels >= classes)
    if bad.any():
        place = int(np.argmax(bad))
        raise DataError(
            f"Sample {batch.indices[place]} has the label {labels[place]}, and the model has {classes} "
            f"classes, 0 to {classes - 1}; give the labels of this model, or shift them: offset=-1."
        )


def column(index: int) -> Callable[[Any], float]:
    """The mean of a column of rows."""
    return partial(_mean, index=index)


def _mean(rows: Any, index: int) -> float:
    return float(rows[:, index].mean())


def right(index: int) -> Callable[[Any], npt.NDArray[np.bool_]]:
    """A column of rows as right or wrong."""
    return partial(_right, index=index)


def _right(rows: Any, index: int) -> npt.NDArray[np.bool_]:
    return np.asarray(rows[:, index] > 0.5)


FIGURES = (
    Figure("top1", column(0), percent=True, right=right(0)),
    Figure("top5", column(1), percent=True, right=right(1)),
)


def by_class(rows: Any, names: Sequence[str] | None) -> list[ClassScore]:
    """The share of right answers for each class that occurs."""
    found = []
    for number in np.unique(rows[:, 2]).astype(int):
        own = rows[rows[:, 2] == number, 0]
        name = names[number] if names is not None and 0 <= number < len(names) else str(number)
        found.append(ClassScore(name, float(own.mean()), len(own)))
    return found
