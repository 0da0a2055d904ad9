"""Histograms for the choice of ranges: several as one, and errors after an activation function.

After a function ``f`` the squared error of a value ``x`` that is rounded in steps of ``s`` is
``(s² / 12) f'(x)²`` on average, and that of one clipped at ``b`` is ``(f(x) - f(b))²``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.calibration.methods.spread import Spread
from octavo.core import affine
from octavo.core.granularity import PerChannel
from octavo.core.scheme import Scheme

F64 = npt.NDArray[np.float64]
Function = Callable[[F64], F64]

_HALF_WIDTH = 1e-3  # of the interval over which a slope is computed


def _sigmoid(x: F64) -> F64:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def _hard_sigmoid(x: F64) -> F64:
    return np.asarray(np.clip(x / 6.0 + 0.5, 0.0, 1.0))


FUNCTIONS: Mapping[str, Function] = {
    "Sigmoid": _sigmoid,
    "Tanh": np.tanh,
    "Silu": lambda x: x * _sigmoid(x),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda x: x * _hard_sigmoid(x),
    "Gelu": lambda x: x * _sigmoid(1.702 * x),  # an approximation, close enough to choose a range by
}


@dataclass(frozen=True)
class ActivationSpread(Spread):
    """A histogram of values whose errors count after an activation function."""

    function: str = "Silu"

    def coarse(self, bins: int) -> Spread:
        """Return the histogram in at most this many bins."""
        found = super().coarse(bins)
        return ActivationSpread(found.edges, found.counts, self.function)

    def error(self, low: npt.ArrayLike, high: npt.ArrayLike, scheme: Scheme) -> F64:
        """Return the expected squared error after the function, for each of several ranges."""
        several = scheme.but(granularity=PerChannel(0))
        params = affine.from_range(np.atleast_1d(low), np.atleast_1d(high), several)
        scale, zero = params.scale.astype(np.float64)[:, None], params.zero_point.astype(np.float64)[:, None]
        qmin, qmax = scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
        f, x = FUNCTIONS[self.function], (self.edges[1:] + self.edges[:-1]) / 2
        slope = (f(x + _HALF_WIDTH) - f(x - _HALF_WIDTH)) / (2 * _HALF_WIDTH)
        clipped = f(np.clip(x, (qmin - zero) * scale, (qmax - zero) * scale)) - f(x)
        squared = clipped**2 + scale**2 / 12.0 * slope**2
        return np.asarray(squared @ self.counts / max(self.counts.sum(), 1e-30))


def after_function(spread: Spread, function: str | None) -> Spread:
    """Return a histogram whose errors count after a function, if there is one."""
    return spread if function is None else ActivationSpread(spread.edges, spread.counts, function)


def joined(spreads: list[Spread]) -> Spread:
    """Return one histogram of the values of several."""
    if len(spreads) == 1:
        return spreads[0]
    edges = np.unique(np.concatenate([one.edges for one in spreads]))
    below = np.zeros(edges.shape)
    for one in spreads:
        below += np.interp(edges, one.edges, np.concatenate([[0.0], np.cumsum(one.counts)]))
    return Spread(edges, np.diff(below))


def mean_square(values: Spread) -> float:
    """Return the mean square of the values, after their function."""
    x = (values.edges[1:] + values.edges[:-1]) / 2
    if isinstance(values, ActivationSpread):
        x = FUNCTIONS[values.function](x)
    return float(values.counts @ x**2 / max(values.counts.sum(), 1e-30))


@dataclass(frozen=True)
class Samples:
    """Samples in groups of like magnitude: how many each has, their mean square and their values."""

    groups: tuple[tuple[int, float, Spread], ...]

    def coarse(self, bins: int) -> Samples:
        """Return the samples with at most this many bins for each group."""
        return Samples(tuple((count, power, values.coarse(bins)) for count, power, values in self.groups))

    def error(self, low: npt.ArrayLike, high: npt.ArrayLike, scheme: Scheme) -> F64:
        """Return the mean over samples of the relative error, for each of several ranges.

        It is at most 1 for each sample, so that samples of nearly zeros do not outweigh the others.
        """
        found = np.zeros(np.atleast_1d(low).shape)
        for count, power, values in self.groups:
            found += count * np.sqrt(np.minimum(values.error(low, high, scheme), power) / power)
        return found / sum(count for count, _, _ in self.groups)
