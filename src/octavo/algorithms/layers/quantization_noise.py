"""The expected error of a quantized layer: that of its weights, and the noise of its rounded input.

With weights ``w`` stored as ``ŵ``, inputs rounded in steps of ``s`` and their :mod:`.input_moments`::

    error = E[((ŵ - w) · x)²] + s²/12 · |ŵ|²        for each output
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.algorithms.layers.input_moments import InputMoments
from octavo.algorithms.layers.layer import F64
from octavo.core import affine
from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.recipe import DynamicScheme, Recipe
from octavo.core.scheme import Scheme

Rows = npt.NDArray[np.floating]  # float32 where a search computes the error many times


def rounded(rows: Rows, scheme: Scheme) -> Rows:
    """Return rows ``[group, output, product]`` after a round trip through the weights' type."""
    if scheme.qtype.is_float:
        return rows
    groups, outputs, products = rows.shape
    flat = rows.reshape(groups * outputs, products)
    match scheme.granularity:
        case PerTensor():
            low, high = np.asarray(flat.min(initial=0)), np.asarray(flat.max(initial=0))
            grain: PerTensor | PerChannel = PerTensor()
        case PerChannel():
            low, high = flat.min(axis=1, initial=0), flat.max(axis=1, initial=0)
            grain = PerChannel(0)
        case PerBlock(size):
            short = -products % size
            blocks = np.pad(flat, [(0, 0), (0, short)], mode="edge").reshape(-1, size)
            padded = rounded(blocks[None], scheme.but(granularity=PerChannel(0)))
            return padded.reshape(groups * outputs, -1)[:, :products].reshape(rows.shape)
    params = affine.from_range(low, high, scheme.but(granularity=grain))
    scale, zero = params.scale.astype(rows.dtype), params.zero_point.astype(rows.dtype)
    if isinstance(grain, PerChannel):
        scale, zero = scale[:, None], zero[:, None]
    bottom, top = scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
    found = flat / scale
    np.rint(found, out=found)
    np.maximum(found, bottom - zero, out=found)  # np.clip is slow with bounds of each row
    np.minimum(found, top - zero, out=found)
    found *= scale
    return found.reshape(rows.shape)


def step_of(low: float, high: float, recipe: Recipe) -> float:
    """Return the scale of an activation with this range; 0 where it stays in float."""
    match recipe.activations:
        case Scheme() as scheme if not scheme.qtype.is_float:
            found = affine.from_range(low, high, scheme.but(min_range=None))
        case DynamicScheme(qtype):
            found = affine.from_range(low, high, Scheme(qtype))
        case _:
            return 0.0
    return float(found.scale)


def layer_error(rows: Rows, inputs: InputMoments, step: float, scheme: Scheme) -> F64:
    """Return the mean squared error of each output ``[group, output]``."""
    stored = rounded(rows, scheme)
    energy = np.einsum("gok,gok->go", stored, stored)
    return np.asarray(inputs.error(stored - rows) + step**2 / 12.0 * energy)


def output_variance(rows: Rows, inputs: InputMoments) -> F64:
    """Return the variance of each output ``[group, output]``, which errors are compared with."""
    gram = inputs.gram
    if gram is not None:
        mean = inputs.mean.astype(gram.dtype)
        gram = gram - mean[:, :, None] * mean[:, None, :]
    return InputMoments(inputs.count, np.zeros_like(inputs.mean), inputs.variance, gram).error(rows)


def relative(error: F64, variance: F64) -> float:
    """Return an error as a share of the variance."""
    whole = float(variance.sum())
    return float(error.sum()) / whole if whole > 0 else 0.0
