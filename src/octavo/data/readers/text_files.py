"""Texts as samples, turned into token ids by a tokenizer file; needs the package ``tokenizers``.

A file holds one text on each line, or in a column of each row (``.jsonl``, ``.csv``, ``.tsv``). Tokenizer
files may come with a model from anybody: the library may fail on them in any way.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from octavo.data.batches import Batches, batch_of, batch_size, places
from octavo.data.decoder import empty_past, is_past
from octavo.data.source import Array, FoundIn, Sample, Specs, least
from octavo.errors import DataError
from octavo.model.runtime.session import InputSpec

SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv")
MAX_LENGTH = 128  # tokens of a text, where neither the model nor the user says
_MAX_TOKENIZER = 256 << 20  # bytes of a tokenizer file; the largest vocabularies in use take a tenth of it
_LONGEST_LINE = 1 << 24  # characters
_FIELDS = {
    "ids": ("input_ids", "ids", "input_word_ids", "tokens", "token_ids"),
    "attention_mask": ("attention_mask", "input_mask", "mask"),
    "type_ids": ("token_type_ids", "segment_ids", "type_ids", "input_type_ids"),
    "positions": ("position_ids", "positions"),
    "use_cache": ("use_cache_branch",),
}
_PAST = "past"  # the field of an input that is a part of the cache
_PADS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>")


def read(data: object, specs: Specs) -> None:
    """Refuse a file of texts that comes without a tokenizer."""
    if isinstance(data, Path) and data.suffix.lower() in SUFFIXES and not data.is_dir():
        raise DataError(
            f"{data} holds texts, which need a tokenizer; give one with octavo.text, for example "
            "tokenizer='tokenizer.json'."
        )


@dataclass(frozen=True)
class Text:
    """Texts and a tokenizer; see :func:`text`."""

    texts: Path | tuple[str, ...]
    tokenizer: Path
    max_length: int | None = None
    batch: int | None = None
    column: str | None = None

    def for_inputs(self, specs: Specs) -> Batches:
        """Return the feeds for a model with these inputs."""
        fields = {spec.name: _field(spec) for spec in specs}
        ids = next((spec for spec in specs if fields[spec.name] == "ids"), None)
        if ids is None:
            raise DataError(
                f"The model has no input of token ids, such as input_ids; it has {', '.join(fields)}."
            )
        size, is_fixed = batch_size(self.batch, ids), batch_of(ids) is not None
        length = ids.shape[1] if len(ids.shape) > 1 else None
        padded = length if isinstance(length, int) and length > 0 else None
        encoder = Encoder(
            self.tokenizer, tuple(specs), fields, padded, least(self.max_length, padded) or MAX_LENGTH
        )
        encoder.open()
        source = TextSource(self.texts, self.column, sum(1 for _ in lines(self.texts, self.column)))
        fewest = size if is_fixed else 1
        if source.length < fewest:
            where = str(self.texts) if isinstance(self.texts, Path) else "The list"
            raise DataError(f"{where} holds {source.length} texts; give at least {fewest}.")
        return Batches(source, size, full=is_fixed, join=encoder.feed)


def text(
    texts: str | os.PathLike[str] | Iterable[str],
    tokenizer: str | os.PathLike[str],
    *,
    max_length: int | None = None,
    batch: int | None = None,
    column: str | None = None,
) -> Text:
    """Return texts as data: a file with one on each line, or a list of them, and a ``tokenizer.json``.

    Of ``.jsonl``, ``.csv`` and ``.tsv`` files the named ``column`` is taken (``text`` if none is named).
    Ids, masks, token types and positions go to the inputs of these names; a cache is empty. Texts are cut at
    ``max_length`` tokens and padded to the model's fixed length, else to the longest of the ``batch``.
    """
    given = Path(texts) if isinstance(texts, str | os.PathLike) else tuple(texts)
    return Text(given, Path(tokenizer), max_length, batch, column)


def _field(spec: InputSpec) -> str:
    """Return the field of an encoded text that an input takes, by its name; ``past`` of a cache."""
    if is_past(spec):
        return _PAST
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
    """The texts themselves, one in each sample."""

    texts: Path | tuple[str, ...]
    column: str | None
    length: int

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give texts by index."""
        for where, one in itertools.islice(lines(self.texts, self.column), first, stop):
            yield FoundIn({"text": one}, where)


@dataclass(frozen=True, eq=False)
class Encoder:
    """A tokenizer, and how its output becomes the inputs of a model.

    Texts are cut at ``max_length`` tokens, and padded to ``padded`` or else to the longest.
    """

    tokenizer: Path
    specs: Specs
    fields: dict[str, str]  # the field of an encoded text by the name of the input
    padded: int | None
    max_length: int

    def open(self) -> tuple[Any, int, bool]:
        """Return the tokenizer, the id that pads, and whether padding stands on the left."""
        return _with_padding(self.tokenizer, self.max_length)

    def feed(self, group: Sequence[Sample]) -> Sample:
        """Return one feed for several texts."""
        loaded, pad, left = self.open()
        encoded = encode(loaded, [sample["text"] for sample in group], self.tokenizer)
        width = self.padded or max(1, *(len(one.ids) for one in encoded))
        shape = (len(group), width)
        rows: dict[str, Array] = {
            "ids": np.full(shape, pad, np.int64),
            "attention_mask": np.zeros(shape, np.int64),
            "type_ids": np.zeros(shape, np.int64),
        }
        for row, one in enumerate(encoded):
            position = slice(width - len(one.ids), width) if left else slice(0, len(one.ids))
            for field, array in rows.items():
                array[row, position] = getattr(one, field)
        counted = np.maximum(np.cumsum(rows["attention_mask"], 1) - 1, 0)
        rows["positions"] = counted if left else np.broadcast_to(np.arange(width), shape)
        rows["use_cache"] = np.zeros(1, np.bool_)  # of a merged decoder: the cache is empty
        found = {
            spec.name: empty_past(spec, len(group))
            if self.fields[spec.name] == _PAST
            else rows[self.fields[spec.name]].astype(spec.dtype)
            for spec in self.specs
        }
        return FoundIn(found, places(group))


@functools.lru_cache(maxsize=4)
def _with_padding(path: Path, max_length: int) -> tuple[Any, int, bool]:
    loaded = open_tokenizer(path)
    padding = loaded.padding or {}
    named = (loaded.token_to_id(token) for token in _PADS)
    pad = padding.get("pad_id", next((number for number in named if number is not None), 0))
    loaded.no_padding()
    loaded.enable_truncation(max_length)
    return loaded, pad, padding.get("direction") == "left"


def tokenizer_file(path: Path) -> Path:
    """Return the file of a tokenizer that is named by its file or by the folder that holds it."""
    found = path / "tokenizer.json" if path.is_dir() else path
    if not found.exists():
        where = f"the folder {path} holds no tokenizer.json" if path.is_dir() else f"{path} does not exist"
        raise DataError(f"There is no tokenizer: {where}; give a tokenizer.json, or the folder with it.")
    if not found.is_file():
        raise DataError(f"{found} can't be read as a tokenizer: it is not a regular file.")
    return found


def open_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a ``tokenizer.json``, apart from any other that was opened."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataError("Reading texts needs tokenizers: pip install 'octavo[text]'.") from error
    with _library_errors(f"{path} can't be read as a tokenizer", "Give a tokenizer.json."):
        if path.is_file() and path.stat().st_size > _MAX_TOKENIZER:
            raise ValueError("it is larger than 256 MiB")
        return Tokenizer.from_file(str(tokenizer_file(path)))


@contextlib.contextmanager
def _library_errors(what: str, advice: str) -> Iterator[None]:
    """Turn whatever the library raises, which may fail in any way, into an error with advice."""
    try:
        yield
    except (DataError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # plain Exception, and a panic of native code is not even an Exception
        raise DataError(f"{what}: {error}. {advice}") from error


def encode(tokenizer: Any, texts: Sequence[str], path: Path, *, special: bool = True) -> list[Any]:
    """Return the texts as the tokenizer encodes them, with the tokens that it adds unless said otherwise."""
    with _library_errors(f"The tokenizer {path} fails on a text", "Give another tokenizer.json."):
        return list(tokenizer.encode_batch(list(texts), add_special_tokens=special))


def decode(tokenizer: Any, ids: Sequence[int], path: Path) -> str:
    """Return the text that tokens stand for, without special ones."""
    with _library_errors(f"The tokenizer {path} fails on tokens", "Give another tokenizer.json."):
        return str(tokenizer.decode(list(ids)))


def lines(texts: Path | tuple[str, ...], column: str | None) -> Iterator[tuple[str, str]]:
    """Give the place of each text, and the text; blank ones are left out."""
    for place, one in rows(texts, column):
        if not isinstance(one, str):
            raise DataError(f"{place} is of type {type(one).__name__}; it must be a text.")
        if one.strip():
            yield place, one


def rows(texts: Path | tuple[str, ...], column: str | None) -> Iterator[tuple[str, Any]]:
    """Give the place of each row, and what it holds: a text, or whatever else a ``.jsonl`` file has."""
    found = _in_file(texts, column) if isinstance(texts, Path) else enumerate(texts, 1)
    name = f"{texts}, line" if isinstance(texts, Path) else "text"
    for number, one in found:
        yield f"{name} {number}", one


def _in_file(path: Path, column: str | None) -> Iterator[tuple[int, Any]]:
    suffix = path.suffix.lower()
    if column is not None and suffix not in (".jsonl", ".csv", ".tsv"):
        raise DataError(f"{path} has no columns; leave the column out, or give a .jsonl, .csv or .tsv file.")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file; give a file with one text on each line.")
    try:
        with path.open(encoding="utf-8-sig", newline="" if suffix in (".csv", ".tsv") else None) as file:
            stream = _short_lines(file, path)
            if suffix == ".jsonl":
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        row = json.loads(line)
                        yield number, _cell(row, column or _column_of(row), f"{path}, line {number}")
            elif suffix in (".csv", ".tsv"):
                table = csv.DictReader(stream, delimiter="\t" if suffix == ".tsv" else ",")
                for row in table:
                    yield table.line_num, _cell(row, column or "text", f"{path}, line {table.line_num}")
            else:
                yield from ((number, line.rstrip("\r\n")) for number, line in enumerate(stream, 1))
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise DataError(f"{path} can't be read as text: {error}.") from error


def _column_of(row: Any) -> str:
    """The column that holds the text, or else the conversation."""
    is_conversation = isinstance(row, dict) and "text" not in row and isinstance(row.get("messages"), list)
    return "messages" if is_conversation else "text"


def _short_lines(file: TextIO, path: Path) -> Iterator[str]:
    """Give the lines of a file; one that memory may not hold is refused before it is read."""
    number = 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise DataError(
                f"{path}, line {number} has {_LONGEST_LINE} characters or more; give a text on each line."
            )
        yield line


def _cell(row: Any, column: str, where: str) -> Any:
    if not isinstance(row, dict) or row.get(column) is None:
        names = ", ".join(str(key) for key in row) if isinstance(row, dict) else "none"
        raise DataError(
            f"{where} has no column {column!r}; it has {names}. Name the one that holds the texts."
        )
    return row[column]
