"""Blocks of GGUF as integers with scales, and as numbers.

With ``d`` and ``m`` for the scale and the offset of a block (of 32 values, in Q6_K of 16)::

    Q4_0   d · (q − 8)      4 bits           Q4_1   d · q + m            4 bits, zero point −m / d
    Q5_0   d · (q − 16)     8 bits           Q4_K   d·s · q − dmin·t     4 bits, zero point dmin·t / (d·s)
    Q8_0   d · q            8 bits           Q6_K   d·s · (q − 32)       8 bits, blocks of 16

These are kept as they are. Zero points of Q4_1 and Q4_K are fractions, which MatMulNBits takes with 4 bits.
A block whose scale is 0 and whose offset is not holds one value: it becomes that value times 1. Of Q5_1 and
Q5_K the offsets are no whole zero points of 8 bits: their numbers are rounded anew.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.core.blocks import Array, Blocks, BlockScheme

_HALF = np.dtype("<f2")


def _half(part: Array) -> Array:
    """Return two bytes of each block as a number."""
    return np.ascontiguousarray(part).view(_HALF).astype(np.float32)


def _nibbles(part: Array) -> Array:
    """Return the low halves of all bytes, then the high ones."""
    return np.concatenate([part & 15, part >> 4], axis=-1)


def _fifth(part: Array) -> Array:
    """Return the fifth bits of 32 values, from four bytes."""
    return np.unpackbits(np.ascontiguousarray(part), axis=-1, bitorder="little") << 4


def _with_offset(q: Array, scale: Array, offset: Array) -> tuple[Array, Array, Array]:
    """Integers, scales and fractional zero points of ``scale · q + offset``."""
    flat = (scale == 0) & (offset != 0)
    q = np.where(flat, np.uint8(1), q)
    zero = np.where(flat | (scale == 0), 0, -offset / np.where(scale == 0, 1, scale))
    return q, np.where(flat, offset, scale), zero.astype(np.float32)


def _q4_0(b: Array) -> tuple[Array, Array, Array | None]:
    return _nibbles(b[:, 2:]), _half(b[:, :2]), None


def _q4_1(b: Array) -> tuple[Array, Array, Array | None]:
    return _with_offset(_nibbles(b[:, 4:]), _half(b[:, :2]), _half(b[:, 2:4]))


def _q5_0(b: Array) -> tuple[Array, Array, Array | None]:
    return (_nibbles(b[:, 6:]) | _fifth(b[:, 2:6])) + np.uint8(128 - 16), _half(b[:, :2]), None


def _q8_0(b: Array) -> tuple[Array, Array, Array | None]:
    return b[:, 2:] ^ np.uint8(128), _half(b[:, :2]), None


def _scales_of_k(b: Array) -> tuple[Array, Array]:
    """Return scales and offsets of the 8 parts of a block of Q4_K or Q5_K, 6 bits each in 12 bytes."""
    low, high, mixed = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = np.concatenate([low & 63, (mixed & 15) | (low >> 6 << 4)], axis=1)
    offset = np.concatenate([high & 63, (mixed >> 4) | (high >> 6 << 4)], axis=1)
    return _half(b[:, :2]) * scale.astype(np.float32), _half(b[:, 2:4]) * offset.astype(np.float32)


def _q4_k(b: Array) -> tuple[Array, Array, Array | None]:
    scale, offset = _scales_of_k(b)
    q = _nibbles(b[:, 16:].reshape(-1, 4, 32)).reshape(-1, 32)
    return _with_offset(q, scale.reshape(-1, 1), -offset.reshape(-1, 1))


def _q6_k(b: Array) -> tuple[Array, Array, Array | None]:
    low, high = b[:, :128].reshape(-1, 2, 64), b[:, 128:192].reshape(-1, 2, 32)
    lows = np.concatenate([low & 15, low >> 4], axis=-1).reshape(-1, 2, 4, 32)
    highs = np.stack([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    q = (lows | highs << 4).astype(np.uint8).reshape(-1, 16) + np.uint8(128 - 32)
    parts = np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.float32)
    return q, (_half(b[:, 208:]) * parts).reshape(-1, 1), None


def _q5_k(b: Array) -> Array:
    scale, offset = _scales_of_k(b)
    q = _nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = np.stack([b[:, 16:48] >> shift & 1 for shift in range(8)], axis=1) << 4
    return np.asarray((q | fifth) * scale[:, :, None] - offset[:, :, None], np.float32)


def _q5_1(b: Array) -> Array:
    q = _nibbles(b[:, 8:]) | _fifth(b[:, 4:8])
    return (q * _half(b[:, :2]) + _half(b[:, 2:4])).astype(np.float32)


Parts = Callable[[Array], tuple[Array, Array, Array | None]]
_KEPT: dict[str, tuple[Parts, int, int]] = {
    "Q4_0": (_q4_0, 4, 32),
    "Q4_1": (_q4_1, 4, 32),
    "Q5_0": (_q5_0, 8, 32),
    "Q8_0": (_q8_0, 8, 32),
    "Q4_K": (_q4_k, 4, 32),
    "Q6_K": (_q6_k, 8, 16),
}
_NUMBERS: dict[str, Callable[[Array], Array]] = {
    "F32": lambda b: np.ascontiguousarray(b).view("<f4"),
    "F16": _half,
    "BF16": lambda b: (np.ascontiguousarray(b).view("<u2").astype(np.uint32) << 16).view(np.float32),
    "Q5_1": _q5_1,
    "Q5_K": _q5_k,
}


def kept(name: str, blocks: Array, rows: int) -> Blocks | None:
    """Return a matrix of so many rows with its own integers and scales; None where they can't be kept."""
    if name not in _KEPT:
        return None
    parts, bits, size = _KEPT[name]
    q, scale, zero = parts(blocks)
    scheme = BlockScheme(bits, size, symmetric=zero is None, whole_zero=zero is None)
    return Blocks(
        q.reshape(rows, -1),
        scale.reshape(rows, -1),
        None if zero is None else zero.reshape(rows, -1),
        scheme,
    )


def numbers(name: str, blocks: Array, shape: tuple[int, ...]) -> Array:
    """Return the values of a tensor as float32."""
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    found = kept(name, blocks, rows)
    whole = found.real().astype(np.float32) if found is not None else _NUMBERS[name](blocks)
    return np.asarray(whole, np.float32).reshape(shape)
