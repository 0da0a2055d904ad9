"""What layers read, as sums that one pass over the data gives: count, mean, squares, products.

They are computed inside the runtime (:mod:`.probes`), so that no activation leaves it. With the ``n`` vectors
``x`` that one output sums over::

    mean = Σ x / n        square = Σ x² / n        gram = Σ x xᵀ / n

An error ``Δ`` of the weights then makes the mean squared error ``Δ gram Δᵀ`` of the output. Where the Gram
matrix is not known, products count as independent: ``(Δ mean)² + Δ² (square - mean²)``. Gram matrices are
large: they are kept in float32, as the runtime has computed them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers import Layer
from octavo.algorithms.wishes import PREFIX, names_of
from octavo.calibration.observers import ChannelState, ManyState, TotalState

F64 = npt.NDArray[np.float64]
Gram = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Inputs:
    """What a layer reads, on average; arrays are ``[group, product]`` and ``[group, product, product]``."""

    count: float
    mean: F64
    square: F64
    gram: Gram | None = None

    @property
    def variance(self) -> F64:
        """Of each product."""
        return np.maximum(self.square - self.mean**2, 0.0)

    def error(self, delta: npt.NDArray[np.floating]) -> F64:
        """The mean squared value of ``delta · x`` for rows ``[group, output, product]``."""
        if self.gram is not None:
            delta = delta.astype(self.gram.dtype, copy=False)
            found = ((delta @ self.gram) * delta).sum(axis=2, dtype=np.float64)
            return np.asarray(np.maximum(found, 0.0))
        mean, variance = (one.astype(delta.dtype)[:, :, None] for one in (self.mean, self.variance))
        return np.asarray((delta @ mean)[:, :, 0] ** 2 + (delta**2 @ variance)[:, :, 0], np.float64)

    def scaled(self, factor: F64) -> Inputs:
        """The same for ``x · factor``, with a factor for each product ``[group, 1, product]``."""
        f = factor[:, 0, :]
        gram: Gram | None = None
        if self.gram is not None:
            narrow = f.astype(self.gram.dtype)
            gram = self.gram * narrow[:, :, None] * narrow[:, None, :]
        return Inputs(self.count, self.mean * f, self.square * f * f, gram)


def inputs_of(layer: Layer, stats: Mapping[str, object], *, apart: bool = False) -> Inputs | None:
    """What a layer reads, from statistics; None where it was not observed. ``apart``: in some samples."""
    names = names_of(layer, apart=apart)
    size, summed, square, gram = (total(stats, names[part]) for part in ("size", "sum", "square", "gram"))
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
    return Inputs(
        count,
        summed.reshape(shape) / count,
        square.reshape(shape) / count,
        None if gram is None else (gram / count).astype(np.float32),
    )


def channels_of(value: ir.Value, stats: Mapping[str, object]) -> tuple[F64, F64] | None:
    """Minimum and maximum of each channel of a tensor, from statistics."""
    found = []
    for part in ("low", "high"):
        state = stats.get(f"{PREFIX}{value.name}/{part}")
        observed = state.parts.get(ChannelState.kind) if isinstance(state, ManyState) else None
        if not isinstance(observed, ChannelState) or not observed.low.size:
            return None
        found.append(observed.low if part == "low" else observed.high)
    return (found[0], found[1]) if all(np.isfinite(f).all() for f in found) else None


def total(stats: Mapping[str, object], name: str) -> F64 | None:
    """The sum over all samples that a probe noted; None where there is none."""
    state = stats.get(name)
    observed = state.parts.get(TotalState.kind) if isinstance(state, ManyState) else None
    return observed.total if isinstance(observed, TotalState) and observed.count else None
