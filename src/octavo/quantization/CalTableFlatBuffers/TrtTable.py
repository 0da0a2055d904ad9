"""The root of ``calibration.flatbuffers``: a vector of pairs."""

from __future__ import annotations

from typing import Any

from octavo.quantization.CalTableFlatBuffers import Accessor, End
from octavo.quantization.CalTableFlatBuffers.KeyValue import KeyValue


class TrtTable(Accessor):
    """The pairs of the file."""

    def Dict(self, j: int) -> KeyValue | None:
        """Return the pair at an index."""
        field = self._field(0)
        if field is None:
            return None
        pair = KeyValue()
        pair.Init(self._tab.Bytes, self._tab.Indirect(self._tab.Vector(field - self._tab.Pos) + 4 * j))
        return pair

    def DictLength(self) -> int:
        """Return the number of pairs."""
        field = self._field(0)
        return 0 if field is None else int(self._tab.VectorLen(field - self._tab.Pos))

    def DictIsNone(self) -> bool:
        """Return whether the file has no vector at all."""
        return self._field(0) is None

    @classmethod
    def GetRootAsTrtTable(cls, buf: Any, offset: int = 0) -> TrtTable:
        """Return the table that a buffer begins with."""
        return cls.GetRootAs(buf, offset)


def Start(builder: Any) -> None:
    """Begin the table."""
    builder.StartObject(1)


def StartDictVector(builder: Any, numElems: int) -> int:
    """Begin the vector of pairs."""
    return int(builder.StartVector(4, numElems, 4))


def AddDict(builder: Any, dict: int) -> None:
    """Refer to the vector of pairs."""
    builder.PrependUOffsetTRelativeSlot(0, dict, 0)


TrtTableStart, TrtTableStartDictVector, TrtTableAddDict, TrtTableEnd = Start, StartDictVector, AddDict, End
