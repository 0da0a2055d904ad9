from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octavo.core import kernels
from octavo.core.affine import (
    bias_params,
    float8_std,
    from_range,
    from_std,
    least_weight_scale,
    narrowed,
    widened,
)
from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.qparams import QParams
from octavo.core.qtypes import FLOAT8E4M3FN, INT4, INT8, INT16, INT32, QTYPES, UINT4, UINT8, UINT16, QType
from octavo.core.scheme import Scheme
from octavo.errors import DataError, RecipeError

INTEGERS = [k for k in QTYPES.values() if not k.is_float]
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
TINY = float(np.finfo(np.float32).tiny)

kinds = st.sampled_from(INTEGERS)
ends = st.floats(-1e30, 1e30)
schemes = st.builds(
    Scheme,
    kinds,
    symmetric=st.booleans(),
    reduce_range=st.booleans(),
    restricted=st.booleans(),
    min_range=st.none() | st.sampled_from([0.0, 1e-4, 1.0]),
)


def number(array: np.ndarray) -> float:
    return float(array.astype(np.float64))


# One range, by hand


def test_scale_of_an_asymmetric_range_is_its_width_over_the_steps() -> None:
    params = from_range(-1.0, 3.0, Scheme(UINT8))
    assert params.scale == np.float32(4.0 / 255)
    assert params.zero_point == round(255 / 4)
    assert params.scale.dtype == np.float32
    assert params.zero_point.dtype == np.uint8
    assert params.scale.shape == params.zero_point.shape == ()


@pytest.mark.parametrize(
    ("low", "high", "zero"), [(2.0, 5.0, 0), (-5.0, -2.0, 255)], ids=["above zero", "below zero"]
)
def test_range_is_widened_to_hold_zero(low: float, high: float, zero: int) -> None:
    params = from_range(low, high, Scheme(UINT8))
    assert params.scale == np.float32(5.0 / 255)
    assert params.zero_point == zero


def test_signed_asymmetric_range_starts_at_qmin() -> None:
    assert from_range(0.0, 1.0, Scheme(INT8)).zero_point == -128
    assert from_range(-1.0, 0.0, Scheme(INT8)).zero_point == 127


@pytest.mark.parametrize(
    ("kind", "steps", "zero"),
    [
        (INT8, 254, 0),
        (UINT8, 255, 128),
        (INT16, 65534, 0),
        (UINT16, 65535, 32768),
        (INT4, 15, 0),
        (UINT4, 15, 8),
    ],
    ids=str,
)
def test_symmetric_range_has_its_zero_point_in_the_middle(kind: QType, steps: int, zero: int) -> None:
    params = from_range(-1.0, 3.0, Scheme(kind, symmetric=True))
    assert params.scale == np.float32(6.0 / steps)
    assert int(params.zero_point) == zero


@pytest.mark.parametrize(
    ("kind", "steps", "zero", "middle"),
    [
        (INT8, 128, -64, 0),
        (UINT8, 127, 0, 64),
        (INT16, 32768, -16384, 0),
        (UINT16, 32767, 0, 16384),
        (INT4, 7, -4, 0),
        (UINT4, 7, 0, 4),
    ],
    ids=str,
)
def test_reduced_range_has_fewer_steps(kind: QType, steps: int, zero: int, middle: int) -> None:
    plain = from_range(0.0, 1.0, Scheme(kind, reduce_range=True))
    assert (plain.scale, int(plain.zero_point)) == (np.float32(1.0 / steps), zero)
    centred = from_range(0.0, 1.0, Scheme(kind, reduce_range=True, symmetric=True))
    assert (centred.scale, int(centred.zero_point)) == (np.float32(2.0 / steps), middle)


def test_smallest_range_widens_upwards_before_symmetry() -> None:
    assert from_range(0.0, 0.0, Scheme(UINT8, min_range=1e-4)).scale == np.float32(1e-4 / 255)
    assert from_range(-1e-5, 1e-5, Scheme(UINT8, min_range=1e-4)).scale == np.float32(1e-4 / 255)
    both = from_range(0.0, 0.0, Scheme(UINT8, min_range=1e-4, symmetric=True))
    assert both.scale == np.float32(2e-4 / 255)
    assert from_range(-1.0, 1.0, Scheme(UINT8, min_range=1e-4)).scale == np.float32(2 / 255)


def test_restricted_zero_point_is_at_qmin_where_nothing_is_negative() -> None:
    params = from_range(0.5, 4.0, Scheme(UINT8, restricted=True))
    assert (params.scale, params.zero_point) == (np.float32(4.0 / 255), 0)


@pytest.mark.parametrize(("low", "high", "scale"), [(-4.0, 1.0, 4 / 128), (-1.0, 4.0, 4 / 127)])
def test_restricted_zero_point_is_the_middle_where_something_is_negative(
    low: float, high: float, scale: float
) -> None:
    params = from_range(low, high, Scheme(UINT8, restricted=True))
    assert (params.scale, params.zero_point) == (np.float32(scale), 128)


def test_scale_is_computed_in_float64_and_cast_once() -> None:
    low, high = np.float32(-0.1), np.float32(0.7)
    exact = (float(high) - float(low)) / 255
    assert from_range(low, high, Scheme(UINT8)).scale == np.float32(exact)
    assert from_range(low, high, Scheme(UINT8), np.float64).scale == exact


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_parameters_have_the_types_of_tensor_and_scheme(dtype: type, kind: QType) -> None:
    params = from_range(-1.0, 2.0, Scheme(kind), dtype)
    assert params.scale.dtype == dtype
    assert params.zero_point.dtype == kind.dtype
    steps = kind.qmax - kind.qmin
    if np.dtype(dtype) != np.float16 or kind.bits < 16:
        assert params.scale == np.float64(3.0 / steps).astype(dtype)


# No range


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_scale_below_the_smallest_normal_number_becomes_one_with_zero_point_zero(
    kind: QType, symmetric: bool, dtype: type
) -> None:
    tiny = float(ml_dtypes.finfo(dtype).tiny)
    for top in (0.0, tiny / 4):
        params = from_range(0.0, top, Scheme(kind, symmetric=symmetric), dtype)
        assert number(params.scale) == 1.0
        assert int(params.zero_point) == 0


def test_scale_at_the_smallest_normal_number_is_kept() -> None:
    assert from_range(0.0, TINY * 255, Scheme(UINT8)).scale == np.float32(TINY)
    assert from_range(0.0, math.nextafter(TINY * 255, 0), Scheme(UINT8)).scale == 1.0


def test_only_dead_channels_lose_their_scale() -> None:
    params = from_range([0.0, -1.0, -2.0], [0.0, 1.0, 0.0], Scheme(INT8, PerChannel(0)))
    assert params.scale.tolist() == [1.0, np.float32(2 / 255), np.float32(2 / 255)]
    assert params.zero_point.tolist() == [0, 0, 127]


def test_scale_beyond_the_float_type_is_its_largest_number() -> None:
    assert number(from_range(-1e30, 1e30, Scheme(INT8), np.float16).scale) == 65504.0
    assert np.isfinite(from_range(-1.7e308, 1.7e308, Scheme(INT8), np.float64).scale)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_range_that_is_not_finite_is_an_error(bad: float) -> None:
    for low, high in ((bad, 1.0), (-1.0, bad), ([0.0, bad], [1.0, 1.0])):
        with pytest.raises(DataError, match="not finite"):
            from_range(low, high, Scheme(UINT8, PerChannel(0)))


def test_range_upside_down_is_an_error() -> None:
    with pytest.raises(DataError, match="from 3 down to -3"):
        from_range([0.0, 3.0], [1.0, -3.0], Scheme(UINT8, PerChannel(0)))


def test_several_ranges_for_one_scale_are_an_error() -> None:
    with pytest.raises(RecipeError, match="3 ranges were given"):
        from_range(np.zeros(3), np.ones(3), Scheme(UINT8))


def test_a_range_of_one_value_is_one_scale() -> None:
    assert from_range([0.0], [1.0], Scheme(UINT8)).scale.shape == ()


def test_integer_scale_of_float8_is_an_error() -> None:
    with pytest.raises(RecipeError, match="distribution"):
        from_range(0.0, 1.0, Scheme(FLOAT8E4M3FN))


# Arrays


@pytest.mark.parametrize("scheme", [Scheme(k, symmetric=s) for k in INTEGERS for s in (False, True)], ids=str)
@pytest.mark.parametrize("grain", [PerChannel(1), PerBlock(4, 0)], ids=str)
def test_arrays_of_ranges_give_what_each_range_gives(scheme: Scheme, grain: object) -> None:
    shape = (5,) if isinstance(grain, PerChannel) else (3, 5)
    rng = np.random.default_rng(0)
    low, high = -rng.exponential(size=shape), rng.exponential(size=shape)
    many = from_range(low, high, scheme.but(granularity=grain))
    assert many.scale.shape == many.zero_point.shape == shape
    assert many.granularity == grain
    for index in np.ndindex(shape):
        one = from_range(low[index], high[index], scheme)
        assert (one.scale, int(one.zero_point)) == (many.scale[index], int(many.zero_point[index]))


# Properties


@given(ends, ends, schemes)
def test_zero_is_always_exactly_representable(a: float, b: float, scheme: Scheme) -> None:
    params = from_range(min(a, b), max(a, b), scheme)
    assert np.isfinite(params.scale)
    assert params.scale > 0
    limits = scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
    assert limits[0] <= int(params.zero_point) <= limits[1]
    zeros = np.zeros(3, np.float32)
    assert (kernels.fake_quantize(zeros, params, limits=limits) == 0).all()


@given(ends, ends, schemes, st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_round_trip_is_off_by_half_a_step_at_most(
    a: float, b: float, scheme: Scheme, where: list[float]
) -> None:
    low, high = min(a, b), max(a, b)
    params = from_range(low, high, scheme, np.float64)
    limits = scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
    x = np.clip(low + np.array(where) * (high - low), low, high)
    assume(np.isfinite(x).all())
    if number(params.scale) == 1.0 and max(abs(low), abs(high)) < 1e-30:
        return  # no range: everything is zero
    error = np.abs(kernels.fake_quantize(x, params, limits=limits) - x)
    assert (error <= params.scale * 0.5 * (1 + 1e-9)).all()


@given(st.floats(-1e4, 0, width=32), st.floats(0, 1e4, width=32), kinds, st.booleans())
def test_round_trip_in_float32_is_off_by_half_a_step_and_its_own_rounding(
    low: float, high: float, kind: QType, symmetric: bool
) -> None:
    assume(high - low > 1e-20)
    params = from_range(low, high, Scheme(kind, symmetric=symmetric))
    x = np.linspace(low, high, 257, dtype=np.float32)
    limits = kind.limits(symmetric=symmetric)
    error = np.abs(kernels.fake_quantize(x, params, limits=limits).astype(np.float64) - x)
    assert error.max() <= number(params.scale) * (0.5 + (limits[1] - limits[0]) * 2.0**-22)


@given(ends, ends, kinds)
def test_symmetric_scale_is_the_same_for_the_mirrored_range(a: float, b: float, kind: QType) -> None:
    low, high = min(a, b), max(a, b)
    scheme = Scheme(kind, symmetric=True)
    assert from_range(low, high, scheme).same_as(from_range(-high, -low, scheme))


@given(ends, ends, st.none() | st.floats(0, 10))
def test_widened_range_holds_the_range_and_zero(a: float, b: float, least: float | None) -> None:
    low, high = widened(np.float64(min(a, b)), np.float64(max(a, b)), least)
    assert low <= min(a, b, 0.0)
    assert high >= max(a, b, 0.0)
    assert high - low >= (least or 0.0) * (1 - 1e-9) or abs(low) > 1e9


# float8


def test_float8_scale_is_the_ratio_of_standard_deviations() -> None:
    every = np.arange(256, dtype=np.uint8).view(FLOAT8E4M3FN.dtype).astype(np.float64)
    finite = [v for v in every.tolist() if math.isfinite(v)]
    assert len(finite) == 254
    mean = sum(finite) / len(finite)
    std = math.sqrt(sum((v - mean) ** 2 for v in finite) / len(finite))
    assert float8_std() == pytest.approx(std)
    params = from_std(std / 2, Scheme(FLOAT8E4M3FN))
    assert params.scale == np.float32(0.5)
    assert number(params.zero_point) == 0.0
    assert params.zero_point.dtype == FLOAT8E4M3FN.dtype


def test_float8_scales_of_channels() -> None:
    params = from_std([float8_std(), 0.0], Scheme(FLOAT8E4M3FN, PerChannel(0)), np.float16)
    assert params.scale.tolist() == [1.0, 1.0]
    assert params.scale.dtype == np.float16


@pytest.mark.parametrize("std", [math.nan, math.inf, -1.0, [1.0, math.nan]])
def test_standard_deviation_that_is_no_finite_number_is_an_error(std: object) -> None:
    with pytest.raises(DataError, match="standard deviation"):
        from_std(std, Scheme(FLOAT8E4M3FN, PerChannel(0)))  # type: ignore[arg-type]


# Bias


def scales(values: object, dtype: object = np.float32) -> QParams:
    scale = np.array(values, dtype)  # type: ignore[call-overload]
    grain = PerChannel(0) if scale.ndim else PerTensor()
    return QParams(scale, np.zeros(scale.shape, np.int8), INT8, grain)


positive = st.floats(2.0**-30, 2.0**30, width=32)


@given(positive, st.lists(positive, min_size=2, max_size=5))
def test_bias_scale_is_product_of_input_and_weight_scales(x: float, w: list[float]) -> None:
    params = bias_params(scales(x), scales(w))
    assert params.scale.dtype == np.float32
    assert params.scale.tolist() == [np.float32(x) * np.float32(v) for v in w]
    assert params.zero_point.tolist() == [0] * len(w)
    assert (params.qtype, params.granularity) == (INT32, PerChannel(0))


@pytest.mark.parametrize("w", [0.25, [0.25]], ids=["tensor", "one channel"])
def test_bias_of_one_weight_scale_has_one_scale(w: object) -> None:
    params = bias_params(scales(0.5), scales(w))
    assert params.scale == np.float32(0.125)
    assert params.scale.shape == ()
    assert params.granularity == PerTensor()


def test_bias_scale_in_float16_never_vanishes() -> None:
    params = bias_params(scales(1e-4, np.float16), scales([1e-4, 0.5], np.float16))
    assert params.scale.dtype == np.float16
    assert (params.scale > 0).all()


def test_bias_beside_a_blocked_weight_is_an_error() -> None:
    blocks = QParams(np.ones((2, 3), np.float32), np.zeros((2, 3), INT4.dtype), INT4, PerBlock(32, 0))
    with pytest.raises(RecipeError, match="per block:32:0 has no single scale"):
        bias_params(scales(1.0), blocks)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8), positive)
def test_bias_never_overflows_at_the_least_weight_scale(bias: list[float], x: float) -> None:
    values = np.array(bias, np.float32)
    x_scale = np.array(x, np.float32)
    weight = np.maximum(least_weight_scale(values, x_scale), TINY).astype(np.float32)
    assume(np.isfinite(weight).all())
    params = bias_params(scales(x_scale), scales(weight))
    steps = values.astype(np.float64) / params.scale.astype(np.float64)
    assert (np.abs(np.rint(steps)) <= 2**30).all()
    back = kernels.fake_quantize(values, params)
    assert (np.abs(back.astype(np.float64) - values) <= params.scale * 0.5 + np.abs(values) * 2.0**-22).all()


def test_least_weight_scale_is_least() -> None:
    least = least_weight_scale(np.array([1000.0, 0.0, -1000.0]), np.array(0.5, np.float32))
    assert least[1] == 0.0
    assert least[0] == least[2] == pytest.approx(1000 / (0.5 * 2**30), rel=1e-5)


# The other signedness


@pytest.mark.parametrize(("one", "other"), [(INT8, UINT8), (INT16, UINT16), (INT4, UINT4)], ids=str)
def test_mapping_in_the_other_signedness_gives_the_same_reals(one: QType, other: QType) -> None:
    x = np.linspace(-2, 5, 100, dtype=np.float32)
    for here, there in ((one, other), (other, one)):
        params = from_range(-2.0, 5.0, Scheme(here))
        turned = narrowed(params, there)
        assert turned.qtype is there
        assert (kernels.fake_quantize(x, params) == kernels.fake_quantize(x, turned)).all()
        assert narrowed(turned, here).same_as(params)
        assert narrowed(params, here) is params


@pytest.mark.parametrize("other", [INT16, UINT4, FLOAT8E4M3FN], ids=str)
def test_mapping_does_not_change_its_width(other: QType) -> None:
    with pytest.raises(RecipeError, match="hold different numbers"):
        narrowed(from_range(0.0, 1.0, Scheme(UINT8)), other)
