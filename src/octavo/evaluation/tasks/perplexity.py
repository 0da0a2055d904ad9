"""Perplexity: how surprised a language model is by a text, over windows of tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from octavo.calibration.data import checked
from octavo.calibration.readers.numpy_files import plain_array
from octavo.errors import DataError, ModelError, RecipeError
from octavo.evaluation.labels import read_text
from octavo.evaluation.metrics import perplexity, token_nll
from octavo.evaluation.task import Array, Batch, Feeds, Figure, Outputs, Setting, Work, batches
from octavo.evaluation.texts import token_ids, tokenizer_of
from octavo.model.session import InputSpec

FIGURES = (Figure("perplexity", perplexity, higher_is_better=False),)


@dataclass(frozen=True)
class Perplexity:
    """Options: tokenizer, tokens in a window, the output with the logits.

    Data is a ``.txt`` file, an ``.npy`` file or array of token ids (in one row, or in windows), or feeds.
    """

    tokenizer: str | Path | None = None
    window: int = 512
    output: str | None = None
    name: ClassVar[str] = "perplexity"
    summary: ClassVar[str] = "perplexity of a language model over windows of tokens"

    def open(self, data: Any, setting: Setting) -> Work:
        """Windows that do not overlap; what is left over at the end is not counted."""
        if self.window < 2:
            raise RecipeError(f"A window of {self.window} tokens has no next token to tell; use at least 2.")
        ids = next((spec for spec in setting.specs if "ids" in spec.name.lower()), setting.specs[0])
        feeds = self._feeds(data, setting, ids)
        return Work(
            batches(feeds, 1),
            len(feeds),
            LogitReading(ids.name, self.output),
            FIGURES,
            settings={"tokens": int(sum(feed[ids.name].size - len(feed[ids.name]) for feed in feeds))},
        )

    def _feeds(self, data: Any, setting: Setting, ids: InputSpec) -> list[Any]:
        if isinstance(data, str | Path) or hasattr(data, "__array__"):
            windows = self._windows(data, setting)[: setting.samples]
            return [_filled(window, setting.specs, ids) for window in windows]
        taken = itertools.islice(data, setting.samples)
        found = [checked(feed, setting.specs, index) for index, feed in enumerate(taken)]
        if not found:
            raise DataError("There is no window of tokens to evaluate.")
        return found

    def _windows(self, data: Any, setting: Setting) -> Array:
        where = str(data) if isinstance(data, str | Path) else "The array"
        tokens = np.asarray(self._tokens(data, setting))
        if tokens.dtype.kind not in "iu":
            raise DataError(f"{where} holds {tokens.dtype}; token ids are whole numbers.")
        if tokens.ndim == 2:
            return tokens[:, None]
        count = tokens.size // self.window
        if tokens.ndim != 1 or not count:
            raise DataError(
                f"{where} holds {tokens.size} tokens, fewer than one window of {self.window}; give more "
                "text, or a smaller window."
            )
        return tokens[: count * self.window].reshape(count, 1, self.window)

    def _tokens(self, data: Any, setting: Setting) -> Any:
        if not isinstance(data, str | Path):
            return data
        path = Path(data)
        if path.suffix.lower() == ".npy":
            return plain_array(path)
        if path.suffix.lower() != ".txt":
            raise DataError(f"{path} is no text; perplexity takes a .txt file, or .npy with token ids.")
        return token_ids(read_text(path, "text"), tokenizer_of(self.tokenizer, setting.model))


def _filled(ids: Array, specs: Sequence[InputSpec], own: InputSpec) -> dict[str, Array]:
    """A window with the mask, positions and empty past that a model may ask for beside the ids."""
    feed: dict[str, Array] = {}
    for spec in specs:
        name = spec.name.lower()
        if spec.name == own.name:
            feed[spec.name] = ids.astype(spec.dtype)
        elif "mask" in name:
            feed[spec.name] = np.ones(ids.shape, spec.dtype)
        elif "position" in name:
            feed[spec.name] = np.arange(ids.shape[1]).astype(spec.dtype)[None]
        elif "token_type" in name:
            feed[spec.name] = np.zeros(ids.shape, spec.dtype)
        elif "past" in name:
            sizes = [dim if isinstance(dim, int) and dim > 0 else 0 for dim in spec.shape[1:]]
            feed[spec.name] = np.zeros((1, *sizes), spec.dtype)
        else:
            raise ModelError(
                f"The model has the input {spec.name!r}, which token ids do not fill; give feeds as data."
            )
    return feed


@dataclass(frozen=True)
class LogitReading:
    """Windows in, ``(sum of −log p, tokens)`` out."""

    ids: str
    output: str | None

    def feed(self, batch: Batch) -> Feeds:
        """A window as it is."""
        feed: Feeds = batch.parts[0]
        return feed

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """The likelihood of each next token."""
        ids = feed[self.ids]
        logits = self._logits(outputs, ids)
        parts = [token_nll(logits[i, :-1], ids[i, 1:]) for i in range(len(ids))]
        nll = float(sum(part.sum() for part in parts))
        if not np.isfinite(nll):
            raise ModelError(f"The logits of window {batch.indices[0]} hold NaN or infinity.")
        return [(nll, float(sum(part.size for part in parts)))]

    def _logits(self, outputs: Outputs, ids: Array) -> Array:
        if self.output is not None and self.output not in outputs:
            raise RecipeError(f"The model has no output {self.output!r}; it has {', '.join(outputs)}.")
        chosen = [outputs[self.output]] if self.output is not None else list(outputs.values())
        found = next(
            (a for a in chosen if a.ndim == 3 and a.shape[:2] == ids.shape and a.dtype.kind in "fV"), None
        )
        if found is None:
            shapes = ", ".join(f"{name!r} {list(value.shape)}" for name, value in outputs.items())
            raise ModelError(
                f"The outputs {shapes} hold no logits [batch, tokens, vocabulary] for ids {list(ids.shape)}; "
                "is this a language model?"
            )
        if int(ids.max(initial=0)) >= found.shape[2]:
            raise DataError(
                f"The token {int(ids.max())} is beyond the model's vocabulary of {found.shape[2]}; the "
                "tokenizer belongs to another model."
            )
        return found
