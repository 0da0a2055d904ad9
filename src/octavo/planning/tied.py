"""Tied weights: a table that is looked up and the product that makes logits often hold the same values.

An exporter may write them as one initializer, read as it is and transposed, or store them twice. Where both
are quantized alike, one set of integers serves both: MatMulNBits reads ``[N, blocks, bytes]``, and the lookup
reads the same bytes as ``[N, bytes]``.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core.blocks import Array
from octavo.core.granularity import PerBlock
from octavo.core.plan import Constant, Entry
from octavo.model.graph import query
from octavo.planning.weights import weight_of

_ROWS = 1024  # of two tables that are compared at a time


def is_tied(table: ir.Value, weight: ir.Value, transposed: bool) -> bool:
    """Whether a table ``[N, K]`` holds what a product reads as its weight, ``[N, K]`` if transposed."""
    source, origin = weight_of(weight), weight_of(table)
    if source is None or origin is None or origin[1] is not None:
        return False
    if source[1] is not None:
        transposed = not transposed
    if source[0] is origin[0]:
        return transposed
    one, other = query.constant(origin[0]), query.constant(source[0])
    if one is None or other is None or one.dtype != other.dtype:
        return False
    dims = tuple(other.shape.numpy()) if transposed else tuple(other.shape.numpy())[::-1]
    if tuple(one.shape.numpy()) != dims or len(dims) != 2:
        return False
    rows = np.asarray(other.numpy()) if transposed else np.asarray(other.numpy()).T
    return _are_equal(np.asarray(one.numpy()), rows)


def _are_equal(one: Array, other: Array) -> bool:
    """Compare two tables; a few rows from all over tell most of them apart at once."""
    some = np.linspace(0, len(one) - 1, min(len(one), 8)).astype(int)
    if not np.array_equal(one[some], other[some]):
        return False
    return all(
        np.array_equal(one[first : first + _ROWS], other[first : first + _ROWS])
        for first in range(0, len(one), _ROWS)
    )


def are_alike(table: Entry, weight: Entry, width: int) -> bool:
    """Whether two entries ask for the same integers: bits, zero points, and whole blocks along each row."""
    if not isinstance(table, Constant) or not isinstance(weight, Constant):
        return False
    one, other = table.scheme, weight.scheme
    if not isinstance(one.granularity, PerBlock) or not isinstance(other.granularity, PerBlock):
        return False
    size = one.granularity.size
    return (
        one.qtype == other.qtype
        and one.symmetric == other.symmetric
        and size == other.granularity.size
        and width % size == 0
    )
