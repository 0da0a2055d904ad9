"""GGUF, the file format of llama.cpp: metadata, and tensors whose values lie in blocks with scales.

A file is a magic number, a version, counts, metadata, a list of tensors and their bytes::

    "GGUF" | version | tensors | entries | entry … | tensor … | padding | bytes of the tensors

All numbers are little-endian. The file comes from anybody: every count and offset is checked against the
bytes that there are. The bytes of tensors are mapped, not read.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from octavo.core.files import unreadable
from octavo.errors import ModelError

MAGIC: Final = b"GGUF"
_VERSIONS = (2, 3)  # of the format; version 1 counts in 32 bits
_ALIGNMENT = 32  # of tensors, where the metadata does not say
_MOST_AXES = 4  # of a tensor, as the format has it
_MOST_TEXTS = 1 << 21  # names, tokens and merges; the largest vocabularies have half as many
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class BlockFormat:
    """How values are stored: so many in a block of so many bytes."""

    name: str
    values: int
    bytes: int


FORMATS: dict[int, BlockFormat] = {
    0: BlockFormat("F32", 1, 4),
    1: BlockFormat("F16", 1, 2),
    2: BlockFormat("Q4_0", 32, 18),
    3: BlockFormat("Q4_1", 32, 20),
    6: BlockFormat("Q5_0", 32, 22),
    7: BlockFormat("Q5_1", 32, 24),
    8: BlockFormat("Q8_0", 32, 34),
    12: BlockFormat("Q4_K", 256, 144),
    13: BlockFormat("Q5_K", 256, 176),
    14: BlockFormat("Q6_K", 256, 210),
    30: BlockFormat("BF16", 1, 2),
}


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """One tensor: its name, its shape as numpy has it (rows first), and its blocks."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat | None  # None: one that is not known here
    code: int
    blocks: npt.NDArray[np.uint8]  # [blocks, bytes]; empty where the format is not known


@dataclass(frozen=True, eq=False)
class GgufFile:
    """The metadata and the tensors of a file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def number(self, name: str) -> int | None:
        """Return a number of the model's architecture, such as ``attention.head_count``."""
        found = self.metadata.get(f"{self.metadata.get('general.architecture')}.{name}")
        return found if isinstance(found, int) else None


def read(path: str | Path) -> GgufFile:
    """Read the metadata of a file, and map its tensors."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ModelError(f"{path} is not a regular file; give the path of a .gguf file.")
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(unreadable("", path, error)) from error
    except ValueError as error:
        raise ModelError(f"{path} can't be read: {error}.") from error
    try:
        return _Reader(path, content).file()
    except (struct.error, UnicodeDecodeError, IndexError, OverflowError, RecursionError) as error:
        raise ModelError(f"{path} is not a complete GGUF file: {error}.") from error


class _Reader:
    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.at, self.texts = path, content, 0, 0

    def file(self) -> GgufFile:
        if self.content[:4] != MAGIC:
            raise ModelError(f"{self.path} is not a GGUF file: it does not begin with {MAGIC.decode()!r}.")
        self.at = 4
        version = self._number("I")
        if version not in _VERSIONS:
            raise ModelError(f"{self.path} has version {version} of GGUF; versions 2 and 3 are read.")
        count, entries = self._count(), self._count()
        metadata = {}
        for _ in range(entries):
            name = self._text()
            metadata[name] = self._value(self._number("I"))
        listed = [self._listed() for _ in range(count)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise ModelError(
                f"{self.path} aligns its tensors by {alignment!r}, which is not a number of bytes."
            )
        start = -(-self.at // alignment) * alignment
        tensors = {one[0]: self._tensor(*one, start) for one in listed}
        return GgufFile(self.path, metadata, tensors)

    def _listed(self) -> tuple[str, tuple[int, ...], int, int]:
        name, axes = self._text(), self._number("I")
        if axes > _MOST_AXES:
            raise ModelError(f"{self.path}: the tensor {name!r} has {axes} axes; {_MOST_AXES} are the most.")
        dims = tuple(self._number("Q") for _ in range(axes))
        return name, dims[::-1], self._number("I"), self._number("Q")

    def _tensor(self, name: str, shape: tuple[int, ...], code: int, offset: int, start: int) -> GgufTensor:
        known, first = FORMATS.get(code), start + offset
        if known is None:
            return GgufTensor(name, shape, None, code, np.empty((0, 0), np.uint8))
        if (shape[-1] if shape else 1) % known.values:
            raise ModelError(f"{self.path}: rows of {name!r} are not whole blocks of {known.values} values.")
        blocks = math.prod(shape) // known.values
        if first + blocks * known.bytes > len(self.content):
            raise ModelError(f"{self.path} ends before the tensor {name!r} does; download it again.")
        found = np.frombuffer(self.content, np.uint8, blocks * known.bytes, first)
        return GgufTensor(name, shape, known, code, found.reshape(blocks, known.bytes))

    def _number(self, kind: str) -> int:
        found = struct.unpack_from(f"<{kind}", self.content, self.at)[0]
        self.at += struct.calcsize(f"<{kind}")
        return found  # type: ignore[no-any-return]

    def _count(self) -> int:
        """Return how many items follow; each takes a byte at least."""
        found = self._number("Q")
        if found > len(self.content) - self.at:
            raise ModelError(
                f"{self.path} claims {found} items, more than its bytes hold; download it again."
            )
        return found

    def _text(self) -> str:
        self.texts += 1
        if self.texts > _MOST_TEXTS:
            raise ModelError(f"{self.path} holds more than {_MOST_TEXTS} texts, the most that are read.")
        length = self._count()
        found = self.content[self.at : self.at + length].decode()
        self.at += length
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            if kind not in _NUMBERS:
                raise ModelError(f"{self.path}: metadata of the unknown type {kind}.")
            return self._number(_NUMBERS[kind])
        inner, count = self._number("I"), self._count()
        if inner in _NUMBERS:
            width = struct.calcsize(f"<{_NUMBERS[inner]}")
            if count * width > len(self.content) - self.at:
                raise ModelError(f"{self.path} claims an array of {count} numbers, more than its bytes hold.")
            self.at += count * width
            return None  # arrays of numbers say nothing about weights
        if inner == _ARRAY:
            raise ModelError(f"{self.path}: metadata with arrays of arrays is not read.")
        for _ in range(count):
            self._text()
        return None
