"""Sentence similarity: Spearman's rank correlation of cosines with human scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from octavo.errors import DataError, ModelError, RecipeError
from octavo.evaluation.task import (
    F64,
    Array,
    Batch,
    Feeds,
    Metric,
    Outputs,
    PreparedTask,
    TaskContext,
    batches,
    named_output,
    shapes_text,
    strip_padding,
)
from octavo.evaluation.task_metrics import spearman
from octavo.evaluation.text_samples import TextFeeds, text_rows

DEFAULT_BATCH = 32  # texts of similar length
_POOLINGS = ("auto", "mean", "first", "none")


def _spearman(table: F64) -> float:
    return spearman(table[:, 0], table[:, 1])


@dataclass(frozen=True)
class Similarity:
    """Options: tokenizer, columns of the file, token limit, the output, how tokens become one vector.

    ``pooling`` is ``mean`` over the tokens that are not padding, ``first`` token, or ``none`` where the model
    returns one vector for each text; ``auto`` decides by the output's shape.
    """

    tokenizer: str | Path | None = None
    columns: Sequence[str | int] | None = None
    max_length: int | None = None
    output: str | None = None
    pooling: str = "auto"
    name: ClassVar[str] = "similarity"
    summary: ClassVar[str] = "rank correlation of sentence similarities (Spearman)"

    def open(self, data: Any, context: TaskContext) -> PreparedTask:
        """Return batches of texts of similar length: all first texts of the pairs, then all second ones."""
        if self.pooling not in _POOLINGS:
            raise RecipeError(f"There is no pooling {self.pooling!r}; choose {', '.join(_POOLINGS)}.")
        pairs = text_rows(data, 2, self.columns, context.samples)
        scores = [_number(label, index) for index, (_, label) in enumerate(pairs)]
        if len(pairs) < 2:
            raise DataError("A rank correlation needs at least two pairs of texts.")
        size = context.batch_size(DEFAULT_BATCH)
        texts = [words[side] for side in (0, 1) for words, _ in pairs]
        work: list[Batch] = []
        for side in (0, 1):
            own = range(side * len(pairs), (side + 1) * len(pairs))
            work += batches(texts, size, sorted(own, key=lambda index: len(texts[index])))
        feeds = TextFeeds.of(context, self.tokenizer, self.max_length)
        return PreparedTask(
            work,
            len(pairs),
            VectorProcessing(feeds, self.output, self.pooling),
            (Metric("spearman", _spearman),),
            fold=partial(_cosines, scores=np.array(scores)),
            settings={"batch": size},
        )


def _number(label: Any, index: int) -> float:
    try:
        value = float(label)
    except (TypeError, ValueError):
        value = math.nan
    if math.isnan(value):
        raise DataError(f"Sample {index} has the score {label!r}, which is not a number.")
    return value


def _cosines(vectors: Sequence[F64], scores: F64) -> F64:
    """Return rows ``(cosine, score)``."""
    table = np.stack(vectors)
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.where(lengths == 0.0, 1.0, lengths)
    half = len(scores)
    return np.column_stack([(unit[:half] * unit[half:]).sum(axis=1), scores])


@dataclass(frozen=True)
class VectorProcessing:
    """Tokenizes texts, and keeps one vector for each."""

    feeds: TextFeeds
    output: str | None
    pooling: str

    def feed(self, batch: Batch) -> Feeds:
        """Tokenize the texts, in the worker."""
        return self.feeds.feed(batch.items)

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """Return a vector for each text."""
        vectors = pooled(_vectors(outputs, self.output), feed, self.pooling)
        if not np.isfinite(vectors).all():
            raise ModelError(f"The vectors of the batch with sample {batch.indices[0]} hold NaN or infinity.")
        return list(strip_padding(vectors, len(batch.items)))


def _vectors(outputs: Outputs, name: str | None) -> Array:
    if name is not None:
        return named_output(outputs, name)
    for value in outputs.values():
        if value.dtype.kind in "fV" and value.ndim in (2, 3):
            return value
    raise ModelError(
        f"None of the outputs {shapes_text(outputs)} are vectors of texts or tokens; is this a sentence "
        "encoder?"
    )


def pooled(values: Array, feed: Feeds, pooling: str) -> F64:
    """Return token vectors ``[N, T, H]`` as text vectors ``[N, H]``."""
    if values.ndim == 2:
        if pooling in ("mean", "first"):
            raise ModelError(
                f"The output has shape {list(values.shape)}, one vector for each text; give pooling='none'."
            )
        return np.asarray(values, np.float64)
    if pooling == "none" or values.ndim != 3:
        raise ModelError(
            f"The output has shape {list(values.shape)}; it must be a vector for each text, or one for each "
            "token."
        )
    if pooling == "first":
        return np.asarray(values[:, 0], np.float64)
    mask = next((array for name, array in feed.items() if "mask" in name.lower()), None)
    weights = np.ones(values.shape[:2]) if mask is None else np.asarray(mask)
    summed = (values * weights[:, :, None]).sum(axis=1)
    return np.asarray(summed / weights.sum(axis=1, keepdims=True), np.float64)
