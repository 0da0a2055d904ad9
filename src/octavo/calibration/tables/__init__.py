"""Calibration tables: the range of each tensor in a file, in the formats that other tools read and write.

===========  =========================  =========================================================
format       usual name                 holds, for each tensor
===========  =========================  =========================================================
flatbuffers  calibration.flatbuffers    the largest magnitude, as text (TensorRT's table)
json         calibration.json           lowest and highest value; also a plain ``{name: [low, high]}``
text         calibration.cache          a line: name, space, the largest magnitude
===========  =========================  =========================================================

A table is checked as a whole before anything of it is used; a damaged or hostile file is a
:class:`~octavo.errors.TableError`. Files are written beside and renamed. :func:`as_stats` gives a table the
form of statistics, so that it can take the place of a calibration::

    octavo.quantize(model, stats=as_stats(load(path), model))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.calibration.observers import MinMaxState
from octavo.calibration.tables import flatbuffers, json, text
from octavo.calibration.tables.checks import MOST_BYTES, checked
from octavo.calibration.tables.clamps import within_clamps
from octavo.core.bounded import read_bytes
from octavo.core.stats import Range, Stats
from octavo.errors import TableError
from octavo.model import files, io

__all__ = ["FORMATS", "Format", "as_stats", "load", "save", "save_all", "within_clamps"]


@dataclass(frozen=True)
class Format:
    """How a table is written and read."""

    name: str
    file_name: str
    dump: Callable[[Mapping[str, Range]], bytes]
    parse: Callable[[bytes], dict[str, Range]]


FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        Format("flatbuffers", "calibration.flatbuffers", flatbuffers.dump, flatbuffers.parse),
        Format("json", "calibration.json", json.dump, json.parse),
        Format("text", "calibration.cache", text.dump, text.parse),
    )
}
_BY_SUFFIX = {Path(entry.file_name).suffix: entry for entry in FORMATS.values()} | {".txt": FORMATS["text"]}


def save(ranges: Mapping[str, Range], path: str | Path, format: str | None = None) -> Path:
    """Write a table; the format follows from the ending of the name unless it is given."""
    target = Path(path).absolute()
    content = _format(target, format).dump(checked(ranges))
    with files.replacing([target]) as (handle,):
        handle.write(content)
    return target


def save_all(ranges: Mapping[str, Range], folder: str | Path) -> list[Path]:
    """Write the table in all formats under their usual names; all of them appear, or none."""
    content = {Path(folder).absolute() / f.file_name: f.dump(checked(ranges)) for f in FORMATS.values()}
    with files.replacing(list(content)) as handles:
        for handle, part in zip(handles, content.values(), strict=True):
            handle.write(part)
    return list(content)


def load(path: str | Path, format: str | None = None) -> dict[str, Range]:
    """The ranges of a table; where the file holds only magnitudes, from minus to plus each."""
    found = _format(Path(path), format)
    try:
        content = read_bytes(path, MOST_BYTES)
    except OSError as error:
        raise TableError(f"The table {path} can't be read: {error.strerror}.") from error
    try:
        return checked(found.parse(content))
    except TableError as error:
        raise TableError(f"{path}: {error}") from error


def as_stats(ranges: Mapping[str, Range], model: io.ModelSource | None = None) -> Stats:
    """Statistics of one sample whose extremes are these ranges; any method reads the same ranges off them.

    With a model, the ranges behind a Relu or Clip are cut to what it lets through; magnitudes need that.
    """
    found = checked(ranges)
    if model is not None:
        found = within_clamps(found, model)
    return Stats({name: MinMaxState.of([0], [r.low], [r.high]) for name, r in found.items()}, 1)


def _format(path: Path, name: str | None) -> Format:
    found = FORMATS.get(name) if name is not None else _BY_SUFFIX.get(path.suffix.lower())
    if found is None:
        known = ", ".join(f"{f.name} ({Path(f.file_name).suffix})" for f in FORMATS.values())
        raise TableError(
            f"{name or path} is no known format of a calibration table; the formats are {known}."
        )
    return found
