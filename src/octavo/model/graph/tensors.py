"""Tensors of numbers in memory, and sizes that are known without reading or copying."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

SMALL_TENSOR_BYTES = 16 << 10  # bytes; a larger weight stays in its file or message until it is read
ELEMENT_TYPES: dict[int, ir.DataType] = {int(kind): kind for kind in ir.DataType}  # by ONNX's number
_NATIVE: dict[np.dtype[Any], ir.DataType] = {
    np.dtype(kind.numpy()): kind
    for kind in (
        ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BOOL, ir.DataType.INT8,
        ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32, ir.DataType.INT64,
    )
}  # fmt: skip
_LITTLE_ENDIAN = sys.byteorder == "little"
_OF_MESSAGE = {int(kind): (kind, dtype) for dtype, kind in _NATIVE.items()} if _LITTLE_ENDIAN else {}


class PlainTensor(ir.TensorProtocol):
    """What Octavo's own kinds of tensors share: ``numpy`` and ``tobytes`` say the rest."""

    def __init__(self, dtype: ir.DataType, shape: ir.Shape, name: str | None) -> None:
        self.name: str | None = name
        self.doc_string: str | None = None
        self.dtype = dtype
        self.shape = shape
        self.metadata_props: MutableMapping[str, str] = {}
        self.meta: MutableMapping[str, Any] = {}
        shape.freeze()

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape.numpy())

    @property
    def nbytes(self) -> int:
        """Return the number of bytes that the content takes, with elements of less than a byte packed."""
        return byte_size(self.dtype, self.shape.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self.numpy()
        if dtype is None or array.dtype == dtype:
            return array.copy() if copy else array
        return array.astype(dtype)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.numpy().__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the processor's memory

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.dtype}, {list(self.shape)})"


class ArrayTensor(PlainTensor):
    """An array of a type that numpy has, as a tensor.

    Quantization adds two or three numbers for each tensor, and ``ir.Tensor`` examines each array at length:
    with it a chain of 3000 nodes takes 6 % longer.
    """

    def __init__(
        self, array: npt.NDArray[Any], dtype: ir.DataType, shape: ir.Shape, name: str | None = None
    ) -> None:
        super().__init__(dtype, shape, name)
        self.raw: npt.NDArray[Any] = array

    @property
    def nbytes(self) -> int:
        """Return the number of bytes that the content takes."""
        return self.raw.nbytes

    def numpy(self) -> npt.NDArray[Any]:
        """Return the array itself."""
        return self.raw

    def tobytes(self) -> bytes:
        """Return the content as little-endian bytes."""
        return self._little_endian().tobytes()

    def tofile(self, file: BinaryIO) -> None:
        """Write the content without copying it."""
        file.write(self._little_endian().reshape(-1).view(np.uint8).data)

    def _little_endian(self) -> npt.NDArray[Any]:
        return self.raw if _LITTLE_ENDIAN else self.raw.astype(self.raw.dtype.newbyteorder("<"))


def of_array(
    array: npt.NDArray[Any], dtype: ir.DataType | None, shape: ir.Shape, name: str | None = None
) -> ir.TensorProtocol:
    """Return a tensor that holds an array in C order; ``dtype`` says what the array's own type does not."""
    native = _NATIVE.get(array.dtype)
    if native is not None and (dtype is None or dtype == native):
        return ArrayTensor(array, native, shape, name)
    if array.dtype.kind in "OSU":
        texts = [text.encode() if isinstance(text, str) else bytes(text) for text in array.reshape(-1)]
        return ir.StringTensor(texts, shape=shape, name=name)
    return ir.Tensor(array, dtype=dtype, shape=shape, name=name)


def computed(
    make: Callable[[], npt.NDArray[Any]],
    dtype: ir.DataType,
    shape: Sequence[int],
    *,
    name: str | None = None,
    keep: bool = False,
) -> ir.LazyTensor:
    """Return a tensor whose content is made when it is read: anew each time, or kept from then on."""

    def tensor() -> ir.TensorProtocol:
        return ir.Tensor(np.asarray(make(), order="C"), dtype=dtype)

    return ir.LazyTensor(tensor, dtype=dtype, shape=ir.Shape(shape), name=name, cache=keep)


def of_message(proto: onnx.TensorProto) -> ArrayTensor | None:
    """Return a small tensor of numbers that protobuf holds as bytes, or None for any other."""
    known = _OF_MESSAGE.get(proto.data_type)
    if known is None or proto.doc_string or proto.metadata_props:
        return None
    dims, (kind, dtype) = tuple(proto.dims), known
    due = math.prod(dims) * dtype.itemsize
    if not 0 < due <= SMALL_TENSOR_BYTES or len(content := proto.raw_data) != due:
        return None
    return ArrayTensor(np.frombuffer(content, dtype).reshape(dims), kind, ir.Shape(dims), proto.name)


def element_type(tensor: ir.TensorProtocol) -> ir.DataType:
    """Return a tensor's element type; one in protobuf would search an enumeration for it each time."""
    return ELEMENT_TYPES[tensor.raw.data_type] if type(tensor) is ir.TensorProtoTensor else tensor.dtype


def dims_of(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """Return a tensor's dimensions; one in protobuf would make a new shape of them each time."""
    if type(tensor) is ArrayTensor:
        dims: tuple[int, ...] = tensor.raw.shape
        return dims
    return tuple(tensor.raw.dims) if type(tensor) is ir.TensorProtoTensor else tuple(tensor.shape.numpy())


def byte_size(dtype: ir.DataType, shape: tuple[int, ...]) -> int:
    """Return the bytes that a tensor takes, with elements of less than a byte packed."""
    return (math.prod(shape) * dtype.bitwidth + 7) // 8


def tensor_bytes(tensor: ir.TensorProtocol) -> int:
    """Return the size of a tensor's content, which is not read for it."""
    if type(tensor) is ArrayTensor:
        return tensor.raw.nbytes
    dtype = element_type(tensor)
    return int(tensor.nbytes) if dtype == ir.DataType.STRING else byte_size(dtype, dims_of(tensor))
