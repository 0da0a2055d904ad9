"""Labels in files, and class names as class numbers.

A labels file is ``.csv``, ``.tsv``, ``.txt`` or ``.json``. Each entry is a file name and a label, or a
label alone, which then belongs to the sample at the same position. In JSON an object maps names to labels; a
list holds labels, pairs, or objects with a name and a label. A list of class names turns names into numbers.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.core.files import read_bytes
from octavo.errors import DataError, closest

SUFFIXES = (".csv", ".tsv", ".txt", ".json")
_NAME_KEYS = ("file_name", "filename", "file", "image", "path", "name", "id")
_LABEL_KEYS = (
    "label", "class", "category", "target", "label_id", "class_id", "transcription", "transcript", "text",
)  # fmt: skip

_MAX_FILE_BYTES = 1 << 30  # a labels file that is larger is refused before it is read
_SHOWN_CHARACTERS = 200  # of a label that is quoted in a message

Entry = tuple[str | None, Any]


def read_text(path: Path, what: str) -> str:
    """Return the text of a file, or raise with the reason."""
    try:
        return read_bytes(path, _MAX_FILE_BYTES).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise DataError(f"There is no {what} at {path}; give the path of an existing file.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"The {what} {path} can't be read as UTF-8 text: {reason}.") from error


def read_json(path: Path, what: str) -> Any:
    """Return the content of a JSON file, or raise with the reason."""
    try:
        return json.loads(read_text(path, what))
    except (ValueError, RecursionError) as error:
        raise DataError(f"The {what} {path} is not JSON: {error}.") from error


def entries(path: Path) -> list[Entry]:
    """Return the names (None where there are none) and labels of a file, in its order."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path} is not a labels file; give one that ends in {', '.join(SUFFIXES)}.")
    if path.suffix.lower() == ".json":
        found = _from_json(read_json(path, "labels file"), path)
    else:
        found = _from_lines(_rows(path), path)
    if not found:
        raise DataError(f"The labels file {path} holds no labels.")
    if len({name is None for name, _ in found}) > 1:
        raise DataError(
            f"In {path} some entries have a file name and a label, others a label alone; use one form."
        )
    return found


def _rows(path: Path) -> list[list[str]]:
    text = read_text(path, "labels file")
    match path.suffix.lower():
        case ".csv":
            first = text.split("\n", 1)[0]
            mark = ";" if first.count(";") > first.count(",") else ","
            try:
                rows = list(csv.reader(io.StringIO(text), delimiter=mark))
            except csv.Error as error:
                raise DataError(f"The labels file {path} is not CSV: {error}.") from error
        case ".tsv":
            rows = [line.split("\t") for line in text.splitlines()]
        case _:
            rows = [line.split("\t") if "\t" in line else line.rsplit(None, 1) for line in text.splitlines()]
    return [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]


def _from_lines(rows: Sequence[Sequence[str]], path: Path) -> list[Entry]:
    width = len(rows[0]) if rows else 0
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise DataError(
                f"Line {number} of {path} has {len(row)} fields, but the first has {width}; "
                "each line needs a file name and a label."
            )
    name, label, start = _columns(rows[0]) if rows else (None, 0, 0)
    if width > 2 and start == 0:
        raise DataError(
            f"{path} has {width} columns and no header; keep a file name and a label, or add a header line "
            "with 'file_name' and 'label'."
        )
    return [(row[name] if name is not None else None, row[label]) for row in rows[start:]]


def _columns(first: Sequence[str]) -> tuple[int | None, int, int]:
    """Return the column of names (None: there is none), that of labels, and the first row with data."""
    header = [cell.lower() for cell in first]
    label = next((header.index(word) for word in _LABEL_KEYS if word in header), None)
    if label is not None:
        name = next((header.index(word) for word in _NAME_KEYS if word in header), None)
        return name, label, 1
    return (None, 0, 0) if len(first) == 1 else (0, 1, 0)


def _from_json(content: Any, path: Path) -> list[Entry]:
    if isinstance(content, Mapping):
        return [(str(name), label) for name, label in content.items()]
    if isinstance(content, list):
        return [_json_entry(entry, number, path) for number, entry in enumerate(content)]
    raise DataError(f"{path} must hold a JSON object of names and labels, or a list.")


def _json_entry(entry: Any, number: int, path: Path) -> Entry:
    if isinstance(entry, Mapping):
        name = next((entry[key] for key in _NAME_KEYS if key in entry), None)
        label = next((entry[key] for key in _LABEL_KEYS if key in entry), None)
        if label is None:
            raise DataError(f"Entry {number} of {path} has no 'label'; it has {', '.join(map(str, entry))}.")
        return (str(name) if name is not None else None), label
    if isinstance(entry, list) and len(entry) == 2:
        return str(entry[0]), entry[1]
    if isinstance(entry, str | int):
        return None, entry
    raise DataError(f"Entry {number} of {path} is neither a label nor a name with a label.")


def class_names(classes: str | Path | Sequence[str] | None) -> list[str] | None:
    """Return class names in the order of the model's outputs, from a list or a file with a name a line."""
    if classes is None:
        return None
    if not isinstance(classes, str | Path):
        return [str(name) for name in classes]
    path = Path(classes)
    if path.suffix.lower() != ".json":
        return [line.strip() for line in read_text(path, "list of classes").splitlines() if line.strip()]
    content = read_json(path, "list of classes")
    if isinstance(content, Mapping) and all(str(key).isdecimal() and len(key) < 10 for key in content):
        return [str(content[key]) for key in sorted(content, key=int)]
    if isinstance(content, list):
        return [str(name) for name in content]
    raise DataError(f"{path} must hold a list of class names.")


def class_number(label: Any, names: Sequence[str] | None, where: str) -> int:
    """Return the class number of a label."""
    text = str(label).strip()
    if names is not None and text in names:
        return names.index(text)
    try:
        return int(text)
    except ValueError:
        pass
    shown = text[:_SHOWN_CHARACTERS]
    if names is None:
        raise DataError(
            f"{where} has the label {shown!r}, which is not a number; give the class names in the order of "
            "the model's outputs (classes=…)."
        )
    hint = closest(text, names) or "."
    raise DataError(f"{where} has the label {shown!r}, which is not one of the classes{hint}")
