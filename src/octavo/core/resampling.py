"""Resampling of samples: 95 % intervals of figures that have no closed form.

Samples are drawn with replacement and the 2.5th and 97.5th percentiles of the figure are taken. The seed is
fixed, so an interval is as reproducible as its figure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SEED = 20240229
_SQNR_DRAWS = 400  # resamples for the interval of an SQNR
_LEAST_ENERGY = 1e-300  # keeps the logarithm finite


def draws(samples: int, resamples: int) -> npt.NDArray[np.int64]:
    """Return indices of resampled samples, a row for each resample; the same for the same numbers."""
    return np.random.default_rng(SEED).integers(0, samples, (resamples, samples))


def sqnr_draws(signal: npt.NDArray[np.float64], noise: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the SQNR in dB of the worst column for each resample; rows of energies are samples."""
    drawn = draws(len(noise), _SQNR_DRAWS)
    ratio = np.maximum(signal[drawn].sum(axis=1), _LEAST_ENERGY) / np.maximum(
        noise[drawn].sum(axis=1), _LEAST_ENERGY
    )
    worst: npt.NDArray[np.float64] = 10 * np.log10(ratio).min(axis=1)
    return worst


def sqnr_interval(
    signal: npt.NDArray[np.float64], noise: npt.NDArray[np.float64]
) -> tuple[float, float] | None:
    """Return the interval of the worst column's SQNR; None for one sample, or without any noise."""
    if len(noise) < 2 or not signal.size or not np.isfinite(noise).all() or not noise.any():
        return None
    low, high = np.percentile(sqnr_draws(signal, noise), [2.5, 97.5])
    return float(low), float(high)
