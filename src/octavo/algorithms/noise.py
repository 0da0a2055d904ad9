"""What 8 bits do to a layer, in numbers: the error of its weights, and the noise of its rounded input.

With weights ``w`` stored as ``ŵ``, inputs rounded in steps of ``s`` and their statistics (:mod:`.inputs`)::

    error = E[((ŵ - w) · x)²] + s²/12 · |ŵ|²        for each output
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.algorithms.inputs import Inputs
from octavo.core import affine
from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.recipe import DynamicScheme, Recipe
from octavo.core.scheme import Scheme

F64 = npt.NDArray[np.float64]
Rows = npt.NDArray[np.floating]  # as narrow as the weights are where they are gone through many times


def rounded(rows: Rows, scheme: Scheme) -> Rows:
    """Rows ``[group, output, product]`` after a round trip through the weights' type."""
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
    """The distance of two neighbouring values of an activation with this range; 0 where it stays float."""
    match recipe.activations:
        case Scheme() as scheme if not scheme.qtype.is_float:
            found = affine.from_range(low, high, scheme.but(min_range=None))
        case DynamicScheme(qtype):
            found = affine.from_range(low, high, Scheme(qtype))
        case _:
            return 0.0
    return float(found.scale)


def layer_error(rows: Rows, inputs: Inputs, step: float, scheme: Scheme) -> F64:
    """The mean squared error of each output ``[group, output]``."""
    stored = rounded(rows, scheme)
    energy = np.einsum("gok,gok->go", stored, stored)
    return np.asarray(inputs.error(stored - rows) + step**2 / 12.0 * energy)


def power(rows: Rows, inputs: Inputs) -> F64:
    """How much each output varies ``[group, output]``, which errors are compared with."""
    gram = inputs.gram
    if gram is not None:
        mean = inputs.mean.astype(gram.dtype)
        gram = gram - mean[:, :, None] * mean[:, None, :]
    return Inputs(inputs.count, np.zeros_like(inputs.mean), inputs.variance, gram).error(rows)


def share(error: F64, of: F64) -> float:
    """An error as a share of what it is compared with."""
    whole = float(of.sum())
    return float(error.sum()) / whole if whole > 0 else 0.0
