"""What weight algorithms share: their protocol, and the walk over a matrix in blocks (octavo.core.blocks)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.core.blocks import Array, Blocks, BlockScheme
from octavo.errors import DataError

Solved: TypeAlias = tuple[Array, Array, Array | None]  # integers, scale, zero point
Solve: TypeAlias = Callable[[Array, Array], Solved]

_SLAB = 1 << 16  # elements at work at a time
_PIECE = 1 << 22  # elements read at a time


class Inputs(Enum):
    """What an algorithm needs to know about the inputs of a layer, besides the weights."""

    NONE = "none"
    SQUARES = "squares"  # the sum of x² over all samples, for each input channel
    PRODUCTS = "products"  # the sum of x xᵀ


class Algorithm(Protocol):
    """Chooses integers, scales and zero points of a weight."""

    @property
    def wants(self) -> Inputs:
        """Return the statistics of the layer's inputs that it needs."""
        ...

    @property
    def quick(self) -> bool:
        """Whether integers are computed again rather than kept in memory."""
        ...

    def blocks(self, rows: Array, scheme: BlockScheme, inputs: Array | None = None) -> Blocks:
        """Quantize rows; ``inputs`` are the statistics that it wants."""
        ...


def by_rows(rows: Array, scheme: BlockScheme, solve: Solve) -> Blocks:
    """Solve the matrix some rows at a time; ``solve`` sees ``[size, n, blocks]`` and which values are real.

    The values of a block lie along the first axis, over which numpy reduces fast. A last, shorter block is
    filled with zeros.
    """
    count, columns = rows.shape
    blocks = -(-columns // scheme.size)
    real = (np.arange(blocks * scheme.size) < columns).reshape(blocks, scheme.size).T[:, None]
    integers = np.empty((count, columns), np.uint8)
    scales: list[Array] = []
    zeros: list[Array] = []
    for start, part in _slabs(rows):
        padded = np.zeros((len(part), blocks * scheme.size), np.float32)
        padded[:, :columns] = part
        if not np.isfinite(padded).all():
            raise DataError("A weight holds NaN or infinity; repair the model, or leave this node out.")
        tiles = np.ascontiguousarray(np.moveaxis(padded.reshape(len(part), blocks, scheme.size), -1, 0))
        found, scale, zero = solve(tiles, real)
        integers[start : start + len(part)] = np.moveaxis(found, 0, -1).reshape(len(part), -1)[:, :columns]
        scales.append(scale)
        if zero is not None:
            zeros.append(zero)
    shape = (count, blocks)
    scale = np.concatenate(scales).reshape(shape) if scales else np.empty(shape, rows.dtype)
    return Blocks(integers, scale, np.concatenate(zeros).reshape(shape) if zeros else None, scheme)


def _slabs(rows: Array) -> Iterator[tuple[int, Array]]:
    """Yield a few rows at a time, and where they begin; pieces are larger, as rows may lie across memory."""
    columns = max(rows.shape[1], 1)
    few, many = max(1, _SLAB // columns), max(1, _PIECE // columns)
    for start in range(0, len(rows), many):
        piece = np.ascontiguousarray(rows[start : start + many])
        for inner in range(0, len(piece), few):
            yield start + inner, piece[inner : inner + few]


def nearest(tiles: Array, scale: Array, zero: Array | float, top: int) -> Array:
    """Return the integers, as floats, closest to the values; a scale of zero gives the zero point."""
    steps = tiles * inverse_of(scale)
    steps += np.asarray(zero, np.float32)
    np.rint(steps, out=steps)
    return np.clip(steps, 0, top, out=steps)


def inverse_of(scale: Array) -> Array:
    """Return ``1 / scale`` in float32, and zero of zero."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(scale != 0, np.float32(1) / scale.astype(np.float32), np.float32(0))


def stored(numbers: Array, dtype: npt.DTypeLike) -> Array:
    """Return numbers rounded to the type that they will be stored in, as float32."""
    with np.errstate(over="ignore"):
        return numbers.astype(dtype).astype(np.float32)
