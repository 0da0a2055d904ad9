"""The cache of keys and values that a decoder reads: its inputs, and one that holds nothing yet."""

from __future__ import annotations

import numpy as np

from octavo.data.source import Array
from octavo.model.runtime.session import InputSpec


def is_past(spec: InputSpec) -> bool:
    """Whether an input is a part of the cache, such as ``past_key_values.0.key``."""
    return "past" in spec.name.lower() and len(spec.shape) > 2 and spec.dtype.kind in "fV"


def empty_past(spec: InputSpec, batch: int) -> Array:
    """Return the cache before the first token: of length 0 along the axis that the model leaves open."""
    sizes = [dim if isinstance(dim, int) and dim > 0 else 0 for dim in spec.shape[1:]]
    return np.zeros((batch, *sizes), spec.dtype)
