"""95 % intervals: Wilson's for shares that were counted, resampling for figures without a closed form."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

# ---- Wilson's interval for a share that was counted in ``n`` samples
#
#     centre = (p + z²/2n) / (1 + z²/n)        half width = z √(p (1 − p)/n + z²/4n²) / (1 + z²/n)
#
# It stays within 0 … 1 and is honest for few samples, where ``p ± z √(p (1 − p)/n)`` is not.

Z_95 = 1.959963984540054  # the normal quantile of a two-sided 95 % interval


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the lower and the upper end of the 95 % interval of a share counted in ``count`` samples."""
    if count < 1:
        return 0.0, 1.0
    shrink = 1 + Z_95 * Z_95 / count
    centre = (share + Z_95 * Z_95 / (2 * count)) / shrink
    half = wilson_half_width(share, count)
    return max(0.0, centre - half), min(1.0, centre + half)


def wilson_half_width(share: float, count: int) -> float:
    """Return the ± of a share counted in ``count`` samples: half the width of its 95 % interval."""
    if count < 1:
        return 0.5
    spread = share * (1 - share) / count + Z_95 * Z_95 / (4 * count * count)
    return Z_95 * math.sqrt(spread) / (1 + Z_95 * Z_95 / count)


# ---- Resampling of samples: 95 % intervals of figures that have no closed form
#
# Samples are drawn with replacement and the 2.5th and 97.5th percentiles of the figure are taken. The seed is
# fixed, so an interval is as reproducible as its figure.

SEED = 20240229
_SQNR_DRAWS = 400  # resamples for the interval of an SQNR
_LEAST_ENERGY = 1e-300  # keeps the logarithm finite


def draws(samples: int, resamples: int) -> npt.NDArray[np.int64]:
    """Return indices of resampled samples, a row for each resample; the same for the same numbers."""
    return np.random.default_rng(SEED).integers(0, samples, (resamples, samples))


def sqnr_draws(signal: npt.NDArray[np.float64], noise: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the SQNR in dB of the worst column for each resample; rows of energies are samples."""
    drawn = draws(len(noise), _SQNR_DRAWS)
    signals, noises = signal[drawn].sum(axis=1), noise[drawn].sum(axis=1)
    ratio = np.maximum(signals, _LEAST_ENERGY) / np.maximum(noises, _LEAST_ENERGY)
    ratio[noises == 0] = 1 / _LEAST_ENERGY  # exact, whatever the signal
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
