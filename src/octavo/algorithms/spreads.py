"""Histograms for the choice of ranges: several as one, and errors behind an activation function.

Behind a function ``f`` a value ``x`` that is rounded in steps of ``s`` errs by ``(s² / 12) f'(x)²`` on
average, and one that is cut off at ``b`` by ``(f(x) - f(b))²``.
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

_SMALL = 1e-3  # half of the distance over which a slope is taken


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
    "Gelu": lambda x: x * _sigmoid(1.702 * x),  # near enough to choose a range by
}


@dataclass(frozen=True)
class Answering(Spread):
    """Values that are seen through a function."""

    function: str = "Silu"

    def coarse(self, bins: int) -> Spread:
        """The same in at most this many bins."""
        found = super().coarse(bins)
        return Answering(found.edges, found.counts, self.function)

    def error(self, low: npt.ArrayLike, high: npt.ArrayLike, scheme: Scheme) -> F64:
        """The expected squared error behind the function, for each of several ranges."""
        several = scheme.but(granularity=PerChannel(0))
        params = affine.from_range(np.atleast_1d(low), np.atleast_1d(high), several)
        scale, zero = params.scale.astype(np.float64)[:, None], params.zero_point.astype(np.float64)[:, None]
        qmin, qmax = scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
        f, x = FUNCTIONS[self.function], (self.edges[1:] + self.edges[:-1]) / 2
        slope = (f(x + _SMALL) - f(x - _SMALL)) / (2 * _SMALL)
        cut = f(np.clip(x, (qmin - zero) * scale, (qmax - zero) * scale)) - f(x)
        return np.asarray((cut**2 + scale**2 / 12.0 * slope**2) @ self.counts / max(self.counts.sum(), 1e-30))


def answering(spread: Spread, function: str | None) -> Spread:
    """A spread as it is seen through a function, if there is one."""
    return spread if function is None else Answering(spread.edges, spread.counts, function)


def joined(spreads: list[Spread]) -> Spread:
    """One spread for the values of several."""
    if len(spreads) == 1:
        return spreads[0]
    edges = np.unique(np.concatenate([one.edges for one in spreads]))
    below = np.zeros(edges.shape)
    for one in spreads:
        below += np.interp(edges, one.edges, np.concatenate([[0.0], np.cumsum(one.counts)]))
    return Spread(edges, np.diff(below))


def power(values: Spread) -> float:
    """The mean square of the values, behind their function."""
    x = (values.edges[1:] + values.edges[:-1]) / 2
    if isinstance(values, Answering):
        x = FUNCTIONS[values.function](x)
    return float(values.counts @ x**2 / max(values.counts.sum(), 1e-30))


@dataclass(frozen=True)
class Samples:
    """Samples in groups of like loudness: how many each has, their power and their values."""

    groups: tuple[tuple[int, float, Spread], ...]

    def coarse(self, bins: int) -> Samples:
        """The same in at most this many bins for each group."""
        return Samples(tuple((count, power, values.coarse(bins)) for count, power, values in self.groups))

    def error(self, low: npt.ArrayLike, high: npt.ArrayLike, scheme: Scheme) -> F64:
        """The error of a sample as a share of its own signal, on average, for each of several ranges.

        More than all of it can't be lost: nearly silent samples do not outweigh the others.
        """
        found = np.zeros(np.atleast_1d(low).shape)
        for count, power, values in self.groups:
            found += count * np.sqrt(np.minimum(values.error(low, high, scheme), power) / power)
        return found / sum(count for count, _, _ in self.groups)
