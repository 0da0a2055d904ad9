"""A matrix in blocks: what weight algorithms make, and what parameters of a weight may carry.

A weight is looked at as rows ``[N, K]``: a row is what one output is computed from, and blocks run along it.
Integers are unsigned::

    real = scale * (integer - zero_point)

with a scale for each block. No zero point means the middle of the integers. A zero point may be a fraction:
MatMulNBits takes one with 2 and 4 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.core import kernels
from octavo.core.granularity import PerBlock
from octavo.core.qtypes import UINT4, UINT8, QType
from octavo.core.scheme import Scheme
from octavo.errors import RecipeError

Array: TypeAlias = npt.NDArray[Any]

_BYTE = np.dtype(np.uint8)
_UNSIGNED = {
    **{bits: QType(f"uint{bits}", bits, False, UINT8.onnx, _BYTE) for bits in (2, 3, 5, 6, 7)},
    4: UINT4,
    8: UINT8,
}
RECOMPUTED_FROM = 1 << 24  # values; integers of a larger weight are computed again when they are written


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
        if self.bits not in _UNSIGNED:
            raise RecipeError(f"Weights of {self.bits} bits can't be put into blocks; choose 2, 4 or 8.")
        if self.size < 1:
            raise RecipeError(
                f"A block of {self.size} values is not possible; choose a power of two from 16."
            )

    @property
    def top(self) -> int:
        """Return the largest integer."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """Return the integer that represents zero without a zero point."""
        return 1 << (self.bits - 1)

    @property
    def ranges(self) -> Scheme:
        """Return the scheme by which a range becomes scale and zero point."""
        return Scheme(_UNSIGNED[self.bits], PerBlock(self.size, -1), symmetric=self.symmetric)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The outcome: integers ``[N, K]``, scales and zero points ``[N, blocks]``."""

    integers: npt.NDArray[np.uint8]
    scale: Array
    zero_point: Array | None
    scheme: BlockScheme

    def real(self) -> npt.NDArray[np.float64]:
        """Return the values that the integers represent."""
        columns = self.integers.shape[1]
        zero = float(self.scheme.middle) if self.zero_point is None else self._wide(self.zero_point, columns)
        return (self.integers.astype(np.float64) - zero) * self._wide(self.scale, columns)

    def _wide(self, numbers: Array, columns: int) -> Array:
        return np.repeat(numbers.astype(np.float64), self.scheme.size, axis=1)[:, :columns]


class BlockMatrix:
    """A weight in blocks: scales and zero points, and integers that are handed out when they are needed.

    The integers are kept packed; those of a large weight are computed again where that is quick, so that no
    quantized copy of a large model lies in memory.
    """

    def __init__(self, shape: tuple[int, int], compute: Callable[[], Blocks], *, quick: bool) -> None:
        blocks = compute()
        self.shape, self.scheme = shape, blocks.scheme
        self.scale, self.zero_point = blocks.scale, blocks.zero_point
        self._compute: Callable[[], Blocks] | None = None
        self._kept: Array = np.empty(0, np.uint8)
        if quick and shape[0] * shape[1] > RECOMPUTED_FROM:
            self._compute = compute
        else:
            self._kept = kernels.pack_flat(blocks.integers, 4) if self.scheme.bits == 4 else blocks.integers

    @property
    def integers(self) -> Array:
        """Return the integers, unsigned, as rows ``[N, K]``."""
        if self._compute is not None:
            return self._compute().integers
        if self.scheme.bits != 4:
            return self._kept
        count = self.shape[0] * self.shape[1]
        return kernels.unpack(self._kept, 4, count).reshape(self.shape)
