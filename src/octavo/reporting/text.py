"""Plain text: safe names, readable sizes and counts, aligned columns.

Names come from model files, and a model file may come from anybody. ``clean`` removes what a terminal would
obey (control characters, escape sequences, marks that turn the writing direction) before a name is shown.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

_UNITS = ("kB", "MB", "GB", "TB")
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def clean(name: object, limit: int = 200) -> str:
    """Return a name on one line, without anything that a terminal would obey; long ones lose their middle."""
    whole = str(name)
    is_huge = len(whole) > 8 * limit
    text = whole[: 4 * limit] + whole[-4 * limit :] if is_huge else whole
    text = "".join(c for c in text if unicodedata.category(c) not in _HIDDEN)
    if len(text) <= limit and not is_huge:
        return text
    half = min((limit - 1) // 2, len(text) // 2)
    return f"{text[:half]}…{text[-half:]}"


def printable(text: str) -> str:
    """Return text of several lines without control characters other than the line ends."""
    return "\n".join(clean(line, limit=1 << 20) for line in text.split("\n"))


def one_line(message: object) -> str:
    """Return a message as one line."""
    return clean(" ".join(str(message).split()), limit=4000)


def size(count: int) -> str:
    """Return bytes as people write them: 229 kB, 97.8 MB."""
    if abs(count) < 1000:
        return f"{count} bytes"
    value = float(count)
    for unit in _UNITS:
        value /= 1000
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            break
    return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def many(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: ``1 node``, ``2 nodes``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def tally(counts: Counter[str]) -> str:
    """Return counts, the most frequent first: ``53 Conv, 16 Add, 1 Gemm``."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {clean(name)}" for name, count in ordered)


def some(names: Iterable[str], limit: int = 3) -> str:
    """Return the first few names, and how many more there are."""
    known = list(names)
    shown = ", ".join(clean(name, 80) or "(no name)" for name in known[:limit])
    return shown if len(known) <= limit else f"{shown} and {len(known) - limit} more"


def columns(
    rows: Sequence[Sequence[object]], head: Sequence[str] = (), indent: str = "", limit: int = 200
) -> str:
    """Return rows as aligned columns, numbers to the right; :mod:`.screen` fits them to a terminal.

    A cell of more characters than ``limit`` loses its middle.
    """
    cells = [[clean(cell, limit) for cell in row] for row in rows]
    if not cells:
        return ""
    lines = [list(head), *cells] if head else cells
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(widths))]
    if head:
        lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        indent
        + "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def markdown_table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    """Return rows as a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def escaped(text: object) -> str:
    """Return a line of Markdown in which nothing is markup."""
    return clean(text, 600).replace("<", "&lt;")


def notes_lines(notes: Iterable[object]) -> list[str]:
    """Return a line for each note, for a terminal."""
    return [f"note: {clean(note, 600)}" for note in notes]


def notes_markdown(notes: Iterable[object]) -> list[str]:
    """Return the section of notes for a page of Markdown; empty without notes."""
    lines = [f"- {escaped(note)}" for note in notes]
    return ["## Notes", "\n".join(lines)] if lines else []


def _cell(value: object) -> str:
    return clean(value, 400).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
