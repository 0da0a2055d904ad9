"""How values show themselves in a REPL and in a notebook.

A result can hold a whole model: its ``repr`` is one line, ``print`` shows the table. A recipe or a scheme is
a small value: its ``repr`` has the fields that differ from their defaults.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from octavo.core.lazy import load_entry

_LONGEST_LINE = 200  # characters of a ``repr``; names in it may come from a model


class Shown:
    """A result with a ``repr`` of one line, which shows in a notebook what ``print`` shows."""

    def _line(self) -> str:
        """Return the result on one line; the first line of the text, unless a class knows better."""
        return str(self).partition("\n")[0]

    def __repr__(self) -> str:
        clean = load_entry("octavo.reporting", "text:clean")
        return f"<{type(self).__name__}: {clean(self._line(), _LONGEST_LINE)}>"

    def _repr_html_(self) -> str:
        html: str = load_entry("octavo.reporting", "notebook:table_html")(str(self))
        return html


class Brief:
    """A dataclass whose ``repr`` leaves out the fields that have their defaults."""

    def __repr__(self) -> str:
        values: Any = self
        changed = [
            f"{field.name}={getattr(values, field.name)!r}"
            for field in dataclasses.fields(values)
            if not has_default(field, getattr(values, field.name))
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


def has_default(field: dataclasses.Field[Any], value: Any) -> bool:
    """Return whether a field of a dataclass has its default value."""
    if field.default is not dataclasses.MISSING:
        return bool(value is field.default or (type(value) is type(field.default) and value == field.default))
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False
