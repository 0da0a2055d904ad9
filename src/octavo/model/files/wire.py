"""ONNX files at the level of protobuf's wire format: weights are found, and written, without being copied.

A protobuf message is a run of ``key value`` pairs with ``key = field << 3 | kind``. A model's weights are

    ModelProto.graph (7) → GraphProto.initializer (5) → TensorProto.raw_data (9)

so reading needs to look at three levels only: :func:`split` returns the model's bytes with the large
``raw_data`` taken out, and where in the file each of them lies. Writing is the reverse: field order carries
no meaning in protobuf, so :func:`join` writes the small rest first and then each weight from its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

_GRAPH = 7  # ModelProto
_INITIALIZER = 5  # GraphProto
_RAW_DATA = 9  # TensorProto
_NAME = 8  # TensorProto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


Writer = Callable[[BinaryIO], int]


class WireError(ValueError):
    """The bytes are not a plain protobuf message."""


@dataclass(frozen=True)
class ByteRange:
    """Where a weight's bytes lie."""

    offset: int
    length: int


@dataclass
class Split:
    """A model without its large weights, and where those are, by initializer name."""

    rest: bytes
    weights: dict[str, ByteRange] = field(default_factory=dict)


@dataclass(frozen=True)
class WireWeight:
    """A weight to be written: its ``TensorProto`` without content, its size, and how to write it."""

    header: bytes
    size: int
    write: Writer


def varint(number: int) -> bytes:
    """Return a non-negative integer in protobuf's base-128 form."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= end or shift > 63:
            raise WireError("a number runs past the end of its message")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """``(field number, kind, start of the pair, start of the payload, end of the pair)`` for each pair."""
    while at < end:
        start = at
        key, at = _read_varint(data, at, end)
        kind = key & 7
        if kind == _VARINT:
            payload = at
            _, at = _read_varint(data, at, end)
        elif kind == _BYTES:
            length, payload = _read_varint(data, at, end)
            at = payload + length
        elif kind in (_FIXED64, _FIXED32):
            payload = at
            at += 8 if kind == _FIXED64 else 4
        else:
            raise WireError(f"a field of kind {kind}")
        if at > end or key >> 3 == 0:
            raise WireError("a field runs past the end of its message")
        yield key >> 3, kind, start, payload, at


def _message(number: int, parts: Sequence[bytes]) -> list[bytes]:
    return [varint(number << 3 | _BYTES), varint(sum(map(len, parts))), *parts]


def _tensor(data: memoryview, at: int, end: int) -> tuple[str, ByteRange | None, list[bytes]]:
    """Return an initializer's name, where its content lies, and its bytes without the content."""
    name, content, parts = "", None, []
    for number, kind, start, payload, stop in _fields(data, at, end):
        if number == _RAW_DATA and kind == _BYTES:
            content = ByteRange(payload, stop - payload)
            continue
        if number == _NAME and kind == _BYTES:
            name = bytes(data[payload:stop]).decode("utf-8", "replace")
        parts.append(bytes(data[start:stop]))
    return name, content, parts


def _graph(data: memoryview, at: int, end: int, least: int, found: dict[str, ByteRange]) -> list[bytes]:
    parts: list[bytes] = []
    kept = at
    for number, kind, start, payload, stop in _fields(data, at, end):
        if number != _INITIALIZER or kind != _BYTES or stop - payload < least:
            continue
        name, content, rest = _tensor(data, payload, stop)
        if content is None or content.length < least or not name or name in found:
            continue
        found[name] = content
        parts.append(bytes(data[kept:start]))
        parts.extend(_message(_INITIALIZER, rest))
        kept = stop
    parts.append(bytes(data[kept:end]))
    return parts


def split(data: memoryview, least: int) -> Split:
    """Take every initializer's content of at least ``least`` bytes out of a serialized model."""
    weights: dict[str, ByteRange] = {}
    parts: list[bytes] = []
    for number, kind, start, payload, stop in _fields(data, 0, len(data)):
        if number == _GRAPH and kind == _BYTES:
            parts.extend(_message(_GRAPH, _graph(data, payload, stop, least, weights)))
        else:
            parts.append(bytes(data[start:stop]))
    return Split(b"".join(parts), weights)


def _weight_prefix(weight: WireWeight) -> bytes:
    content = varint(_RAW_DATA << 3 | _BYTES) + varint(weight.size)
    length = len(weight.header) + len(content) + weight.size
    return varint(_INITIALIZER << 3 | _BYTES) + varint(length) + weight.header + content


def join(file: BinaryIO, model: bytes, graph: bytes, weights: Sequence[WireWeight]) -> None:
    """Write a model: its own fields, its graph's, and one weight after the other."""
    prefixes = [_weight_prefix(weight) for weight in weights]
    inner = len(graph) + sum(map(len, prefixes)) + sum(weight.size for weight in weights)
    file.write(model)
    file.write(varint(_GRAPH << 3 | _BYTES) + varint(inner))
    file.write(graph)
    for prefix, weight in zip(prefixes, weights, strict=True):
        file.write(prefix)
        written = weight.write(file)
        if written != weight.size:
            raise WireError(f"a weight wrote {written} bytes where it had announced {weight.size}")
