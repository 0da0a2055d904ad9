"""The tables of ``calibration.flatbuffers``, for those who read or build the file with flatbuffers.

A ``TrtTable`` holds a vector of ``KeyValue`` tables, each a tensor's name and its largest magnitude as text.
:func:`octavo.quantization.quant_utils.write_calibration_table` writes such a file.
"""

from __future__ import annotations

from typing import Any, TypeVar

from flatbuffers import encode, packer  # type: ignore[import-untyped]
from flatbuffers.table import Table  # type: ignore[import-untyped]

_T = TypeVar("_T", bound="Accessor")


class Accessor:
    """A table at a position of a buffer."""

    def Init(self, buf: Any, pos: int) -> None:
        """Look at the table that begins at a position."""
        self._tab = Table(buf, pos)

    @classmethod
    def GetRootAs(cls: type[_T], buf: Any, offset: int = 0) -> _T:
        """Return the table that a buffer begins with."""
        found = cls()
        found.Init(buf, encode.Get(packer.uoffset, buf, offset) + offset)
        return found

    def _field(self, slot: int) -> int | None:
        """Return where the content of a slot lies, or None where it is empty."""
        offset = self._tab.Offset(4 + 2 * slot)
        return offset + self._tab.Pos if offset else None


def End(builder: Any) -> int:
    """End a table and return its offset."""
    return int(builder.EndObject())
