"""Text laid out for a terminal of some width: words are never broken, tables stay tables.

A table is recognized by its rule, a line of dashes under its head. Where it is too wide, columns of text wrap
at words and long names lose their middle; numbers with their units and intervals in brackets stay in one
piece. Other lines wrap at words, with a hanging indent. Text that is piped is not laid out at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from octavo.reporting.text import clean

GAP = "  "  # between two columns
_RULE = re.compile(r"^( *)(-+(?:  -+)*)$")
_SHORTEST_NAMES = (24, 16, 12, 8)  # characters that names are cut to, tried in turn
_WIDEST_LABEL = 44  # characters of a label in front of a value, below which a wrapped value is indented
_HELD = "\x00"  # a space that no line may be broken at
_UNITS = r"[×%±]|dB\b|[kMGT]?B\b|[mµ]?s\b|points\b"
_TOGETHER = re.compile(rf"(?<=\d) (?={_UNITS})|(?<=±) |(?<= …) | (?=… )")


class Line(NamedTuple):
    """A line, and what it is: ``head`` or ``rule`` of a table, or nothing of the kind."""

    text: str
    kind: str = ""


def fit(text: str, width: int) -> list[Line]:
    """Return the lines of a text, none longer than ``width`` as far as that can be done at words."""
    lines = text.split("\n")
    found: list[Line] = []
    index = 0
    while index < len(lines):
        rule = _RULE.match(lines[index + 1]) if index + 1 < len(lines) else None
        if rule is None:
            found += [Line(part) for part in _wrapped_line(lines[index], width)]
            index += 1
            continue
        stop = index + 2
        table = _Table.of(rule)
        while stop < len(lines) and table.is_row(lines[stop]):
            stop += 1
        rows = [lines[index], *lines[index + 2 : stop]]
        found += _table_lines(table, [table.cells(row) for row in rows], width)
        index = stop
    return found


@dataclass(frozen=True)
class _Table:
    """Where the columns of a table begin and how wide they are."""

    indent: str
    starts: tuple[int, ...]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, rule: re.Match[str]) -> _Table:
        spans = [(part.start(), part.end()) for part in re.finditer("-+", rule[0])]
        return cls(rule[1], tuple(a for a, _ in spans), tuple(b - a for a, b in spans))

    def is_row(self, line: str) -> bool:
        """Return whether a line has nothing between the columns."""
        gaps = [line[start - 2 : start] for start in self.starts[1:]]
        return bool(line.strip()) and line.startswith(self.indent) and not "".join(gaps).strip()

    def cells(self, line: str) -> list[str]:
        """Return the cells of a row as they are aligned."""
        last = len(self.starts) - 1
        return [
            line[start : None if i == last else start + width].ljust(width)
            for i, (start, width) in enumerate(zip(self.starts, self.widths, strict=True))
        ]


def _table_lines(table: _Table, rows: list[list[str]], width: int) -> list[Line]:
    right = [_is_right_aligned([row[i] for row in rows[1:]]) for i in range(len(table.widths))]
    content = [[_held(cell.strip()) for cell in row] for row in rows]
    room = width - len(table.indent) - len(GAP) * (len(table.widths) - 1)
    widths = _column_widths(content, table.widths, room)
    if widths is None:
        return _records(content, table.indent, width)
    table = replace(table, widths=tuple(widths))
    rule = table.indent + GAP.join("-" * one for one in widths)
    head = [Line(line, "head") for line in _row_lines(content[0], table, right)]
    body = [Line(line) for row in content[1:] for line in _row_lines(row, table, right)]
    return [*head, Line(rule, "rule"), *body]


def _is_right_aligned(cells: Sequence[str]) -> bool:
    filled = [cell for cell in cells if cell.strip()]
    return any(cell[0] == " " for cell in filled) and all(cell[-1] != " " for cell in filled)


def _held(text: str) -> str:
    """Return a text in which numbers stay with their units."""
    return _TOGETHER.sub(_HELD, text)


def _column_widths(rows: list[list[str]], natural: Sequence[int], room: int) -> list[int] | None:
    """Return the widths that fit into the room: the widest columns give way first; None where none do."""
    if sum(natural) <= room:
        return list(natural)
    columns = [[row[i] for row in rows] for i in range(len(natural))]
    for longest in _SHORTEST_NAMES:
        least = [_least_width(cells, longest) for cells in columns]
        if sum(least) > room:
            continue
        widths = list(natural)
        while sum(widths) > room:
            slack = [w if w > m else -1 for w, m in zip(widths, least, strict=True)]
            widths[slack.index(max(slack))] -= 1
        return widths
    return None


def _least_width(cells: Sequence[str], longest_name: int) -> int:
    """Return the width below which a word would have to be broken; names may be cut to ``longest_name``."""
    words = [word for cell in cells for word in cell.split()]
    return max((len(w) if _is_figure(w) else min(len(w), longest_name) for w in words), default=1)


def _is_figure(word: str) -> bool:
    return word[:1].isdigit() or word[:1] in "−-+±(" or _HELD in word


def _row_lines(cells: Sequence[str], table: _Table, right: Sequence[bool]) -> list[str]:
    wrapped = [_wrapped(cell, width) for cell, width in zip(cells, table.widths, strict=True)]
    height = max(len(one) for one in wrapped)
    lines = []
    for i in range(height):
        parts = [one[i] if i < len(one) else "" for one in wrapped]
        aligned = [
            part.rjust(width) if flag else part.ljust(width)
            for part, width, flag in zip(parts, table.widths, right, strict=True)
        ]
        lines.append((table.indent + GAP.join(aligned)).rstrip())
    return lines


def _wrapped(text: str, width: int, later: int | None = None, *, shorten: bool = True) -> list[str]:
    """Return a text in lines broken at words; ``later`` is the width of all lines but the first.

    A word that is longer than a line loses its middle, or stays whole where it may be copied.
    """
    lines = [""]
    for word in text.split():
        room = width if len(lines) == 1 or later is None else later
        whole = word.replace(_HELD, " ")
        whole = clean(whole, max(room, 3)) if shorten and len(whole) > room else whole
        if not lines[-1]:
            lines[-1] = whole
        elif len(lines[-1]) + 1 + len(whole) <= room:
            lines[-1] += f" {whole}"
        else:
            lines.append(whole)
    return lines


def _records(rows: list[list[str]], indent: str, width: int) -> list[Line]:
    """Return a table that is too narrow for its columns as one block of lines for each row."""
    found: list[Line] = []
    for row in rows[1:]:
        filled = [(head, cell) for head, cell in zip(rows[0], row, strict=True) if cell]
        for number, (head, cell) in enumerate(filled):
            start = indent if number == 0 else f"{indent}  "
            parts = _wrapped(f"{head}: {cell}" if head else cell, width - len(start))
            found += [Line(start + part) for part in parts]
    return found


def _wrapped_line(line: str, width: int) -> list[str]:
    """Return a line of prose, of a list, or of a label with its value, broken at words."""
    if len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip())
    label = re.match(r" *\S.*? {2,}(?=\S)", line)
    if label is not None and len(label[0]) <= min(_WIDEST_LABEL, width * 11 // 20):
        first, hanging = label[0], len(label[0])
    else:
        number = re.match(r" *(\d+\.|-|[A-Za-z ]{1,12}:) ", line)
        first = line[:indent]
        hanging = min(len(number[0]) if number is not None else indent + 2, width // 2)
    parts = _wrapped(_held(line[len(first) :]), width - len(first), width - hanging, shorten=False)
    return [first + parts[0], *(" " * hanging + part for part in parts[1:])]
