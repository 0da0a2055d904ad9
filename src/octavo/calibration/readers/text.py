"""Texts as samples: one for each line, turned into ids by a tokenizer file."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from octavo.calibration.readers.batches import batch_of
from octavo.calibration.readers.lines import lines
from octavo.calibration.readers.source import Array, Found, Sample, Specs, least
from octavo.calibration.readers.tokenizers import encode, open_tokenizer
from octavo.errors import DataError
from octavo.model.session import InputSpec

MAX_LENGTH = 128
_FIELDS = {
    "ids": ("input_ids", "ids", "input_word_ids", "tokens", "token_ids"),
    "attention_mask": ("attention_mask", "input_mask", "mask"),
    "type_ids": ("token_type_ids", "segment_ids", "type_ids", "input_type_ids"),
    "positions": ("position_ids", "positions"),
}
_PADS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>")


@dataclass(frozen=True)
class Text:
    """Texts and a tokenizer; see :func:`text`."""

    texts: Path | tuple[str, ...]
    tokenizer: Path
    max_length: int | None = None
    batch: int | None = None
    column: str | None = None

    def for_inputs(self, specs: Specs) -> TextSource:
        """The samples for a model with these inputs."""
        fields = {spec.name: _field(spec) for spec in specs}
        ids = next((spec for spec in specs if fields[spec.name] == "ids"), None)
        if ids is None:
            raise DataError(
                f"The model has no input of token ids, such as input_ids; it has {', '.join(fields)}."
            )
        fixed = batch_of(ids)
        if fixed is not None and self.batch not in (None, fixed):
            raise DataError(
                f"The model takes {ids.name!r} in batches of {fixed}, and {self.batch} was asked for."
            )
        length = ids.shape[1] if len(ids.shape) > 1 else None
        padded = length if isinstance(length, int) and length > 0 else None
        most = least(self.max_length, padded) or MAX_LENGTH
        _tokenizer(self.tokenizer, most)
        total = sum(1 for _ in lines(self.texts, self.column))
        size = fixed or self.batch or 1
        if total < (size if fixed else 1):
            raise DataError(f"{self._where} holds {total} texts; give at least {size if fixed else 1}.")
        return TextSource(self, tuple(specs), fields, padded, most, size, fixed is not None, total)

    @property
    def _where(self) -> str:
        return str(self.texts) if isinstance(self.texts, Path) else "The list"


def text(
    texts: str | os.PathLike[str] | Iterable[str],
    tokenizer: str | os.PathLike[str],
    *,
    max_length: int | None = None,
    batch: int | None = None,
    column: str | None = None,
) -> Text:
    """Texts as data: a file with one on each line, or a list of them, and a ``tokenizer.json``.

    Of ``.jsonl``, ``.csv`` and ``.tsv`` files the named ``column`` is taken (``text`` if none is named).
    Ids, masks, token types and positions go to the inputs of these names. Texts are cut at ``max_length``
    tokens and padded to the model's fixed length, else to the longest of the ``batch``.
    """
    if isinstance(texts, str | os.PathLike):
        given: Path | tuple[str, ...] = Path(texts)
    else:
        given = tuple(texts)
    return Text(given, Path(tokenizer), max_length, batch, column)


def _field(spec: InputSpec) -> str:
    name = spec.name.partition(":")[0].rpartition("/")[2].lower()
    for field, names in _FIELDS.items():
        if name in names:
            return field
    raise DataError(
        f"The model has an input {spec.name!r}, which a tokenizer does not fill; it fills "
        f"{', '.join(names[0] for names in _FIELDS.values())}. Make the samples with a function of your own."
    )


@dataclass(frozen=True, eq=False)
class TextSource:
    """Feeds of ``batch`` texts each; a limit counts texts."""

    given: Text
    specs: Specs
    fields: dict[str, str]
    padded: int | None
    most: int
    batch: int
    full: bool
    total: int
    limit: int | None = None

    @property
    def sample_count(self) -> int:
        """The number of texts."""
        return self.total if self.limit is None else min(self.total, self.limit)

    @property
    def notes(self) -> tuple[str, ...]:
        """Texts that were left out."""
        rest = self.sample_count % self.batch
        if not self.full or not rest:
            return ()
        return (f"the model takes batches of {self.batch}; the last {rest} texts fill none and are left out",)

    @property
    def length(self) -> int:
        """The number of feeds."""
        texts = self.sample_count
        return texts // self.batch if self.full else -(-texts // self.batch)

    def limited(self, samples: int) -> TextSource:
        """The feeds of the first texts."""
        return replace(self, limit=least(self.limit, samples))

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Feeds by index."""
        end = self.length if stop is None else min(stop, self.length)
        texts = itertools.islice(lines(self.given.texts, self.given.column), first * self.batch, self.limit)
        for _ in range(first, end):
            group = list(itertools.islice(texts, self.batch))
            yield Found(self._encode([one for _, one in group]), _places(group))

    def _encode(self, texts: Sequence[str]) -> dict[str, Array]:
        loaded, pad, left = _tokenizer(self.given.tokenizer, self.most)
        encoded = encode(loaded, texts, self.given.tokenizer)
        width = self.padded or max(1, *(len(one.ids) for one in encoded))
        shape = (len(texts), width)
        rows = {
            "ids": np.full(shape, pad, np.int64),
            "attention_mask": np.zeros(shape, np.int64),
            "type_ids": np.zeros(shape, np.int64),
        }
        for row, one in enumerate(encoded):
            place = slice(width - len(one.ids), width) if left else slice(0, len(one.ids))
            for field, array in rows.items():
                array[row, place] = getattr(one, field)
        counted = np.maximum(np.cumsum(rows["attention_mask"], 1) - 1, 0)
        rows["positions"] = counted if left else np.broadcast_to(np.arange(width), shape)
        return {spec.name: rows[self.fields[spec.name]].astype(spec.dtype) for spec in self.specs}


def _places(group: Sequence[tuple[str, str]]) -> str:
    return group[0][0] if len(group) == 1 else f"{group[0][0]} … {group[-1][0]}"


@functools.lru_cache(maxsize=4)
def _tokenizer(path: Path, most: int) -> tuple[Any, int, bool]:
    """The tokenizer, the id that pads, and whether padding stands on the left."""
    loaded = open_tokenizer(path)
    padding = loaded.padding or {}
    named = (loaded.token_to_id(token) for token in _PADS)
    pad = padding.get("pad_id", next((number for number in named if number is not None), 0))
    loaded.no_padding()
    loaded.enable_truncation(most)
    return loaded, pad, padding.get("direction") == "left"
