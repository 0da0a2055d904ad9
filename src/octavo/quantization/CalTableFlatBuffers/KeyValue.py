"""A pair of strings in ``calibration.flatbuffers``."""

from __future__ import annotations

from typing import Any

from octavo.quantization.CalTableFlatBuffers import Accessor, End


class KeyValue(Accessor):
    """The name of a tensor and a number as text."""

    def Key(self) -> bytes | None:
        """Return the name."""
        return self._text(0)

    def Value(self) -> bytes | None:
        """Return the number."""
        return self._text(1)

    def _text(self, slot: int) -> bytes | None:
        field = self._field(slot)
        return None if field is None else self._tab.String(field)

    @classmethod
    def GetRootAsKeyValue(cls, buf: Any, offset: int = 0) -> KeyValue:
        """Return the table that a buffer begins with."""
        return cls.GetRootAs(buf, offset)


def Start(builder: Any) -> None:
    """Begin a pair."""
    builder.StartObject(2)


def AddKey(builder: Any, key: int) -> None:
    """Refer to the string of the name."""
    builder.PrependUOffsetTRelativeSlot(0, key, 0)


def AddValue(builder: Any, value: int) -> None:
    """Refer to the string of the number."""
    builder.PrependUOffsetTRelativeSlot(1, value, 0)


KeyValueStart, KeyValueAddKey, KeyValueAddValue, KeyValueEnd = Start, AddKey, AddValue, End
