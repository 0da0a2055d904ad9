"""FP4 and NF4: every code is the nearest value of its table."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.algorithms.weights import bnb4
from octavo.errors import DataError, RecipeError


@pytest.mark.parametrize("kind", [bnb4.FP4, bnb4.NF4], ids=["FP4", "NF4"])
@pytest.mark.parametrize(("rows", "columns", "size"), [(4, 32, 16), (3, 33, 32), (1, 1, 64)])
def test_codes_are_the_nearest_values(kind: int, rows: int, columns: int, size: int) -> None:
    w = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    made = bnb4.quantize(w, kind, size)
    flat = w.reshape(-1).astype(np.float64)
    top = [np.abs(flat[i : i + size]).max() for i in range(0, flat.size, size)]
    np.testing.assert_array_equal(made.absmax, np.float32(top))
    scale = np.repeat(top, size)[: flat.size]
    least = np.abs(flat[:, None] / scale[:, None] - bnb4.TABLES[kind].astype(np.float64)).min(axis=1)
    back = bnb4.dequantize(made.packed, made.absmax, kind, size, flat.size)
    np.testing.assert_allclose(np.abs(flat - back) / scale, least, atol=1e-6)


def test_zeros_stay_zeros() -> None:
    for kind in (bnb4.FP4, bnb4.NF4):
        made = bnb4.quantize(np.zeros((2, 16), np.float32), kind, 16)
        assert not bnb4.dequantize(made.packed, made.absmax, kind, 16, 32).any()


def test_wrong_requests_are_refused() -> None:
    w = np.zeros((2, 16), np.float32)
    with pytest.raises(RecipeError, match="FP4"):
        bnb4.quantize(w, 2, 16)
    with pytest.raises(RecipeError, match="power of two"):
        bnb4.quantize(w, 1, 24)
    with pytest.raises(DataError, match="NaN"):
        bnb4.quantize(w + np.nan, 1, 16)
