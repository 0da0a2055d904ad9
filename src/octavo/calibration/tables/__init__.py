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

from octavo.calibration.statistics import SampleExtremesState
from octavo.calibration.tables import json_table, tensorrt_table, text_table
from octavo.calibration.tables.table_checks import MAX_BYTES, checked
from octavo.core import files
from octavo.core.files import read_bytes, unreadable
from octavo.core.stats import Range, Stats
from octavo.errors import TableError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.ops import CLAMPS
from octavo.ops.hooks import clamp_bounds

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
        Format("flatbuffers", "calibration.flatbuffers", tensorrt_table.dump, tensorrt_table.parse),
        Format("json", "calibration.json", json_table.dump, json_table.parse),
        Format("text", "calibration.cache", text_table.dump, text_table.parse),
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
    """Return the ranges of a table; where the file holds only magnitudes, from minus to plus each."""
    found = _format(Path(path), format)
    try:
        content = read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise TableError(unreadable("The table", path, error)) from error
    try:
        return checked(found.parse(content))
    except TableError as error:
        raise TableError(f"{path}: {error}") from error


def as_stats(ranges: Mapping[str, Range], model: io.ModelSource | None = None) -> Stats:
    """Return statistics of one sample with these extremes; any method reads the same ranges off them.

    With a model, the ranges behind a Relu or Clip are cut to its bounds, which magnitudes need.
    """
    found = checked(ranges)
    if model is not None:
        found = within_clamps(found, model)
    return Stats({name: SampleExtremesState.of([0], [r.low], [r.high]) for name, r in found.items()}, 1)


def within_clamps(ranges: Mapping[str, Range], model: io.ModelSource) -> dict[str, Range]:
    """Return the ranges, those behind a Relu or Clip cut to its bounds.

    A table of magnitudes does not know that a Relu gives nothing negative.
    """
    loaded = io.load(model)
    normalize(loaded)
    found = dict(ranges)
    for node in query.nodes(loaded):
        name = node.outputs[0].name or "" if node.outputs else ""
        if name not in found or node.domain or node.op_type not in CLAMPS:
            continue
        bounds = clamp_bounds(node)
        if bounds is not None and bounds[0] <= bounds[1]:
            low, high = (min(max(end, bounds[0]), bounds[1]) for end in found[name][:2])
            found[name] = found[name]._replace(low=low, high=high)
    return found


def _format(path: Path, name: str | None) -> Format:
    found = FORMATS.get(name) if name is not None else _BY_SUFFIX.get(path.suffix.lower())
    if found is None:
        known = ", ".join(f"{f.name} ({Path(f.file_name).suffix})" for f in FORMATS.values())
        raise TableError(
            f"{name or path} is not a known format of calibration tables; the formats are {known}."
        )
    return found
