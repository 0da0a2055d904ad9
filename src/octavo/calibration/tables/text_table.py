"""Plain text: a line for each tensor, its name, a space, and its largest magnitude; names in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from octavo.calibration.tables.table_checks import magnitude, symmetric, unique
from octavo.core.stats import Range
from octavo.errors import TableError


def dump(ranges: Mapping[str, Range]) -> bytes:
    """Return the table as UTF-8."""
    for name in ranges:
        if len(name.splitlines()) != 1:
            raise TableError(f"The name {name!r} breaks a line, and can't be in a text table; use json.")
    return "".join(f"{name} {magnitude(ranges[name])}\n" for name in sorted(ranges)).encode()


def parse(data: bytes) -> dict[str, Range]:
    """Return the ranges of a table; a name may hold spaces, the number comes after the last one."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise TableError(f"The table is not text ({error.reason} at byte {error.start}).") from error
    return unique(_entries(lines))


def _entries(lines: list[str]) -> Iterator[tuple[str, Range]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, space, value = line.rpartition(" ")
        if not space or not name:
            raise TableError(f"Line {number} is {line[:60]!r}; a line is a tensor's name, a space, a number.")
        yield name, symmetric(name, value)
