"""Sentence similarity: Spearman's rank correlation of cosines with the scores that people gave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from octavo.errors import DataError, ModelError, RecipeError
from octavo.evaluation.batching import batch_size, without_padding
from octavo.evaluation.metrics import F64, Array, spearman
from octavo.evaluation.task import Batch, Feeds, Figure, Outputs, Setting, Work, batches
from octavo.evaluation.texts import TextFeeds, rows, tokenizer_of

DEFAULT_BATCH = 32
_POOLINGS = ("auto", "mean", "first", "none")


def _spearman(table: F64) -> float:
    return spearman(table[:, 0], table[:, 1])


FIGURES = (Figure("spearman", _spearman),)


@dataclass(frozen=True)
class Similarity:
    """Options: tokenizer, columns of the file, most tokens, the output, how tokens become one vector.

    ``pooling`` is ``mean`` over tokens that are no padding, ``first`` token, or ``none`` where the model
    gives one vector for each text; ``auto`` goes by the output's shape.
    """

    tokenizer: str | Path | None = None
    columns: Sequence[str | int] | None = None
    max_length: int | None = None
    output: str | None = None
    pooling: str = "auto"
    name: ClassVar[str] = "similarity"
    summary: ClassVar[str] = "rank correlation of sentence similarities (Spearman)"

    def open(self, data: Any, setting: Setting) -> Work:
        """Pairs of texts with a score. All first texts come before all second ones, by length in each."""
        if self.pooling not in _POOLINGS:
            raise RecipeError(f"There is no pooling {self.pooling!r}; choose {', '.join(_POOLINGS)}.")
        table = rows(data, 2, self.columns, setting.samples)
        scores = [_number(label, index) for index, (_, label) in enumerate(table)]
        if len(table) < 2:
            raise DataError("A rank correlation needs two pairs of texts at least.")
        size = batch_size(setting, DEFAULT_BATCH)
        texts = [words[side] for side in (0, 1) for words, _ in table]
        work: list[Batch] = []
        for side in (0, 1):
            own = range(side * len(table), (side + 1) * len(table))
            work += batches(texts, size, sorted(own, key=lambda index: len(texts[index])))
        feeds = TextFeeds(
            tuple(setting.specs),
            tokenizer_of(self.tokenizer, setting.model),
            self.max_length,
            batch_size(setting, 0) or None,
        )
        return Work(
            work,
            len(table),
            VectorReading(feeds, self.output, self.pooling),
            FIGURES,
            fold=partial(_cosines, scores=np.array(scores)),
            settings={"batch": size},
        )


def _number(label: Any, index: int) -> float:
    try:
        value = float(label)
    except (TypeError, ValueError):
        value = math.nan
    if math.isnan(value):
        raise DataError(f"Sample {index} has the score {label!r}, which is no number.")
    return value


def _cosines(vectors: Sequence[F64], scores: F64) -> F64:
    """Rows ``(cosine, score)``."""
    table = np.stack(vectors)
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.where(lengths == 0.0, 1.0, lengths)
    half = len(scores)
    return np.column_stack([(unit[:half] * unit[half:]).sum(axis=1), scores])


@dataclass(frozen=True)
class VectorReading:
    """Texts in, one vector for each out."""

    feeds: TextFeeds
    output: str | None
    pooling: str

    def feed(self, batch: Batch) -> Feeds:
        """Texts become ids here, in the worker."""
        return self.feeds.feed(batch.parts)

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """A vector for each text."""
        vectors = pooled(_chosen(outputs, self.output), feed, self.pooling)
        if not np.isfinite(vectors).all():
            raise ModelError(f"The vectors of the batch with sample {batch.indices[0]} hold NaN or infinity.")
        return list(without_padding(vectors, len(batch.parts)))


def _chosen(outputs: Outputs, name: str | None) -> Array:
    if name is not None:
        if name not in outputs:
            raise RecipeError(f"The model has no output {name!r}; it has {', '.join(outputs)}.")
        return outputs[name]
    for value in outputs.values():
        if value.dtype.kind in "fV" and value.ndim in (2, 3):
            return value
    shapes = ", ".join(f"{key!r} {list(value.shape)}" for key, value in outputs.items())
    raise ModelError(f"The outputs {shapes} hold no vectors of texts or tokens; is this a sentence encoder?")


def pooled(values: Array, feed: Feeds, pooling: str) -> F64:
    """Token vectors ``[N, T, H]`` as text vectors ``[N, H]``."""
    if values.ndim == 2:
        if pooling in ("mean", "first"):
            raise ModelError(f"The output has shape {list(values.shape)}, one vector a text: pooling='none'.")
        return np.asarray(values, np.float64)
    if pooling == "none" or values.ndim != 3:
        raise ModelError(
            f"The output has shape {list(values.shape)}; a vector for each text, or for each of its tokens, "
            "is needed."
        )
    if pooling == "first":
        return np.asarray(values[:, 0], np.float64)
    mask = next((array for name, array in feed.items() if "mask" in name.lower()), None)
    weights = np.ones(values.shape[:2]) if mask is None else np.asarray(mask)
    summed = (values * weights[:, :, None]).sum(axis=1)
    return np.asarray(summed / weights.sum(axis=1, keepdims=True), np.float64)
