"""Texts in files: one on each line, or a column of a ``.jsonl``, ``.csv`` or ``.tsv`` file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octavo.errors import DataError


def lines(texts: Path | tuple[str, ...], column: str | None) -> Iterator[tuple[str, str]]:
    """Where each text is, and the text; blank ones are left out."""
    found = _in_file(texts, column) if isinstance(texts, Path) else enumerate(texts, 1)
    name = str(texts) if isinstance(texts, Path) else "text"
    for number, one in found:
        if not isinstance(one, str):
            raise DataError(f"{name} {number} is a {type(one).__name__}, and has to be a text.")
        if one.strip():
            yield f"{name}, line {number}" if isinstance(texts, Path) else f"text {number}", one


def _in_file(path: Path, column: str | None) -> Iterator[tuple[int, Any]]:
    suffix = path.suffix.lower()
    if column is not None and suffix not in (".jsonl", ".csv", ".tsv"):
        raise DataError(f"{path} has no columns; leave the column out, or give a .jsonl, .csv or .tsv file.")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is no regular file; give a file with one text on each line.")
    try:
        with path.open(encoding="utf-8-sig", newline="" if suffix in (".csv", ".tsv") else None) as stream:
            if suffix == ".jsonl":
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        yield number, _cell(json.loads(line), column or "text", f"{path}, line {number}")
            elif suffix in (".csv", ".tsv"):
                table = csv.DictReader(stream, delimiter="\t" if suffix == ".tsv" else ",")
                for row in table:
                    yield table.line_num, _cell(row, column or "text", f"{path}, line {table.line_num}")
            else:
                yield from ((number, line.rstrip("\r\n")) for number, line in enumerate(stream, 1))
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise DataError(f"{path} can't be read as text: {error}.") from error


def _cell(row: Any, column: str, where: str) -> Any:
    if not isinstance(row, dict) or row.get(column) is None:
        names = ", ".join(str(key) for key in row) if isinstance(row, dict) else "none"
        raise DataError(
            f"{where} has no column {column!r}; it has {names}. Name the one that holds the texts."
        )
    return row[column]
