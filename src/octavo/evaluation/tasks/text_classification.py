"""Text classification: the share of texts whose class comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from octavo.evaluation.batching import batch_size, without_padding
from octavo.evaluation.labelled import labelled
from octavo.evaluation.labels import class_names, class_number
from octavo.evaluation.task import Batch, Feeds, Figure, Outputs, Setting, Work, batches
from octavo.evaluation.tasks.classification import (
    ScoreReading,
    by_class,
    check_labels,
    column,
    grouped,
    right,
    right_rows,
    score_table,
)
from octavo.evaluation.texts import TextFeeds, rows, tokenizer_of

DEFAULT_BATCH = 32
FIGURES = (Figure("accuracy", column(0), percent=True, right=right(0)),)


@dataclass(frozen=True)
class TextClassification:
    """Options: tokenizer, columns of the file, class names, most tokens, the output with the scores."""

    tokenizer: str | Path | None = None
    columns: Sequence[str | int] | None = None
    classes: str | Path | Sequence[str] | None = None
    labels: Any = None
    max_length: int | None = None
    output: str | None = None
    name: ClassVar[str] = "text-classification"
    summary: ClassVar[str] = "accuracy on labelled texts"

    def open(self, data: Any, setting: Setting) -> Work:
        """Texts and a tokenizer, or feeds with labels. Texts of like length share a batch."""
        names = class_names(self.classes)
        size = batch_size(setting, DEFAULT_BATCH)
        if not _is_text(data):
            found = labelled(data, self.labels, setting)
            numbers = [class_number(label, names, f"Sample {i}") for i, label in enumerate(found.labels)]
            work = grouped(found, numbers, setting.batch, size)
            fed = ScoreReading(None, batch_size(setting, 0) or None, self.output)
            return Work(work, len(numbers), fed, FIGURES, per_class=partial(by_class, names=names))
        table = rows(data, 1, self.columns, setting.samples)
        parts = [
            (words[0], class_number(label, names, f"Sample {i}")) for i, (words, label) in enumerate(table)
        ]
        reading = TextReading(
            TextFeeds(
                tuple(setting.specs),
                tokenizer_of(self.tokenizer, setting.model),
                self.max_length,
                batch_size(setting, 0) or None,
            ),
            self.output,
        )
        order = sorted(range(len(parts)), key=lambda index: len(parts[index][0]))
        return Work(
            batches(parts, size, order),
            len(parts),
            reading,
            FIGURES,
            per_class=partial(by_class, names=names),
            class_figure="accuracy",
            settings={"batch": size},
        )


def _is_text(data: Any) -> bool:
    if isinstance(data, str | Path):
        return Path(data).suffix.lower() in (".tsv", ".csv", ".jsonl", ".txt")
    return (
        isinstance(data, list)
        and bool(data)
        and isinstance(data[0], tuple | list)
        and isinstance(data[0][0], str)
    )


@dataclass(frozen=True)
class TextReading:
    """Texts in, whether the label comes first out."""

    feeds: TextFeeds
    output: str | None

    def feed(self, batch: Batch) -> Feeds:
        """Texts become ids here, in the worker."""
        return self.feeds.feed([words for words, _ in batch.parts])

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """``(first, among five, label)``."""
        labels = np.array([label for _, label in batch.parts])
        scores = without_padding(score_table(outputs, self.output), len(labels))
        check_labels(scores, labels, batch, None)
        return right_rows(scores, labels)
