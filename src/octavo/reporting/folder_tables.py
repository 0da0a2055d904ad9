"""The variants of a model folder as a table and as a card: bytes, fidelity, speed, memory, load time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.reporting.figures import speed_text
from octavo.reporting.text import clean, columns, escaped, markdown_table, notes_markdown, size

_HEAD = ("part", "variant", "size", "of float", "fidelity", "task", "speed", "memory", "load")
_TASK = _HEAD.index("task")  # the column that is left out where nothing is measured


def folder_table(data: Mapping[str, Any]) -> str:
    """Return what was written and what was refused, as text."""
    found = []
    head, written = _rows(data)
    for part in data["parts"]:
        rows = [row[1:] for row in written if row[0] == part["name"]]
        title = f"{clean(part['name'])}: {part['role']}, {size(part['bytes'])}"
        found.append("\n".join([title, columns(rows, head[1:])] if rows else [title]))
    refused = _refused(data)
    if refused:
        found.append("not written:\n" + "\n".join(f"  {line}" for line in refused))
    if data["chosen"]:
        chosen = ", ".join(f"{clean(part)} {variant}" for part, variant in data["chosen"].items())
        found.append(f"chosen: {chosen}")
    found += [clean(note, 1000) for note in data["notes"]]
    return "\n\n".join(part for part in found if part)


def folder_card(data: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    """Return a card of the folder in Markdown."""
    title = clean(str(data["output"])).rstrip("/").rpartition("/")[2]
    parts = [
        f"# {escaped(title)}",
        f"Variants of an ONNX model, made by Octavo {manifest['octavo']}. Each was loaded, run beside"
        f" float and timed on {escaped(data['data'])}; one that is too far from float is not here.",
        markdown_table(_rows(data)[1], _rows(data)[0]),
        "Fidelity is the distance from the float part: KL divergence of its probabilities in nats with the"
        " share of equal first choices (of an encoder, those of the decoder that reads it), the cosine of its"
        " vectors, or the signal-to-noise ratio of its worst output. Where there is a column of the task, the"
        " part was run in its place among the float ones. Speed is a multiple of float's in CPU"
        " time on the machine that made the variants.",
    ]
    if refused := _refused(data):
        parts += ["## Not here", "\n".join(f"- {escaped(line)}" for line in refused)]
    parts += notes_markdown(data["notes"])
    versions = ", ".join(f"{name} {one}" for name, one in manifest["versions"].items())
    return "\n\n".join([*parts, f"Versions: {versions}."]) + "\n"


def _rows(data: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of what was written."""
    written = [row for row in data["variants"] if row["refused"] is None]
    head, rows = list(_HEAD), [list(_cells(row)) for row in written]
    if not any(row.get("task") for row in written):
        for row in (head, *rows):
            del row[_TASK]
    return head, rows


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    share = row["bytes"] / max(row["float_bytes"], 1)
    load = row["load_seconds"]
    return (
        row["part"],
        row["variant"],
        size(row["bytes"]),
        f"{share:.2f} ×",
        row["fidelity"] or "float",
        row.get("task") or "–",
        speed_text(row["speed"]) if row["speed"] else "–",
        size(row["memory_bytes"]) if row["memory_bytes"] is not None else "–",
        f"{load:.2f} s" if load is not None else "–",
    )


def _refused(data: Mapping[str, Any]) -> list[str]:
    """A line for each reason: the part, its variants, why they are not there, and what holds instead."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in data["variants"]:
        if row["refused"] is not None:
            nearest = f"; the nearest that holds is {row['nearest']}" if row["nearest"] else ""
            reason = f"{clean(row['refused'], 600).rstrip('.')}{nearest}"
            found.setdefault((clean(row["part"]), reason), []).append(row["variant"])
    return [f"{part} {', '.join(names)}: {reason}" for (part, reason), names in found.items()]
