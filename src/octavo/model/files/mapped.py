"""Weights that stay in their file: a tensor that is a range of bytes, mapped into memory when it is read.

A :class:`DataFile` is mapped while somebody holds an array of it and unmapped afterwards, so that a model of
any number of weights holds no open file and no memory between reads. A file that changes under a loaded model
is noticed (size, inode and time of change) rather than read wrongly.
"""

from __future__ import annotations

import mmap
import weakref
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph.tensors import PlainTensor

Bytes = npt.NDArray[np.uint8]

_CHUNK = 16 << 20  # bytes that are written at a time
_KEEP_MOST = 1 << 20  # bytes; mapping so small a file for each read costs more than keeping its content


class DataFile:
    """A file of weights, opened only while it is read; a small one may be kept in memory."""

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        self.path = path
        self._stamp = self._now()
        self._map: weakref.ref[mmap.mmap] | None = None
        self._keeps = keep and self.size <= _KEEP_MOST
        self._content: Bytes | None = None

    def _now(self) -> tuple[int, int, int, int]:
        try:
            stat = self.path.stat()
        except OSError as error:
            raise ModelError(f"The weights file {self.path} can't be read: {error.strerror}.") from error
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns

    @property
    def size(self) -> int:
        """Return the file's size in bytes."""
        return self._stamp[2]

    def view(self) -> Bytes:
        """Return the whole file as a read-only array that the file itself backs.

        A file that was cut short is refused before its missing pages are touched: that would end the process.
        """
        if self._now() != self._stamp:
            raise ModelError(
                f"The file {self.path} changed after the model was loaded from it; load the model again."
            )
        if self._content is not None:
            return self._content
        mapped = self._map() if self._map is not None else None
        if mapped is None:
            if self.size == 0:
                return np.empty(0, np.uint8)
            if self._keeps:
                self._content = np.frombuffer(self.path.read_bytes(), np.uint8)
                return self._content
            with self.path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._map = weakref.ref(mapped)
        return np.frombuffer(mapped, np.uint8)


class MappedTensor(PlainTensor):
    """A tensor whose content lies at ``offset`` of a file, or of a ``bytes`` object in memory."""

    def __init__(
        self,
        source: DataFile | Bytes,
        offset: int,
        dtype: ir.DataType,
        shape: tuple[int, ...],
        name: str | None = None,
    ) -> None:
        super().__init__(dtype, ir.Shape(shape), name)
        self.raw: DataFile | Bytes = source
        self.offset = offset

    @property
    def path(self) -> Path | None:
        """Return the file that the content lies in, or None where it lies in memory."""
        return self.raw.path if isinstance(self.raw, DataFile) else None

    def stored(self) -> Bytes:
        """Return the bytes as they lie in the file."""
        whole = self.raw.view() if isinstance(self.raw, DataFile) else self.raw
        return whole[self.offset : self.offset + self.nbytes]

    def numpy(self) -> npt.NDArray[Any]:
        """Return a read-only array; elements of less than a byte are unpacked into a new one."""
        if self.dtype.bitwidth < 8:
            packed = ir.PackedTensor(self.stored(), self.dtype, shape=self.shape)
            return np.asarray(packed.numpy())
        return self.stored().view(self.dtype.numpy()).reshape(self.shape.numpy())

    def tobytes(self) -> bytes:
        """Return the content as little-endian bytes, elements of less than a byte packed."""
        return self.stored().tobytes()

    def tofile(self, file: BinaryIO) -> None:
        """Write the content in pieces, so that it never lies in memory as a whole."""
        raw = self.stored()
        for start in range(0, len(raw), _CHUNK):
            file.write(raw[start : start + _CHUNK].data)


def own_name(tensor: ir.TensorProtocol, name: str | None = None) -> ir.TensorProtocol:
    """Return the same content under a name of its own: renaming it does not reach the original's owner."""
    shape, name = ir.Shape(tensor.shape.numpy()), name or tensor.name
    if isinstance(tensor, MappedTensor):
        return MappedTensor(tensor.raw, tensor.offset, tensor.dtype, tensor.shape.numpy(), name)
    if isinstance(tensor, ir.StringTensor):
        return ir.StringTensor(tensor.raw, shape=shape, name=name)
    return ir.LazyTensor(
        lambda: tensor, dtype=tensor.dtype, shape=shape, name=name, doc_string=tensor.doc_string
    )


def write_tensor(tensor: ir.TensorProtocol, file: BinaryIO) -> int:
    """Write a tensor's bytes and return how many they were; the content is let go afterwards."""
    before = file.tell()
    tofile = getattr(tensor, "tofile", None)
    if tofile is not None:
        tofile(file)
    else:
        file.write(tensor.tobytes())
    return file.tell() - before
