"""Perplexity: how well a language model predicts a text, over windows of tokens.

Beside a reference, as a rule the float model, two figures say how far the predictions themselves have moved::

    kl         mean over all tokens of Σ p_ref · (log p_ref − log p), in nats
    same_top1  share of tokens where both models find the same next token most likely

Both see small changes that perplexity does not: an error may make a text as likely as before, or likelier.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from octavo.data.decoder import filled, ids_of
from octavo.data.feeds import checked
from octavo.data.readers.numpy_files import plain_array
from octavo.errors import DataError, ModelError, RecipeError
from octavo.evaluation.label_files import read_text
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
)
from octavo.evaluation.task_metrics import divergence, perplexity, token_nll
from octavo.evaluation.text_samples import token_ids, tokenizer_path


@dataclass(frozen=True)
class Perplexity:
    """Options: tokenizer, tokens in a window, the output with the logits.

    Data is a ``.txt`` file, an ``.npy`` file or array of token ids (in one row, or in windows), or feeds.
    """

    tokenizer: str | Path | None = None
    window: int = 512
    output: str | None = None
    name: ClassVar[str] = "perplexity"
    summary: ClassVar[str] = "perplexity of a language model over windows of tokens; KL beside a reference"

    def open(self, data: Any, context: TaskContext) -> PreparedTask:
        """Return windows that do not overlap; what is left over at the end is not counted."""
        if self.window < 2:
            raise RecipeError(
                f"window must be at least 2, not {self.window}: a next token has to be predicted."
            )
        ids = ids_of(context.specs)
        feeds = self._feeds(data, context)
        return PreparedTask(
            batches(feeds, 1),
            len(feeds),
            LogitProcessing(ids.name, self.output),
            _metrics,
            settings={"tokens": int(sum(feed[ids.name].size - len(feed[ids.name]) for feed in feeds))},
        )

    def _feeds(self, data: Any, context: TaskContext) -> list[Any]:
        if isinstance(data, str | Path) or hasattr(data, "__array__"):
            windows = self._windows(data, context)[: context.samples]
            return [filled(window, context.specs) for window in windows]
        taken = itertools.islice(data, context.samples)
        found = [checked(feed, context.specs, index) for index, feed in enumerate(taken)]
        if not found:
            raise DataError("There are no windows of tokens to evaluate; give at least one feed.")
        return found

    def _windows(self, data: Any, context: TaskContext) -> Array:
        where = str(data) if isinstance(data, str | Path) else "The array"
        tokens = np.asarray(self._tokens(data, context))
        if tokens.dtype.kind not in "iu":
            raise DataError(f"{where} holds {tokens.dtype}; token ids must be integers.")
        if tokens.ndim == 2:
            return tokens[:, None]
        count = tokens.size // self.window
        if tokens.ndim != 1 or not count:
            raise DataError(
                f"{where} holds {tokens.size} tokens, fewer than one window of {self.window}; give more "
                "text, or a smaller window."
            )
        return tokens[: count * self.window].reshape(count, 1, self.window)

    def _tokens(self, data: Any, context: TaskContext) -> Any:
        if not isinstance(data, str | Path):
            return data
        path = Path(data)
        if path.suffix.lower() == ".npy":
            return plain_array(path)
        if path.suffix.lower() != ".txt":
            raise DataError(f"{path} is not a text file; perplexity takes .txt, or .npy with token ids.")
        return token_ids(read_text(path, "text"), tokenizer_path(self.tokenizer, context.model))


def _metrics(rows: F64) -> tuple[Metric, ...]:
    """Return perplexity, and beside a reference the distance from it."""
    found = (Metric("perplexity", perplexity, higher_is_better=False),)
    if np.isnan(rows[:, 2:]).any():
        return found
    return (
        *found,
        Metric("kl", partial(_by_token, column=2), higher_is_better=False),
        Metric("same_top1", partial(_by_token, column=3), percent=True),
    )


def _by_token(rows: F64, column: int) -> float:
    return float(rows[:, column].sum() / rows[:, 1].sum())


@dataclass(frozen=True)
class LogitProcessing:
    """Feeds windows, and keeps ``(sum of −log p, tokens, sum of KL, tokens with the same best)`` of each.

    The last two are NaN where there is no reference.
    """

    ids: str
    output: str | None

    def feed(self, batch: Batch) -> Feeds:
        """Return the window as it is."""
        feed: Feeds = batch.items[0]
        return feed

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """Return the negative log likelihood of all next tokens of the window, and their number."""
        ids = feed[self.ids]
        logits = self._logits(outputs, ids)
        nll = sum(float(token_nll(logits[row, part], ids[row, 1:][part]).sum()) for row, part in _parts(ids))
        if not np.isfinite(nll):
            raise ModelError(f"The logits of window {batch.indices[0]} hold NaN or infinity.")
        return [(nll, float(ids.size - len(ids)), math.nan, math.nan)]

    def rows_beside(self, outputs: Outputs, reference: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """Return the same with the divergence from the reference, and how often both predict alike."""
        (nll, tokens, _, _), *_ = self.rows(outputs, batch, feed)
        ids = feed[self.ids]
        logits, expected = self._logits(outputs, ids), self._logits(reference, ids)
        if logits.shape != expected.shape:
            raise ModelError(
                f"The models have {logits.shape[2]} and {expected.shape[2]} tokens; give a model and the one"
                " made from it."
            )
        apart, same = 0.0, 0
        for row, part in _parts(ids):
            own, other = logits[row, part], expected[row, part]
            apart += float(divergence(own, other).sum())
            same += int((own.argmax(axis=1) == other.argmax(axis=1)).sum())
        return [(nll, tokens, apart, float(same))]

    def _logits(self, outputs: Outputs, ids: Array) -> Array:
        chosen = list(outputs.values()) if self.output is None else [named_output(outputs, self.output)]
        found = next(
            (a for a in chosen if a.ndim == 3 and a.shape[:2] == ids.shape and a.dtype.kind in "fV"), None
        )
        if found is None:
            raise ModelError(
                f"None of the outputs {shapes_text(outputs)} are logits [batch, tokens, vocabulary] for ids "
                f"{list(ids.shape)}; is this a language model?"
            )
        if int(ids.max(initial=0)) >= found.shape[2]:
            raise DataError(
                f"The token {int(ids.max())} is beyond the model's vocabulary of {found.shape[2]}; the "
                "tokenizer belongs to another model."
            )
        return found


def _parts(ids: Array) -> Iterator[tuple[int, slice]]:
    """Yield the positions that predict a token, a few of a row at a time, to bound the memory."""
    last = ids.shape[1] - 1
    for row in range(len(ids)):
        for start in range(0, last, _POSITIONS):
            yield row, slice(start, min(start + _POSITIONS, last))


_POSITIONS = 64  # of one window whose logits are in float64 at a time: 100 MB for 200,000 tokens
