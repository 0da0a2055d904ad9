"""What constants hold in real numbers, however they are stored: integers, blocks, turned, cast.

A constant is an initializer, or what nodes that only move, cast, quantize or dequantize make of some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core import granularity
from octavo.core.granularity import PerBlock, PerChannel
from octavo.core.kernels import unpack
from octavo.errors import ModelError, RecipeError
from octavo.model.graph import query
from octavo.model.graph.operators import DEQUANTIZE, QUANTIZE

Array: TypeAlias = npt.NDArray[Any]

_MAX_DEPTH = 16  # of nodes between a constant and the initializers that it is made from


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is the same in every run, and can be read off here."""
    if value is None:
        return False
    level = {value}
    for _ in range(_MAX_DEPTH + 1):
        if not all(map(_is_read, level)):
            return False
        makers = [maker for v in level if (maker := v.producer()) is not None]
        level = {v for maker in makers for v in maker.inputs if v is not None}
    return not level


def _is_read(value: ir.Value) -> bool:
    producer = value.producer()
    if producer is None:
        return value.is_initializer() and not value.is_graph_input()
    return producer.op_type in _READERS


def real(value: ir.Value | None) -> Array | None:
    """Return the content of a constant: floats as float32, integers that are dequantized likewise."""
    if not is_constant(value):
        return None
    found = stored(value)
    return found.astype(np.float32) if found.dtype.kind not in "iubSUO" else found


def stored(value: ir.Value | None) -> Array:
    """Return the content of a constant as it is stored."""
    return _stored(value, {})


def _stored(value: ir.Value | None, known: dict[ir.Value, Array]) -> Array:
    """Return the content; ``known`` is what was read on the way, so that nothing is read twice."""
    if value is None:
        return np.zeros(0, np.float32)
    producer = value.producer()
    if producer is None:
        return np.asarray(value.const_value.numpy()) if value.const_value is not None else np.zeros(0)
    if value not in known:
        known[value] = _READERS[producer.op_type](producer, [_stored(v, known) for v in producer.inputs])
    return known[value]


def stored_value(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer that a constant comes from, or the integers of a QuantizeLinear behind it."""
    while value is not None and (maker := value.producer()) is not None:
        if maker.op_type == QUANTIZE:
            return value
        value = maker.inputs[0]
    return value


def numbers(value: ir.Value | None) -> Array | None:
    """Return a scale or zero point that is a constant, in float64."""
    return stored(value).astype(np.float64) if is_constant(value) else None


def spread(params: Array, shape: tuple[int, ...], axis: int, block: int = 0) -> Array:
    """Return scales or zero points laid out to broadcast against a tensor; single ones have no axis."""
    if params.size == 1:
        return params.reshape(())
    if params.ndim > 1 and not block:  # laid out already, as those of an LSTM are
        if all(n in (1, m) for n, m in zip(params.shape[::-1], shape[::-1], strict=False)):
            return params
        raise ModelError(
            f"Scale or zero point of shape {list(params.shape)} does not fit a tensor of shape "
            f"{list(shape)}; the model is damaged: quantize it again."
        )
    try:
        return granularity.spread(params, shape, PerBlock(block, axis) if block else PerChannel(axis))
    except RecipeError as error:
        raise ModelError(
            f"{str(error).partition(';')[0]}; the model is damaged: quantize it again."
        ) from error


def dequantize(q: Array, scale: Array, zero: Array | None, axis: int, block: int = 0) -> Array:
    """``scale · (q − zero)`` in float32; scales for each index of an axis, or for blocks along it."""
    centre = np.zeros(1) if zero is None or zero.size == 0 else zero
    scale, centre = (spread(p.astype(np.float64), q.shape, axis, block) for p in (scale, centre))
    return np.asarray((q.astype(np.float64) - centre) * scale, np.float32)


def blocks(node: ir.Node) -> Array | None:
    """Return the weight of a MatMulNBits node as ``[N, K]``."""
    if len(node.inputs) < 3:
        return None
    packed, scales = query.constant(node.inputs[1]), query.constant(node.inputs[2])
    if packed is None or scales is None:
        return None
    K, N, bits, size = (int(query.attribute(node, a, 0)) for a in ("K", "N", "bits", "block_size"))
    groups = -(-K // size)
    raw = np.asarray(packed.numpy())
    q = unpack(raw, bits, N * groups * size).reshape(N, groups, size).astype(np.float32)
    zeros = query.operand(node, 3)
    if zeros is None:
        centre = np.full((N, groups), float(1 << (bits - 1)), np.float32)
    else:
        held = stored(zeros)
        if held.dtype.kind == "u" and bits < 8:
            rows = held.reshape(N, -1)
            centre = np.stack([unpack(row, bits, groups) for row in rows]).astype(np.float32)
        else:
            centre = held.reshape(N, groups).astype(np.float32)
    scale = np.asarray(scales.numpy()).reshape(N, groups).astype(np.float32)
    return np.asarray(((q - centre[..., None]) * scale[..., None]).reshape(N, -1)[:, :K])


def block_rows(node: ir.Node) -> Array | None:
    """Return the table of a GatherBlockQuantized node; bytes may hold several integers of a row."""
    if len(node.inputs) < 3 or not all(map(is_constant, (node.inputs[0], node.inputs[2]))):
        return None
    table, scale = stored(node.inputs[0]), stored(node.inputs[2])
    zeros = stored(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
    bits, size, axis = (
        int(query.attribute(node, name, default))
        for name, default in (("bits", 4), ("block_size", 128), ("quantize_axis", 1))
    )
    if table.dtype == np.uint8:
        table = _unpacked_rows(table, bits)
        middle = np.full((), 1 << (bits - 1), np.uint8)
        zeros = middle if zeros is None else _unpacked_rows(zeros, bits)[..., : scale.shape[-1]]
    return dequantize(table, scale, zeros, axis, size)


def _unpacked_rows(raw: Array, bits: int) -> Array:
    each = 8 // bits
    return unpack(raw, bits, raw.size * each).reshape(*raw.shape[:-1], raw.shape[-1] * each)


_LAYOUT = (("axis", 1), ("block_size", 0))  # attributes of both conversions, with what they are if left out


def _of_dequantize(node: ir.Node, inputs: list[Array]) -> Array:
    axis, block = (int(query.attribute(node, name, default)) for name, default in _LAYOUT)
    return dequantize(inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else None, axis, block)


def _of_quantize(node: ir.Node, inputs: list[Array]) -> Array:
    axis, block = (int(query.attribute(node, name, default)) for name, default in _LAYOUT)
    x, scale = inputs[0], inputs[1]
    zero = inputs[2] if len(inputs) > 2 else np.zeros((), np.uint8)
    steps = np.rint(x / spread(scale, x.shape, axis, block))
    if zero.dtype.kind not in "iu":
        return np.asarray(steps).astype(zero.dtype)
    limits = np.iinfo(zero.dtype)
    moved = steps + spread(zero, x.shape, axis, block).astype(np.float64)
    return np.asarray(np.clip(moved, limits.min, limits.max)).astype(zero.dtype)


def _of_transpose(node: ir.Node, inputs: list[Array]) -> Array:
    return inputs[0].transpose(query.attribute(node, "perm", None))


def cast_type(node: ir.Node) -> ir.DataType:
    """Return the type that a Cast node gives."""
    number = int(query.attribute(node, "to", 1))
    try:
        return ir.DataType(number)
    except ValueError:
        raise ModelError(
            f"The Cast node {node.name!r} names type {number}, which does not exist; export the model again."
        ) from None


def _of_cast(node: ir.Node, inputs: list[Array]) -> Array:
    return inputs[0].astype(cast_type(node).numpy())


def _of_reshape(node: ir.Node, inputs: list[Array]) -> Array:
    wanted = [inputs[0].shape[i] if n == 0 else int(n) for i, n in enumerate(inputs[1].tolist())]
    return inputs[0].reshape(wanted)


_READERS: dict[str, Callable[[ir.Node, list[Array]], Array]] = {
    DEQUANTIZE: _of_dequantize,
    QUANTIZE: _of_quantize,
    "Transpose": _of_transpose,
    "Cast": _of_cast,
    "Reshape": _of_reshape,
    "Identity": lambda node, inputs: inputs[0],
}
