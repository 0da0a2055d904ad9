"""Distances between a tensor and its quantized twin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError

F64 = npt.NDArray[np.float64]


def sqnr(reference: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Signal to quantization noise ratio in dB: ``20 log10(|x| / |x - y|)``; infinite without noise."""
    x, y = _pair(reference, other)
    noise = float(np.linalg.norm(x - y))
    signal = float(np.linalg.norm(x))
    if noise == 0.0:
        return float("inf")
    return 20.0 * float(np.log10(max(signal, np.finfo(np.float64).tiny) / noise))


def cosine(reference: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Cosine of the angle between both, 1 where both are zero."""
    x, y = _pair(reference, other)
    x_peak, y_peak = (float(np.max(np.abs(v), initial=0.0)) for v in (x, y))
    if x_peak == 0.0 or y_peak == 0.0:
        return float(x_peak == y_peak)
    x, y = x / x_peak, y / y_peak  # so that no square underflows or overflows
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def _pair(reference: npt.ArrayLike, other: npt.ArrayLike) -> tuple[F64, F64]:
    """Return both as flat float64; arrays of unequal size have no distance, and are never broadcast."""
    x, y = np.asarray(reference, np.float64), np.asarray(other, np.float64)
    if x.size != y.size:
        raise DataError(
            f"Tensors of shape {list(x.shape)} and {list(y.shape)} can't be compared; both need as many"
            " values: compare a tensor with its own quantized twin."
        )
    return x.ravel(), y.ravel()
