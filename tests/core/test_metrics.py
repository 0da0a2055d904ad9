from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octavo.core.metrics import cosine, sqnr
from octavo.errors import DataError

arrays = hnp.arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e6, 1e6))


def test_sqnr_of_a_tenth_of_noise_is_20_dB() -> None:
    assert sqnr([10.0, 0.0], [10.0, 1.0]) == pytest.approx(20.0)


def test_sqnr_does_not_see_the_scale_of_both() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([1.1, 1.9, 3.0])
    assert sqnr(x * 1e-20, y * 1e-20) == pytest.approx(sqnr(x, y))


@given(arrays)
def test_a_tensor_is_at_no_distance_from_itself(x: np.ndarray) -> None:
    assert sqnr(x, x) == math.inf
    assert cosine(x, x) == pytest.approx(1.0)


@given(arrays)
def test_cosine_of_the_opposite_is_minus_one(x: np.ndarray) -> None:
    assert cosine(x, -x) == pytest.approx(-1.0 if x.any() else 1.0)


def test_cosine_of_tiny_vectors_does_not_underflow() -> None:
    assert cosine([1e-170, 0], [1e-170, 1e-170]) == pytest.approx(math.sqrt(0.5))


def test_cosine_with_zero_is_zero_unless_both_are() -> None:
    assert cosine([0.0, 0.0], [1.0, 0.0]) == 0.0
    assert cosine([0.0, 0.0], [0.0, 0.0]) == 1.0


def test_sqnr_of_noise_over_silence_is_very_low() -> None:
    assert sqnr([0.0], [1.0]) < -1000


def test_nan_is_not_hidden() -> None:
    assert math.isnan(sqnr([1.0, math.nan], [1.0, 2.0]))


@pytest.mark.parametrize("measure", [sqnr, cosine], ids=lambda f: f.__name__)
def test_tensors_of_different_size_are_not_compared(measure: object) -> None:
    with pytest.raises(DataError, match=r"shape \[2\] and \[1\] can't be compared"):
        measure([1.0, 2.0], [1.0])  # type: ignore[operator]
