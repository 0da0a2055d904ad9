"""A matrix in blocks: what every weight-only algorithm makes, and the walk over the matrix that all share.

A weight is looked at as rows ``[N, K]``: a row is what one output is computed from, and blocks run along it.
Integers are unsigned::

    real = scale * (integer - zero_point)

with a scale for each block. No zero point means the middle of the integers. A zero point may be a fraction:
MatMulNBits takes one with 2 and 4 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.core.granularity import PerBlock
from octavo.core.qtypes import UINT4, UINT8, QType
from octavo.core.scheme import Scheme
from octavo.errors import DataError, RecipeError

Array: TypeAlias = npt.NDArray[Any]
Solved: TypeAlias = tuple[Array, Array, Array | None]  # integers, scale, zero point
Solve: TypeAlias = Callable[[Array, Array], Solved]

_SLAB = 1 << 16  # elements at work at a time
_PIECE = 1 << 22  # elements read at a time
_BYTE = np.dtype(np.uint8)
UNSIGNED = {
    **{bits: QType(f"uint{bits}", bits, False, UINT8.onnx, _BYTE) for bits in (2, 3, 5, 6, 7)},
    4: UINT4,
    8: UINT8,
}


@dataclass(frozen=True)
class BlockScheme:
    """How a weight is cut up: bits a value, values a block, and whether zero lies in the middle.

    ``whole_zero`` asks for zero points that are integers, which DequantizeLinear and 8 bits need.
    """

    bits: int = 4
    size: int = 32
    symmetric: bool = False
    whole_zero: bool = True

    def __post_init__(self) -> None:
        if self.bits not in UNSIGNED:
            raise RecipeError(f"Weights of {self.bits} bits can't be put into blocks; choose 2, 4 or 8.")
        if self.size < 1:
            raise RecipeError(f"A block of {self.size} values makes no sense; choose a power of two from 16.")

    @property
    def top(self) -> int:
        """The largest integer."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """The integer that stands for zero where there is no zero point."""
        return 1 << (self.bits - 1)

    @property
    def ranges(self) -> Scheme:
        """The scheme by which a range becomes scale and zero point."""
        return Scheme(UNSIGNED[self.bits], PerBlock(self.size, -1), symmetric=self.symmetric)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The outcome: integers ``[N, K]``, scales and zero points ``[N, blocks]``."""

    integers: npt.NDArray[np.uint8]
    scale: Array
    zero_point: Array | None
    scheme: BlockScheme

    def real(self) -> npt.NDArray[np.float64]:
        """The values that the integers stand for."""
        columns = self.integers.shape[1]
        zero = float(self.scheme.middle) if self.zero_point is None else self._wide(self.zero_point, columns)
        return (self.integers.astype(np.float64) - zero) * self._wide(self.scale, columns)

    def _wide(self, numbers: Array, columns: int) -> Array:
        return np.repeat(numbers.astype(np.float64), self.scheme.size, axis=1)[:, :columns]


class Algorithm(Protocol):
    """Chooses integers, scales and zero points of a weight."""

    @property
    def wants_data(self) -> bool:
        """Whether the products of the layer's inputs are needed."""
        ...

    def blocks(self, rows: Array, scheme: BlockScheme, products: Array | None = None) -> Blocks:
        """Quantize rows; ``products`` is the sum of ``x xᵀ`` over the layer's inputs."""
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
    """A few rows at a time, and where they begin; read in larger pieces, since rows may lie across memory."""
    columns = max(rows.shape[1], 1)
    few, many = max(1, _SLAB // columns), max(1, _PIECE // columns)
    for start in range(0, len(rows), many):
        piece = np.ascontiguousarray(rows[start : start + many])
        for inner in range(0, len(piece), few):
            yield start + inner, piece[inner : inner + few]


def nearest(tiles: Array, scale: Array, zero: Array | float, top: int) -> Array:
    """The integers, as floats, closest to the values; a scale of zero gives the zero point."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.where(scale != 0, np.float32(1) / scale.astype(np.float32), np.float32(0))
    steps = tiles * inverse
    steps += np.asarray(zero, np.float32)
    np.rint(steps, out=steps)
    return np.clip(steps, 0, top, out=steps)


def stored(numbers: Array, dtype: npt.DTypeLike) -> Array:
    """Numbers rounded to the type they will be stored in, as float32."""
    with np.errstate(over="ignore"):
        return numbers.astype(dtype).astype(np.float32)
