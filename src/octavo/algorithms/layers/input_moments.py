"""Moments of what a layer reads, from one pass over the data: count, mean, mean square, Gram matrix.

The sums are computed inside the runtime (:mod:`.probes`), so that no activation leaves it. With the ``n``
vectors ``x`` that one output sums over::

    mean = Σ x / n        square = Σ x² / n        gram = Σ x xᵀ / n

An error ``Δ`` of the weights then gives the output the mean squared error ``Δ gram Δᵀ``. Where the Gram
matrix is not known, products are taken as independent: ``(Δ mean)² + Δ² (square - mean²)``. Gram matrices are
large: they stay in float32, as the runtime computed them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers.layer import F64, Layer
from octavo.algorithms.layers.statistics_requests import PREFIX, moment_names
from octavo.calibration.statistics import ChannelState, CombinedState, SumState
from octavo.core.stats import State

Gram = npt.NDArray[np.floating]


@dataclass(frozen=True)
class InputMoments:
    """Moments of what a layer reads, as ``[group, product]`` and ``[group, product, product]``."""

    count: float
    mean: F64
    square: F64
    gram: Gram | None = None

    @property
    def variance(self) -> F64:
        """Return the variance of each product."""
        return np.maximum(self.square - self.mean**2, 0.0)

    def error(self, delta: npt.NDArray[np.floating]) -> F64:
        """Return the mean square of ``delta · x`` for rows ``[group, output, product]``."""
        if self.gram is not None:
            delta = delta.astype(self.gram.dtype, copy=False)
            found = ((delta @ self.gram) * delta).sum(axis=2, dtype=np.float64)
            return np.asarray(np.maximum(found, 0.0))
        mean, variance = (one.astype(delta.dtype)[:, :, None] for one in (self.mean, self.variance))
        return np.asarray((delta @ mean)[:, :, 0] ** 2 + (delta**2 @ variance)[:, :, 0], np.float64)

    def scaled(self, factor: F64) -> InputMoments:
        """Return the moments of ``x · factor``, with a factor for each product ``[group, 1, product]``."""
        f = factor[:, 0, :]
        gram: Gram | None = None
        if self.gram is not None:
            narrow = f.astype(self.gram.dtype)
            gram = self.gram * narrow[:, :, None] * narrow[:, None, :]
        return InputMoments(self.count, self.mean * f, self.square * f * f, gram)


def input_moments(layer: Layer, stats: Mapping[str, object], *, sampled: bool = False) -> InputMoments | None:
    """Return the moments of what a layer reads, over all or some samples; None where it was not observed."""
    names = moment_names(layer, sampled=sampled)
    parts = ("size", "sum", "square", "gram")
    size, summed, square, gram = (probe_sum(stats, names[part]) for part in parts)
    if size is None or summed is None:
        return None
    products = summed.size
    count = float(size) / products
    if count <= 0:
        return None
    if square is None and gram is not None:
        square = np.diagonal(gram, axis1=1, axis2=2)
    if square is None:
        return None
    shape = (layer.groups, -1)
    return InputMoments(
        count,
        summed.reshape(shape) / count,
        square.reshape(shape) / count,
        None if gram is None else (gram / count).astype(np.float32),
    )


def scaled_moments(layer: Layer, stats: Mapping[str, object], factors: F64) -> dict[str, State]:
    """Return the moments that a layer of one group would have read with its channels scaled."""
    powers = {"sum": factors, "square": factors**2, "gram": factors[:, None] * factors}
    found: dict[str, State] = {}
    for part, factor in powers.items():
        name = moment_names(layer)[part]
        total, state = probe_sum(stats, name), stats.get(name)
        if total is not None and isinstance(state, CombinedState):
            scaled = SumState()
            scaled.update(total * factor.reshape(total.shape))
            found[name] = CombinedState(state.first, {**state.parts, SumState.kind: scaled})
    return found


def channel_extremes(value: ir.Value, stats: Mapping[str, object]) -> tuple[F64, F64] | None:
    """Return minimum and maximum of each channel of a tensor; None where it was not observed."""
    shares = channel_shares(value, stats)
    return None if shares is None else (shares[0].min(axis=0), shares[1].max(axis=0))


def channel_shares(value: ir.Value, stats: Mapping[str, object]) -> tuple[F64, F64] | None:
    """Return minima and maxima of the channels in each share of the samples that has any."""
    states = [stats.get(f"{PREFIX}{value.name}/{part}") for part in ("low", "high")]
    found = [state.parts.get(ChannelState.kind) for state in states if isinstance(state, CombinedState)]
    low, high = found if len(found) == 2 else (None, None)
    if not isinstance(low, ChannelState) or not isinstance(high, ChannelState) or not low.lows.size:
        return None
    there = np.isfinite(low.lows).all(axis=1) & np.isfinite(high.highs).all(axis=1)
    if not there.any() or not all(np.isfinite(part).all() for part in (low.low, high.high)):
        return None
    return low.lows[there], high.highs[there]


def probe_sum(stats: Mapping[str, object], name: str) -> F64 | None:
    """Return the sum over all samples that a probe gave; None where there is none."""
    state = stats.get(name)
    observed = state.parts.get(SumState.kind) if isinstance(state, CombinedState) else None
    return observed.total if isinstance(observed, SumState) and observed.count else None
