"""FP4 and NF4 of bitsandbytes: 16 unevenly spaced values, scaled by the largest magnitude of a block.

NF4's values are quantiles of the normal distribution, FP4's are a sign, two bits of exponent and one of
fraction, in an order of their own. Blocks run over the whole matrix, row after row, and may cross rows. Two
codes lie in a byte, the first in the high half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.core.blocks import Array
from octavo.errors import DataError, RecipeError

FP4, NF4 = 0, 1

_HALF_FP4 = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
_FP4_EDGES = (0.00260417, 0.0859375, 0.20833333, 0.29166667, 0.4166667, 0.583333, 0.8333333)  # halfway
TABLES = {
    FP4: np.array([*_HALF_FP4, *(-v for v in _HALF_FP4)], np.float32),
    NF4: np.array(_NF4, np.float32),
}


@dataclass(frozen=True, eq=False)
class Bnb4:
    """Codes, two a byte, and the largest magnitude of each block."""

    packed: npt.NDArray[np.uint8]
    absmax: Array


def check(kind: int, size: int) -> None:
    """Refuse a type that there is not, and blocks that the kernel does not take."""
    if kind not in TABLES:
        raise RecipeError(f"{kind!r} is not a 4-bit float type; choose 0 for FP4 or 1 for NF4.")
    if size < 16 or size & (size - 1):
        raise RecipeError(
            f"A block of {size} values is not taken by MatMulBnb4; choose a power of two from 16."
        )


def quantize(rows: Array, kind: int, size: int) -> Bnb4:
    """Quantize rows ``[N, K]`` in blocks of ``size`` consecutive values."""
    check(kind, size)
    flat = np.ascontiguousarray(rows).reshape(-1)
    blocks = -(-flat.size // size)
    padded = np.zeros(blocks * size, np.float32)
    padded[: flat.size] = flat
    tiles = padded.reshape(blocks, size)
    if not np.isfinite(tiles).all():
        raise DataError("A weight holds NaN or infinity; repair the model, or leave this node out.")
    top = np.abs(tiles).max(axis=1, initial=0.0)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(top != 0, np.float32(1) / top, np.float32(0))
    codes = _codes(tiles * inverse[:, None], kind).reshape(-1)[: flat.size + flat.size % 2]
    high, low = codes[0::2].astype(np.uint8), codes[1::2].astype(np.uint8)
    return Bnb4(np.asarray((high << 4) | low, np.uint8), top.astype(rows.dtype))


def dequantize(packed: npt.NDArray[np.uint8], absmax: Array, kind: int, size: int, count: int) -> Array:
    """Return the values that the codes represent."""
    codes = np.stack([packed >> 4, packed & 0x0F], axis=-1).reshape(-1)[:count]
    return TABLES[kind][codes] * np.repeat(absmax.astype(np.float32), size)[:count]


def _codes(x: Array, kind: int) -> npt.NDArray[np.uint8]:
    """Return the code of the nearest value; FP4 has a sign of its own, also for zero."""
    if kind == NF4:
        table = TABLES[NF4]
        return np.searchsorted((table[1:] + table[:-1]) / 2, x, side="left").astype(np.uint8)
    rank = np.searchsorted(np.array(_FP4_EDGES, np.float32), np.abs(x), side="left")
    order = np.argsort(TABLES[FP4][:8]).astype(np.uint8)
    return np.asarray(order[rank] | np.where(x < 0, 8, 0).astype(np.uint8), np.uint8)
