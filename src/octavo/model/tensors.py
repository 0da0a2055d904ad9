"""Weights that stay in their file: a tensor that is a stretch of bytes, mapped into memory when asked for.

A :class:`DataFile` is mapped while somebody holds an array of it and unmapped afterwards, so that a model of
any number of weights holds no open file and no memory between reads. A file that changes under a loaded model
is noticed (size, inode and time of change) rather than read wrongly.
"""

from __future__ import annotations

import math
import mmap
import sys
import weakref
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from octavo.errors import ModelError

Bytes = npt.NDArray[np.uint8]

_CHUNK = 16 << 20
_AT_ONCE = 1 << 20  # bytes; to map so small a file for each read costs more than to keep it

KINDS: dict[int, ir.DataType] = {int(kind): kind for kind in ir.DataType}  # by number, for a quick look
_PLAIN: dict[np.dtype[Any], ir.DataType] = {
    np.dtype(kind.numpy()): kind
    for kind in (
        ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BOOL, ir.DataType.INT8,
        ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32, ir.DataType.INT64,
    )
}  # fmt: skip
_NUMBERS = {int(kind): (kind, dtype) for dtype, kind in _PLAIN.items()} if sys.byteorder == "little" else {}
SMALL = 16 << 10  # bytes; a larger weight stays in its file or message until it is asked for


class DataFile:
    """A file of weights, opened only while it is read; a small one may be kept in memory."""

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        self.path = path
        self._stamp = self._now()
        self._map: weakref.ref[mmap.mmap] | None = None
        self._keeps = keep and self.size <= _AT_ONCE
        self._content: Bytes | None = None

    def _now(self) -> tuple[int, int, int, int]:
        try:
            stat = self.path.stat()
        except OSError as error:
            raise ModelError(f"The weights file {self.path} can't be read: {error.strerror}.") from error
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        return self._stamp[2]

    def view(self) -> Bytes:
        """The whole file as a read-only array, backed by the file itself.

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


class MappedTensor(ir.TensorProtocol):
    """A tensor whose content lies at ``offset`` of a file, or of a ``bytes`` object in memory."""

    def __init__(
        self,
        source: DataFile | Bytes,
        offset: int,
        dtype: ir.DataType,
        shape: tuple[int, ...],
        name: str | None = None,
    ) -> None:
        self.name: str | None = name
        self.doc_string: str | None = None
        self.raw: DataFile | Bytes = source
        self.offset = offset
        self.dtype = dtype
        self.shape = ir.Shape(shape, frozen=True)
        self._size = byte_size(ir.DataType.UINT8, shape)
        self._nbytes = byte_size(dtype, shape)
        self.metadata_props: MutableMapping[str, str] = {}
        self.meta: MutableMapping[str, Any] = {}

    @property
    def path(self) -> Path | None:
        """The file that the content lies in, or None where it lies in memory."""
        return self.raw.path if isinstance(self.raw, DataFile) else None

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._size

    @property
    def nbytes(self) -> int:
        """The number of bytes that the content takes, sub-byte elements packed."""
        return self._nbytes

    def stored(self) -> Bytes:
        """The bytes as they lie in the file."""
        whole = self.raw.view() if isinstance(self.raw, DataFile) else self.raw
        return whole[self.offset : self.offset + self.nbytes]

    def numpy(self) -> npt.NDArray[Any]:
        """The content as a read-only array; sub-byte types are unpacked into a new one."""
        if self.dtype.bitwidth < 8:
            packed = ir.PackedTensor(self.stored(), self.dtype, shape=self.shape)
            return np.asarray(packed.numpy())
        return self.stored().view(self.dtype.numpy()).reshape(self.shape.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self.numpy()
        if dtype is None or array.dtype == dtype:
            return array.copy() if copy else array
        return array.astype(dtype)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.numpy().__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def tobytes(self) -> bytes:
        """The content as bytes, little-endian, sub-byte types packed."""
        return self.stored().tobytes()

    def tofile(self, file: BinaryIO) -> None:
        """Write the content in pieces, so that it never lies in memory as a whole."""
        raw = self.stored()
        for start in range(0, len(raw), _CHUNK):
            file.write(raw[start : start + _CHUNK].data)

    def __repr__(self) -> str:
        where = self.path.name if self.path is not None else "memory"
        return f"MappedTensor({self.name!r}, {self.dtype}, {list(self.shape)}, {where}+{self.offset})"


class ArrayTensor(ir.TensorProtocol):
    """An array of a plain numpy type as a tensor.

    Quantization adds two numbers or three for each tensor, and onnx-ir's own class takes its time to tell
    what an array may stand for.
    """

    def __init__(
        self, array: npt.NDArray[Any], dtype: ir.DataType, shape: ir.Shape, name: str | None = None
    ) -> None:
        self.name: str | None = name
        self.doc_string: str | None = None
        self.raw: npt.NDArray[Any] = array
        self.dtype = dtype
        self.shape = shape
        self.metadata_props: MutableMapping[str, str] = {}
        self.meta: MutableMapping[str, Any] = {}
        shape.freeze()

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.raw.size

    @property
    def nbytes(self) -> int:
        """The number of bytes that the content takes."""
        return self.raw.nbytes

    def numpy(self) -> npt.NDArray[Any]:
        """The array."""
        return self.raw

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.raw.__array__(dtype, copy=copy)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.raw.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def tobytes(self) -> bytes:
        """The content as bytes, little-endian."""
        return self._little_endian().tobytes()

    def tofile(self, file: BinaryIO) -> None:
        """Write the content, which is not copied."""
        file.write(self._little_endian().reshape(-1).view(np.uint8).data)

    def _little_endian(self) -> npt.NDArray[Any]:
        return self.raw if sys.byteorder == "little" else self.raw.astype(self.raw.dtype.newbyteorder("<"))

    def __repr__(self) -> str:
        return f"ArrayTensor({self.name!r}, {self.dtype}, {list(self.raw.shape)})"


def of_array(
    array: npt.NDArray[Any], dtype: ir.DataType | None, shape: ir.Shape, name: str | None = None
) -> ir.TensorProtocol:
    """A tensor that holds an array, in C order; ``dtype`` where the array's own type does not tell."""
    plain = _PLAIN.get(array.dtype)
    if plain is not None and (dtype is None or dtype == plain):
        return ArrayTensor(array, plain, shape, name)
    return ir.Tensor(array, dtype=dtype, shape=shape, name=name)


def of_message(proto: onnx.TensorProto) -> ArrayTensor | None:
    """A small tensor of numbers that lies in protobuf as bytes, read once; None for any other."""
    known = _NUMBERS.get(proto.data_type)
    if known is None or proto.doc_string or proto.metadata_props:
        return None
    dims, (kind, dtype) = tuple(proto.dims), known
    due = math.prod(dims) * dtype.itemsize
    if not 0 < due <= SMALL or len(content := proto.raw_data) != due:
        return None
    array = np.frombuffer(content, dtype).reshape(dims)
    return ArrayTensor(array, kind, ir.Shape(dims), proto.name)


def element_type(tensor: ir.TensorProtocol) -> ir.DataType:
    """A tensor's element type; one in protobuf looks it up in an enumeration each time it is asked."""
    return KINDS[tensor.raw.data_type] if type(tensor) is ir.TensorProtoTensor else tensor.dtype


def byte_size(dtype: ir.DataType, shape: tuple[int, ...]) -> int:
    """The bytes that a tensor takes, sub-byte elements packed; Python integers, so nothing overflows."""
    count = 1
    for dim in shape:
        count *= dim
    return (count * dtype.bitwidth + 7) // 8


def dims_of(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """A tensor's dimensions, without the new shape that a tensor in protobuf makes each time it is asked."""
    kind = type(tensor)
    if kind is ir.TensorProtoTensor:
        return tuple(tensor.raw.dims)
    if kind is ArrayTensor:
        shape_: tuple[int, ...] = tensor.raw.shape
        return shape_
    shape = tensor.shape
    dims: Any = shape.dims if type(shape) is ir.Shape else shape.numpy()  # nothing in it is unknown
    return tuple(dims)


def own_name(tensor: ir.TensorProtocol, name: str | None = None) -> ir.TensorProtocol:
    """The same content under a name of its own, so that renaming it does not reach the original's owner."""
    shape = tensor.shape
    dims = shape if isinstance(shape, ir.Shape) else ir.Shape(shape.numpy())
    if isinstance(tensor, MappedTensor):
        return MappedTensor(
            tensor.raw, tensor.offset, tensor.dtype, tensor.shape.numpy(), name or tensor.name
        )
    if isinstance(tensor, ir.StringTensor):
        return ir.StringTensor(tensor.raw, shape=dims, name=name or tensor.name)
    return ir.LazyTensor(
        lambda: tensor, dtype=tensor.dtype, shape=dims, name=name or tensor.name, doc_string=tensor.doc_string
    )


def write_tensor(tensor: ir.TensorProtocol, file: BinaryIO) -> int:
    """Write a tensor's bytes; returns how many. The content is let go afterwards."""
    before = file.tell()
    tofile = getattr(tensor, "tofile", None)
    if tofile is not None:
        tofile(file)
    else:
        file.write(tensor.tobytes())
    return file.tell() - before


def same_file(left: Path, right: Path) -> bool:
    """Whether two paths lead to one file; False where either is missing."""
    try:
        return left.samefile(right)
    except OSError:
        return False
