"""TensorRT's calibration table in FlatBuffers.

The schema is two tables: ``TrtTable { dict: [KeyValue] }`` and ``KeyValue { key: string; value: string }``,
in their slots 0 and 0, 1. Keys are sorted and the vector is filled from its back; values are numbers as text;
there is no file identifier. Reading trusts nothing: each offset, length and vtable is checked first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from octavo.calibration.tables.table_checks import MAX_BYTES, magnitude, symmetric, unique
from octavo.core.stats import Range
from octavo.errors import TableError


def dump(ranges: Mapping[str, Range]) -> bytes:
    """Return the bytes of the table."""
    from flatbuffers import Builder  # type: ignore[import-untyped]

    builder = Builder(1024)
    pairs = []
    for name in sorted(ranges):
        key, value = builder.CreateString(name), builder.CreateString(str(magnitude(ranges[name])))
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, key, 0)
        builder.PrependUOffsetTRelativeSlot(1, value, 0)
        pairs.append(builder.EndObject())
    builder.StartVector(4, len(pairs), 4)
    for pair in pairs:
        builder.PrependUOffsetTRelative(pair)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def parse(data: bytes) -> dict[str, Range]:
    """Return the magnitudes of a table, as symmetric ranges."""
    if len(data) > MAX_BYTES:
        raise TableError(f"The FlatBuffer is larger than any table ({MAX_BYTES >> 20} MiB at most).")
    return unique((key, symmetric(key, value)) for key, value in _pairs(_Buffer(data)))


def _pairs(buffer: _Buffer) -> Iterator[tuple[str, str]]:
    """Give keys and values; the first of the vector was written last."""
    root = buffer.follow(0)
    vector = buffer.field(root, 0)
    if vector is None:
        return
    count = buffer.length(vector, 4)
    for index in reversed(range(count)):
        entry = buffer.follow(vector + 4 + 4 * index)
        key, value = buffer.field(entry, 0), buffer.field(entry, 1)
        if key is None or value is None:
            raise TableError(f"Entry {index} of the FlatBuffer lacks its key or its value.")
        yield buffer.string(key), buffer.string(value)


class _Buffer:
    """Reads numbers at offsets that were checked to lie inside."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def _number(self, kind: str, at: int) -> int:
        size = struct.calcsize(kind)
        if at < 0 or at % size or at + size > len(self._data):
            raise TableError(f"The FlatBuffer is damaged: it points to byte {at} of {len(self._data)}.")
        return int(struct.unpack_from(kind, self._data, at)[0])

    def follow(self, at: int) -> int:
        """Return the position that the offset stored here leads to."""
        offset = self._number("<I", at)
        if offset == 0:
            raise TableError(f"The FlatBuffer is damaged: the offset at byte {at} leads nowhere.")
        return at + offset

    def field(self, table: int, slot: int) -> int | None:
        """Return where the content of a slot of a table begins; None where the slot is empty."""
        vtable = table - self._number("<i", table)
        size, inline = self._number("<H", vtable), self._number("<H", vtable + 2)
        if size < 4 or size % 2 or vtable + size > len(self._data) or table + inline > len(self._data):
            raise TableError(f"The FlatBuffer is damaged: the table at byte {table} runs past the end.")
        if 4 + 2 * slot >= size:
            return None
        position = self._number("<H", vtable + 4 + 2 * slot)
        if position == 0:
            return None
        if position + 4 > inline:
            raise TableError(f"The FlatBuffer is damaged: a field lies outside its table at byte {table}.")
        return self.follow(table + position)

    def length(self, vector: int, size: int) -> int:
        """Return the number of elements of a vector, all of which lie inside."""
        count = self._number("<I", vector)
        if vector + 4 + count * size > len(self._data):
            raise TableError(f"The FlatBuffer is damaged: the vector at byte {vector} runs past the end.")
        return count

    def string(self, at: int) -> str:
        """Return the text that begins here."""
        count = self.length(at, 1)
        if self._data[at + 4 + count : at + 5 + count] != b"\0":
            raise TableError(f"The FlatBuffer is damaged: the text at byte {at} has no end.")
        try:
            return self._data[at + 4 : at + 4 + count].decode()
        except UnicodeDecodeError as error:
            raise TableError(f"The text at byte {at} of the FlatBuffer is not UTF-8.") from error
