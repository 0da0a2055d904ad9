"""Text classification: the share of texts whose class is ranked first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from octavo.evaluation.label_files import class_names, class_number
from octavo.evaluation.labelled_samples import labelled_samples
from octavo.evaluation.task import Batch, Feeds, Outputs, PreparedTask, TaskContext, batches, share
from octavo.evaluation.tasks.classification import ScoreProcessing, by_class, from_samples, ranked_rows
from octavo.evaluation.text_samples import TextFeeds, text_rows

DEFAULT_BATCH = 32  # texts of similar length
METRICS = (share("accuracy", 0),)


@dataclass(frozen=True)
class TextClassification:
    """Options: tokenizer, columns of the file, class names, token limit, the output with the scores."""

    tokenizer: str | Path | None = None
    columns: Sequence[str | int] | None = None
    classes: str | Path | Sequence[str] | None = None
    labels: Any = None
    max_length: int | None = None
    output: str | None = None
    name: ClassVar[str] = "text-classification"
    summary: ClassVar[str] = "accuracy on labelled texts"

    def open(self, data: Any, context: TaskContext) -> PreparedTask:
        """Return batches of texts of similar length, or of feeds with labels."""
        names = class_names(self.classes)
        if not _is_text(data):
            found = labelled_samples(data, self.labels, context)
            processing = ScoreProcessing(None, context.fixed_batch, self.output)
            return from_samples(found, names, processing, context, DEFAULT_BATCH, METRICS)
        rows = text_rows(data, 1, self.columns, context.samples)
        items = [
            (words[0], class_number(label, names, f"Sample {i}")) for i, (words, label) in enumerate(rows)
        ]
        size = context.batch_size(DEFAULT_BATCH)
        order = sorted(range(len(items)), key=lambda index: len(items[index][0]))
        return PreparedTask(
            batches(items, size, order),
            len(items),
            TextProcessing(TextFeeds.of(context, self.tokenizer, self.max_length), self.output),
            METRICS,
            per_class=partial(by_class, names=names),
            class_metric=METRICS[0].name,
            settings={"batch": size},
        )


def _is_text(data: Any) -> bool:
    if isinstance(data, str | Path):
        return Path(data).suffix.lower() in (".tsv", ".csv", ".jsonl", ".txt")
    first = data[0] if isinstance(data, list) and data else None
    return isinstance(first, tuple | list) and isinstance(first[0], str)


@dataclass(frozen=True)
class TextProcessing:
    """Tokenizes texts, and keeps whether the label is ranked first."""

    feeds: TextFeeds
    output: str | None

    def feed(self, batch: Batch) -> Feeds:
        """Tokenize the texts, in the worker."""
        return self.feeds.feed([words for words, _ in batch.items])

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """Return ``(first, among five, label)`` for each text."""
        return ranked_rows(outputs, self.output, batch)
