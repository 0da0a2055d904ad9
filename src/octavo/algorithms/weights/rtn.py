"""Round to nearest, in two variants that differ in where the ends of a block's range go.

``Rtn``: the range, widened to hold zero and shrunk by ``ratio``, is spread over all integers
(:mod:`octavo.core.affine`).

``Furthest`` is what ONNX Runtime's own quantizer computes, in float32. Symmetric: the value furthest from
zero falls on the integer furthest from the middle, so the scale has that value's sign, reversed::

    symmetric    scale = -furthest / 2**(bits-1)        asymmetric   scale = (b - a) / (2**bits - 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from octavo.algorithms.weights.blocks import Inputs, Solved, by_rows, inverse_of
from octavo.core import affine
from octavo.core.blocks import Array, Blocks, BlockScheme


@dataclass(frozen=True)
class Rtn:
    """Round to nearest; ``ratio`` below 1 cuts off the ends of each range."""

    ratio: float = 1.0
    wants: ClassVar[Inputs] = Inputs.NONE
    quick: ClassVar[bool] = True

    def blocks(self, rows: Array, scheme: BlockScheme, inputs: Array | None = None) -> Blocks:
        """Quantize rows, block by block."""
        return by_rows(rows, scheme, lambda tiles, _: spread(tiles, scheme, rows.dtype, self.ratio))


@dataclass(frozen=True)
class Furthest:
    """Round to nearest as ONNX Runtime's own quantizer does it."""

    wants: ClassVar[Inputs] = Inputs.NONE
    quick: ClassVar[bool] = True

    def blocks(self, rows: Array, scheme: BlockScheme, inputs: Array | None = None) -> Blocks:
        """Quantize rows, block by block."""
        return by_rows(rows, scheme, lambda tiles, _: furthest(tiles, scheme, rows.dtype))


def spread(tiles: Array, scheme: BlockScheme, dtype: np.dtype[np.generic], ratio: float = 1.0) -> Solved:
    """Round to nearest over the whole range of each block; values of a block lie along the first axis."""
    scale, zero, wide = spread_range(tiles, scheme, dtype, ratio)
    integers = np.clip(np.rint(tiles.astype(np.float64) / wide + zero), 0, scheme.top)
    return integers.astype(np.uint8), scale, None if scheme.symmetric else zero.astype(np.uint8)


def spread_range(
    tiles: Array, scheme: BlockScheme, dtype: np.dtype[np.generic], ratio: float = 1.0
) -> tuple[Array, Array, Array]:
    """Return scale and zero point of the whole range of each block, and the scale before it is stored."""
    low, high = tiles.min(axis=0, initial=0.0), tiles.max(axis=0, initial=0.0)
    low, high = low.astype(np.float64) * ratio, high.astype(np.float64) * ratio
    params = affine.from_range(low, high, scheme.ranges, dtype)
    dead = params.scale == 1  # nothing but zeros, perhaps: the middle stands for them
    zero = params.zero_point.astype(np.float64)
    if scheme.symmetric:
        zero = np.where(dead, float(scheme.middle), zero)
    wide = np.where(dead, 1.0, affine.from_range(low, high, scheme.ranges, np.float64).scale)
    return params.scale, zero, wide


def furthest(tiles: Array, scheme: BlockScheme, dtype: np.dtype[np.generic]) -> Solved:
    """Round to nearest, symmetric ranges from the value furthest from zero; bit for bit as the runtime."""
    scale, zero = furthest_range(tiles, scheme, dtype)
    steps = tiles * inverse_of(scale) + zero + np.float32(0.5)
    integers = np.clip(np.floor(steps), 0, scheme.top)
    return integers.astype(np.uint8), scale, None if scheme.symmetric else zero.astype(np.uint8)


def furthest_range(tiles: Array, scheme: BlockScheme, dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
    """Return scale and zero point of the whole range, or of the value furthest from zero where symmetric."""
    low, high = tiles.min(axis=0, initial=0.0), tiles.max(axis=0, initial=0.0)
    half = np.float32(0.5)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if scheme.symmetric:
            wide = np.where(np.abs(high) > np.abs(low), high, low) / np.float32(-scheme.middle)
            zero = np.full(wide.shape, scheme.middle, np.float32)
        else:
            wide = (high - low) / np.float32(scheme.top)
            zero = np.floor(np.clip(np.where(wide != 0, -low / wide, 0), 0, scheme.top) + half)
        return wide.astype(dtype), zero


def described(rows: Array, scheme: BlockScheme, ratio: float, *, signed: bool) -> tuple[Array, Array, Array]:
    """Integers, scales and zero points in float64, a block a row; signed ones with zero for zero.

    Unsigned zero points are bytes.
    """
    made = Rtn(ratio).blocks(np.asarray(rows).astype(np.float64), scheme)
    zero = made.zero_point
    if zero is None:
        zero = np.full(made.scale.shape, 0 if signed else scheme.middle, np.uint8)
    move = signed and scheme.symmetric
    integers = centred(made.integers, scheme) if move else made.integers
    return integers.astype(np.float64), made.scale, zero.astype(np.float64) if signed else zero


def centred(integers: Array, scheme: BlockScheme) -> Array:
    """Return unsigned integers as signed ones, with zero in the place of the middle."""
    return (integers.astype(np.int16) - scheme.middle).astype(np.int8)


def relative_magnitude(weight: Array, size: int) -> Array:
    """Return the mean over the first axis of each value's magnitude as a part of the largest in its block."""
    tiles = np.abs(weight.reshape(-1, size) if size > 0 else weight)
    top = tiles.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(top > 0, tiles / top, 0).astype(weight.dtype)
    return np.asarray(part.reshape(weight.shape).mean(axis=0))
