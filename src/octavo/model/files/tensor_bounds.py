"""Checks of a single tensor: its type, its shape, and whether its content is as much as they say."""

from __future__ import annotations

import onnx_ir as ir
from onnx import TensorProto

from octavo.errors import ModelError
from octavo.model.graph.tensors import ELEMENT_TYPES, byte_size

_LARGEST_TENSOR = 1 << 44  # bytes; no machine holds more, and sums of sizes stay far below 2^63
_MOST_DIMENSIONS = 64  # of a tensor; numpy knows no more
_SIX = 6  # bits: elements of the float6 types
_TYPED_FIELDS: dict[str, frozenset[int]] = {
    "float_data": frozenset({TensorProto.FLOAT, TensorProto.COMPLEX64}),
    "double_data": frozenset({TensorProto.DOUBLE, TensorProto.COMPLEX128}),
    "int64_data": frozenset({TensorProto.INT64}),
    "uint64_data": frozenset({TensorProto.UINT64, TensorProto.UINT32}),
    "string_data": frozenset({TensorProto.STRING}),
}
_OTHER_FIELD = "int32_data"  # every narrower type
FIELDS = (*_TYPED_FIELDS, _OTHER_FIELD)


def dims(kind: int, shape: tuple[int, ...], name: str) -> tuple[ir.DataType, tuple[int, ...]]:
    """Return type and shape; raise where there is no such type, or no memory could hold the tensor."""
    dtype = ELEMENT_TYPES.get(kind)
    if dtype is None:
        raise ModelError(f"{name} has the unknown element type {kind}.")
    if dtype == ir.DataType.UNDEFINED or (shape and min(shape) < 0) or len(shape) > _MOST_DIMENSIONS:
        raise ModelError(
            f"{name} has an impossible type or shape: {dtype}, {list(shape[:_MOST_DIMENSIONS])}."
        )
    width = ir.DataType.UINT8 if dtype == ir.DataType.STRING else dtype
    sides = shape if 0 not in shape else tuple(max(dim, 1) for dim in shape)
    if byte_size(width, sides) > _LARGEST_TENSOR:
        raise ModelError(f"{name} has the impossible size {list(shape)}.")
    return dtype, shape


def check_size(dtype: ir.DataType, shape: tuple[int, ...], length: int, name: str) -> None:
    """Refuse raw bytes that are fewer or more than type and shape say."""
    if dtype == ir.DataType.STRING:
        raise ModelError(f"{name} holds texts as raw bytes, which ONNX does not know; the model is damaged.")
    due = byte_size(dtype, shape)
    if due != length:
        raise ModelError(
            f"{name} of type {dtype} and shape {list(shape)} holds {length} bytes instead of {due}; the "
            "model is damaged."
        )


def check_padding(dtype: ir.DataType, shape: tuple[int, ...], last: bytes, name: str) -> None:
    """Refuse bits behind the last element of six bits, which no reader lets pass."""
    if dtype.bitwidth != _SIX:
        return
    used = byte_size(ir.DataType.UINT8, shape) * _SIX % 8
    if used and last and last[0] >> used:
        raise ModelError(f"{name} holds bits after its last element; the model is damaged.")


def check_typed(
    tensor: TensorProto, kind: tuple[ir.DataType, tuple[int, ...]], filled: list[str], name: str
) -> None:
    """Typed fields hold one entry per element, two for complex numbers, packed bytes for sub-byte types."""
    dtype, shape = kind
    due_field = next((one for one, types in _TYPED_FIELDS.items() if tensor.data_type in types), _OTHER_FIELD)
    if filled and filled != [due_field]:
        raise ModelError(f"{name} holds {filled[0]} instead of {due_field}; the model is damaged.")
    count = len(getattr(tensor, due_field))
    elements = byte_size(ir.DataType.UINT8, shape)
    due = {elements}
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        due = {2 * elements}
    elif dtype != ir.DataType.STRING and dtype.bitwidth < 8:
        due = {byte_size(dtype, shape), elements}
    if count not in due:
        raise ModelError(
            f"{name} of shape {list(shape)} holds {count} elements instead of {max(due)}; the model is "
            "damaged."
        )
    if due_field == _OTHER_FIELD and count and count < elements:
        check_padding(dtype, shape, bytes([tensor.int32_data[-1] & 0xFF]), name)
