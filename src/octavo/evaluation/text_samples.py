"""Texts with labels or scores in files, and texts as feeds.

Files are ``.tsv``, ``.csv`` or ``.jsonl``. Without ``columns`` the column of numbers is the label, and the
others are texts; a header line is recognized by having no number there. ``columns`` gives the names of the
columns, or their positions from 0.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.data.readers.text_files import encode, open_tokenizer, text, tokenizer_file
from octavo.errors import DataError, closest
from octavo.evaluation.label_files import read_text
from octavo.evaluation.task import Feeds, TaskContext
from octavo.model.runtime.session import InputSpec

SUFFIXES = (".tsv", ".csv", ".jsonl")


@dataclass(frozen=True)
class TextFeeds:
    """How texts become a feed; the tokenizer is opened in the process that uses it."""

    specs: tuple[InputSpec, ...]
    tokenizer: Path
    max_length: int | None = None
    fixed: int | None = None

    @classmethod
    def of(cls, context: TaskContext, tokenizer: str | Path | None, max_length: int | None) -> TextFeeds:
        """Return the feeds for a model, with the named tokenizer or the one beside the model."""
        path = tokenizer_path(tokenizer, context.model)
        return cls(tuple(context.specs), path, max_length, context.fixed_batch)

    def feed(self, texts: Sequence[str]) -> Feeds:
        """Return one feed for some texts; the last is repeated up to the model's fixed batch size."""
        full = [*texts, *[texts[-1]] * ((self.fixed or len(texts)) - len(texts))]
        source = text(full, self.tokenizer, max_length=self.max_length, batch=len(full))
        feed: Feeds = next(iter(source.for_inputs(self.specs).portion()))
        return dict(feed)


def tokenizer_path(given: str | Path | None, model: Path) -> Path:
    """Return the tokenizer file: as named, or the one beside the model."""
    if given is None and not (model.parent / "tokenizer.json").is_file():
        raise DataError(
            f"There is no tokenizer.json beside {model}; give the file that turns texts into ids: tokenizer=…"
        )
    return tokenizer_file(Path(given) if given is not None else model.parent).absolute()


def token_ids(words: str, tokenizer: Path) -> npt.NDArray[np.int64]:
    """Return the ids of a whole text, however long it is."""
    loaded = open_tokenizer(tokenizer)  # not one that readers share: truncation is switched off
    loaded.no_truncation()
    return np.array(encode(loaded, [words], tokenizer)[0].ids, np.int64)


def text_rows(
    data: Any, texts: int, columns: Sequence[str | int] | None, limit: int | None
) -> list[tuple[tuple[str, ...], Any]]:
    """Return ``((text, …), label)`` with ``texts`` texts in each row, from a file or a sequence."""
    if isinstance(data, str | Path):
        found = _picked(_table(Path(data)), texts, columns, Path(data))
    else:
        found = [_given(row, texts, index) for index, row in enumerate(data)]
    taken = found[:limit]
    for number, (words, _) in enumerate(taken):
        if not all(word.strip() for word in words):
            raise DataError(f"Sample {number} has an empty text; remove it, or name the columns: columns=…")
    if not taken:
        raise DataError(f"There are no texts to evaluate in {data}.")
    return taken


def _given(row: Any, texts: int, index: int) -> tuple[tuple[str, ...], Any]:
    if (
        isinstance(row, tuple | list)
        and len(row) == texts + 1
        and all(isinstance(w, str) for w in row[:texts])
    ):
        return tuple(row[:texts]), row[texts]
    what = "a text" if texts == 1 else f"{texts} texts"
    raise DataError(f"Sample {index} is not {what} and a label; give tuples, or the path of a file.")


def _table(path: Path) -> list[list[str]]:
    content = read_text(path, "file of texts")
    match path.suffix.lower():
        case ".jsonl":
            found = _json_lines(content, path)
        case ".csv":
            try:
                found = list(csv.reader(io.StringIO(content)))
            except csv.Error as error:
                raise DataError(f"{path} is not CSV: {error}.") from error
        case ".tsv" | ".txt":
            found = [line.split("\t") for line in content.split("\n")]
        case _:
            raise DataError(f"{path} is not a file of texts with labels; give {', '.join(SUFFIXES)}.")
    found = [[cell.strip("\r") for cell in row] for row in found if any(cell.strip() for cell in row)]
    if not found:
        raise DataError(f"{path} is empty.")
    for number, row in enumerate(found, 1):
        if len(row) != len(found[0]):
            raise DataError(
                f"Line {number} of {path} has {len(row)} columns, but the first has {len(found[0])}."
            )
    return found


def _json_lines(content: str, path: Path) -> list[list[str]]:
    """Return a header of keys, then the values of each line."""
    found: list[list[str]] = []
    keys: list[str] = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"Line {number} of {path} is not JSON: {error}.") from error
        if not isinstance(row, Mapping):
            raise DataError(
                f"Line {number} of {path} is not a JSON object; each line needs texts and a label by name."
            )
        if not keys:
            keys = [str(key) for key in row]
            found.append(keys)
        found.append([str(row.get(key, "")) for key in keys])
    return found


def _picked(
    table: list[list[str]], texts: int, columns: Sequence[str | int] | None, path: Path
) -> list[tuple[tuple[str, ...], Any]]:
    if columns is not None:
        positions, start = _named(table[0], columns, texts, path)
    else:
        positions, start = _guessed(table, texts, path)
    return [(tuple(row[i] for i in positions[:texts]), row[positions[texts]]) for row in table[start:]]


def _named(
    header: Sequence[str], columns: Sequence[str | int], texts: int, path: Path
) -> tuple[list[int], int]:
    """Return the positions of named columns, texts first and the label last, and the first row of data."""
    if len(columns) != texts + 1:
        raise DataError(
            f"{len(columns)} columns are named, but {texts + 1} are needed: the texts, then the label."
        )
    positions, start = [], 0
    for column in columns:
        if str(column) in header:
            positions.append(list(header).index(str(column)))
            start = 1
        elif str(column).isdigit() and int(column) < len(header):
            positions.append(int(column))
        else:
            raise DataError(
                f"{path} has no column {column!r}{closest(str(column), header) or '; '}"
                f" Its first line is {', '.join(header)[:200]!r}."
            )
    return positions, start


def _guessed(table: list[list[str]], texts: int, path: Path) -> tuple[list[int], int]:
    width = len(table[0])
    numeric = [i for i in range(width) if len(table) > 1 and all(_is_number(row[i]) for row in table[1:])]
    numeric = numeric or [i for i in range(width) if _is_number(table[0][i])]
    if len(numeric) == 1 and width == texts + 1:
        label = numeric[0]
        start = 0 if _is_number(table[0][label]) else 1
        return [*(i for i in range(width) if i != label), label], start
    needed = "a text" if texts == 1 else f"{texts} texts"
    raise DataError(
        f"{path} has {width} columns, of which {len(numeric)} hold numbers; {needed} and a label are needed. "
        "Name the columns, texts first (columns=…)."
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
