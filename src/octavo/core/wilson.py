"""Wilson's interval for a share that was counted in ``n`` samples.

    centre = (p + z²/2n) / (1 + z²/n)        half width = z √(p (1 − p)/n + z²/4n²) / (1 + z²/n)

It stays within 0 … 1 and is honest for few samples, where ``p ± z √(p (1 − p)/n)`` is not.
"""

from __future__ import annotations

import math

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
