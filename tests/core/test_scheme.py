from __future__ import annotations

import pytest

from octavo.core.granularity import PerBlock
from octavo.core.qtypes import INT4, UINT8
from octavo.core.scheme import Entropy, MinMax, Percentile, Scheme
from octavo.errors import RecipeError


@pytest.mark.parametrize("percent", [50.0, 0.0, 100.001, -1.0, float("nan")])
def test_percentile_lies_between_50_and_100(percent: float) -> None:
    with pytest.raises(RecipeError, match="makes no range"):
        Percentile(percent)


@pytest.mark.parametrize("momentum", [-0.1, 1.5, float("nan")])
def test_momentum_lies_between_0_and_1(momentum: float) -> None:
    with pytest.raises(RecipeError, match="out of range"):
        MinMax(momentum=momentum)


def test_entropy_needs_bins_and_levels() -> None:
    for bins, levels in ((0, 128), (2048, 0)):
        with pytest.raises(RecipeError, match="compares nothing"):
            Entropy(bins, levels)


@pytest.mark.parametrize("width", [-1.0, float("inf"), float("nan")])
def test_smallest_range_is_a_finite_number_from_zero(width: float) -> None:
    with pytest.raises(RecipeError, match="makes no range"):
        Scheme(UINT8, min_range=width)


def test_changed_scheme_is_a_new_value() -> None:
    scheme = Scheme(UINT8)
    assert scheme.but(symmetric=True) == Scheme(UINT8, symmetric=True)
    assert scheme == Scheme(UINT8)
    assert len({scheme, Scheme(UINT8), scheme.but(symmetric=True)}) == 2


def test_scheme_prints_what_differs_from_the_plain_one() -> None:
    assert str(Scheme(UINT8)) == "uint8"
    assert (
        str(Scheme(INT4, PerBlock(32), symmetric=True, reduce_range=True))
        == "int4/block:32 symmetric reduced"
    )
