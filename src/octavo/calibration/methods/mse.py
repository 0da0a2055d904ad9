"""The range with the least expected squared error, found by a search over both its ends.

Narrower ranges round more finely and clip more. Each end is tried at geometric distances from zero while the
other is held, then finely around the best. For a symmetric scheme both ends move together. The search reads
coarser bins; at the end what it found is compared with the extremes in all bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.calibration.methods.spread import Spread, within
from octavo.calibration.statistics import HistogramState
from octavo.core.scheme import MSE, Scheme
from octavo.core.stats import Range

F64 = npt.NDArray[np.float64]

_COARSE: F64 = np.geomspace(2.0**-8, 1.0, 65)
_FINE: F64 = np.linspace(float(_COARSE[0] / _COARSE[1]), float(_COARSE[1] / _COARSE[0]), 17)

_COARSE_BINS, _FINE_BINS = 512, 2048  # bins


class Values(Protocol):
    """Values whose error by a range can be told, such as a :class:`Spread`."""

    def coarse(self, bins: int) -> Values:
        """Return the same in at most this many bins."""
        ...

    def error(self, low: npt.ArrayLike, high: npt.ArrayLike, scheme: Scheme) -> F64:
        """Return the error for each of several ranges."""
        ...


def mse(state: HistogramState, method: MSE, scheme: Scheme) -> Range:
    """Return the range inside the extremes that makes quantization err least."""
    if scheme.qtype.is_float or state.low == state.high:
        return Range(state.low, state.high)
    spread = Spread.of(state)
    found = least_squares(spread, state.low, state.high, scheme)
    extremes, narrower = spread.error([state.low, found.low], [state.high, found.high], scheme)
    return found if narrower < extremes else Range(state.low, state.high)


def least_squares(spread: Values, low: float, high: float, scheme: Scheme) -> Range:
    """Return the range inside these extremes that makes quantization of such values err least."""
    search = _Search(spread, scheme, min(low, 0.0), max(high, 0.0))
    if scheme.symmetric:
        top = max(-search.low, search.high)
        for finely in (False, True):
            top = search.best(top, finely, both=True)
        return within(-top, top, low, high)
    for finely in (False, False, True, True):
        search.high = search.best(search.high, finely)
        search.low = search.best(search.low, finely)
    return Range(search.low, search.high)


@dataclass
class _Search:
    """The range as it stands."""

    spread: Values
    scheme: Scheme
    low: float
    high: float

    def __post_init__(self) -> None:
        self._few = self.spread.coarse(_COARSE_BINS)
        self._many = self.spread.coarse(_FINE_BINS)
        self._limits = (self.low, self.high)

    def best(self, end: float, finely: bool, *, both: bool = False) -> float:
        """Return the place of an end of the range with the least error; the widest of equals."""
        if end == 0.0:
            return end
        limit = max(-self._limits[0], self._limits[1]) if both else self._limits[end > 0]
        places = limit * (np.minimum(end / limit * _FINE, 1.0) if finely else _COARSE)
        if both:
            lows, highs = -places, places
        elif end > 0:
            lows, highs = np.full_like(places, self.low), places
        else:
            lows, highs = places, np.full_like(places, self.high)
        spread = self._many if finely else self._few
        errors = spread.error(lows, highs, self.scheme)
        return float(places[len(errors) - 1 - int(np.argmin(errors[::-1]))])
