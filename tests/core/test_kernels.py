from __future__ import annotations

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octavo.core import kernels
from octavo.core.affine import from_range
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor, parameter_shape, spread
from octavo.core.kernels import (
    blocked,
    dequantize,
    extremes,
    fake_quantize,
    pack_flat,
    quantize,
    slabs,
    unpack,
)
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT4, INT8, INT32, QTYPES, UINT4, UINT8, QType
from octavo.core.scheme import Scheme
from octavo.errors import RecipeError

INTEGERS = [k for k in QTYPES.values() if not k.is_float]
GRAINS = [
    PerTensor(),
    PerChannel(0),
    PerChannel(1),
    PerChannel(-1),
    PerBlock(3, 0),
    PerBlock(4, 1),
    PerBlock(5, -1),
]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], Granularity]:
    """A shape, and one of the ways to quantize it."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return shape, draw(
        st.sampled_from([PerTensor(), PerChannel(axis), PerBlock(draw(st.integers(1, 9)), axis)])
    )


def random_params(shape: tuple[int, ...], kind: QType, grain: Granularity, seed: int = 0) -> QParams:
    rng = np.random.default_rng(seed)
    many = parameter_shape(shape, grain)
    scale = np.asarray(rng.uniform(0.01, 1.0, many), np.float32)
    zero = np.asarray(rng.integers(kind.qmin, kind.qmax + 1, many)).astype(kind.dtype)
    return QParams(scale, zero, kind, grain)


def naive(x: np.ndarray, params: QParams) -> np.ndarray:
    """Element by element, in Python."""
    scale, zero = (
        np.broadcast_to(spread(p, x.shape, params.granularity), x.shape)
        for p in (params.scale, params.zero_point)
    )
    out = np.empty(x.shape, np.int64)
    for index in np.ndindex(x.shape):
        steps = round(float(np.float32(x[index]) / scale[index])) + int(zero[index])
        out[index] = min(max(steps, params.qtype.qmin), params.qtype.qmax)
    return out


@given(layouts(), st.sampled_from(INTEGERS), st.integers(0, 99))
def test_quantize_is_what_a_loop_over_elements_gives(layout: tuple, kind: QType, seed: int) -> None:
    shape, grain = layout
    x = np.random.default_rng(seed).normal(0, 20, shape).astype(np.float32)
    params = random_params(shape, kind, grain, seed)
    found = quantize(x, params)
    assert found.dtype == kind.dtype
    assert (found.astype(np.int64) == naive(x, params)).all()


@settings(max_examples=40)
@given(layouts(), st.sampled_from(INTEGERS), st.integers(0, 99))
def test_slabs_give_what_the_whole_gives(layout: tuple, kind: QType, seed: int) -> None:
    shape, grain = layout
    x = np.random.default_rng(seed).normal(0, 20, shape).astype(np.float32)
    params = random_params(shape, kind, grain, seed)
    q = quantize(x, params)
    real = dequantize(q, params)
    low, high = extremes(x, grain)
    with pytest.MonkeyPatch.context() as patch:
        for size in (1, 5, 16):
            patch.setattr(slabs, "__defaults__", (size,))
            assert (quantize(x, params) == q).all()
            assert (dequantize(q, params) == real).all()
            cut_low, cut_high = extremes(x, grain)
            assert (cut_low == low).all()
            assert (cut_high == high).all()


@pytest.mark.parametrize("grain", GRAINS, ids=str)
def test_big_array_goes_through_in_slabs_unchanged(grain: Granularity) -> None:
    shape = (70, 61, 131)
    assert len(list(slabs(shape))) > 1
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    params = random_params(shape, INT8, grain)
    scale, zero = (
        spread(p, shape, grain).astype(np.float32) for p in (params.scale, params.zero_point.astype(np.int32))
    )
    assert (quantize(x, params) == np.clip(np.rint(x / scale) + zero, -128, 127)).all()
    q = quantize(x, params)
    assert (dequantize(q, params) == (q.astype(np.float32) - zero) * scale).all()


@given(st.lists(st.integers(0, 9), max_size=4).map(tuple), st.integers(1, 50))
def test_slabs_cover_every_element_once_and_hold_no_more_than_asked(
    shape: tuple[int, ...], size: int
) -> None:
    seen = np.zeros(shape, np.int64)
    for part in slabs(shape, size):
        assert seen[part].size <= size
        seen[part] += 1
    assert (seen == 1).all()


@given(layouts(), st.integers(0, 99))
def test_extremes_are_those_of_each_channel_or_block(layout: tuple, seed: int) -> None:
    shape, grain = layout
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    count = parameter_shape(shape, grain)
    owner = np.broadcast_to(spread(np.arange(np.prod(count, dtype=int)).reshape(count), shape, grain), shape)
    low, high = extremes(x, grain)
    assert low.shape == high.shape == count
    assert low.dtype == high.dtype == np.float64
    for index in range(low.size):
        assert low.flat[index] == x[owner == index].min()
        assert high.flat[index] == x[owner == index].max()


@pytest.mark.parametrize("size", [32, 200])
def test_extremes_of_short_and_long_blocks_in_the_last_axis(size: int) -> None:
    x = np.random.default_rng(2).standard_normal((50, 1000), np.float32)
    low, _ = extremes(x, PerBlock(size, 1))
    assert low.shape == (50, -(-1000 // size))
    assert (low == blocked(x, size, 1).min(axis=2)).all()


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float64], ids=lambda d: np.dtype(d).name
)
def test_extremes_of_every_float_type_are_exact(dtype: type) -> None:
    x = np.random.default_rng(3).standard_normal((6, 5)).astype(dtype)
    low, high = extremes(x, PerChannel(1))
    assert (low == x.astype(np.float64).min(axis=0)).all()
    assert (high == x.astype(np.float64).max(axis=0)).all()


@pytest.mark.parametrize("place", [0, 1_000_000], ids=["first slab", "last slab"])
def test_nan_anywhere_is_seen_in_the_extremes(place: int) -> None:
    x = np.ones(1_000_001, np.float32)
    x[place] = np.nan
    assert all(np.isnan(v) for v in extremes(x, PerTensor()))


@pytest.mark.parametrize("grain", GRAINS, ids=str)
@pytest.mark.parametrize("shape", [(0, 4, 5), (4, 0, 5), (4, 5, 0)], ids=str)
def test_empty_array_is_no_error(shape: tuple[int, ...], grain: Granularity) -> None:
    x = np.empty(shape, np.float32)
    low, high = extremes(x, grain)
    assert low.shape == parameter_shape(shape, grain)
    assert not low.any()
    assert not high.any()
    params = from_range(low, high, Scheme(UINT8, grain))
    assert quantize(x, params).shape == dequantize(quantize(x, params), params).shape == shape


def test_single_number_is_quantized() -> None:
    params = QParams(np.array(0.5, np.float32), np.array(3, np.uint8), UINT8)
    assert quantize(np.array(2.0, np.float32), params) == 7
    assert dequantize(np.array(7, np.uint8), params) == 2.0
    assert extremes(np.array(2.0, np.float32), PerTensor()) == (2.0, 2.0)


def test_limits_narrow_the_integers_used() -> None:
    params = QParams(np.array(1, np.float32), np.array(0, np.int8), INT8)
    x = np.array([-200, -127.4, 200], np.float32)
    assert quantize(x, params, limits=(-127, 127)).tolist() == [-127, -127, 127]
    assert quantize(x, params, limits=(-64, 64)).tolist() == [-64, -64, 64]
    assert quantize(x, params).tolist() == [-128, -127, 127]


def test_strided_and_transposed_arrays_are_quantized_in_place_of_their_copies() -> None:
    x = np.random.default_rng(4).standard_normal((300, 2200)).astype(np.float32)
    for view in (x.T, x[::2, ::3], x[::-1]):
        params = from_range(*extremes(view, PerBlock(32, 0)), Scheme(INT4, PerBlock(32, 0)))
        assert (quantize(view, params) == quantize(view.copy(), params)).all()


def test_source_is_not_changed() -> None:
    x = np.random.default_rng(5).standard_normal((8, 8))
    for dtype in (np.float16, np.float32, np.float64):
        source = x.astype(dtype)
        before = source.copy()
        quantize(source, from_range(-1, 1, Scheme(UINT8), dtype))
        assert (source == before).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_half_precision_is_computed_in_float32(dtype: type) -> None:
    x = np.random.default_rng(6).standard_normal((64, 8)).astype(dtype)
    params = from_range(*extremes(x, PerChannel(1)), Scheme(INT8, PerChannel(1), symmetric=True), dtype)
    wide = x.astype(np.float32) / params.scale.astype(np.float32)
    assert (quantize(x, params) == np.clip(np.rint(wide), -128, 127)).all()
    back = fake_quantize(x, params)
    assert back.dtype == dtype
    assert np.abs(back.astype(np.float64) - x.astype(np.float64)).max() < 0.05


def test_bias_keeps_all_its_bits() -> None:
    params = QParams(np.array(1e-9, np.float32), np.array(0, np.int32), INT32)
    x = np.array([1.23456789, -2.0, 3.0], np.float32)
    q = quantize(x, params)
    assert q.tolist() == [
        round(float(x[0]) / float(params.scale)),
        round(-2.0 / float(params.scale)),
        2**31 - 1,
    ]


def test_scales_that_do_not_fit_the_tensor_are_an_error() -> None:
    params = random_params((4,), INT8, PerChannel(0))
    for grain in (PerChannel(0), PerBlock(2, 0)):
        wrong = QParams(params.scale, params.zero_point, INT8, grain)
        with pytest.raises(RecipeError, match="does not fit"):
            quantize(np.ones((5,), np.float32), wrong)


# Memory


@pytest.mark.parametrize(
    ("shape", "grain"),
    [
        ((1, 100_000_000), PerTensor()),
        ((25_000, 1_000), PerChannel(1)),
        ((25_000, 1_000), PerBlock(32, 0)),
        ((3, 8_333_334), PerBlock(30, 1)),
    ],
    ids=str,
)
def test_memory_mapped_array_is_quantized_beside_small_temporaries(
    tmp_path: Path, shape: tuple[int, int], grain: Granularity
) -> None:
    x = np.memmap(
        tmp_path / "weights.bin", np.float32, "w+", shape=shape
    )  # a hole: takes no room on the disk
    tracemalloc.start()
    try:
        params = from_range(*extremes(x, grain), Scheme(UINT8, grain))
        small = params.scale.size * 80  # the parameters' own arithmetic, in float64
        q = quantize(x, params)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= q.nbytes + small + 16 * 2**20


# Blocks and packing


@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=9), st.integers(1, 12), st.integers(0, 2))
def test_blocked_splits_an_axis_and_repeats_the_edge(shape: tuple[int, ...], size: int, axis: int) -> None:
    axis %= len(shape)
    x = np.arange(np.prod(shape)).reshape(shape)
    blocks = blocked(x, size, axis)
    count = -(-shape[axis] // size)
    assert blocks.shape == (*shape[:axis], count, size, *shape[axis + 1 :])
    flat = np.moveaxis(blocks, (axis, axis + 1), (0, 1)).reshape(count * size, -1)
    source = np.moveaxis(x, axis, 0).reshape(shape[axis], -1)
    for i in range(count * size):
        assert (flat[i] == source[min(i, shape[axis] - 1)]).all()


def test_blocked_is_a_view_where_the_size_divides() -> None:
    x = np.zeros((6, 8))
    assert np.shares_memory(blocked(x, 4, 1), x)
    assert np.shares_memory(blocked(x[:, :4], 2, 1), x)


@given(st.lists(st.integers(-8, 7)))
def test_signed_values_survive_packing(values: list[int]) -> None:
    q = np.array(values, np.int8)
    packed = pack_flat(q, 4)
    assert packed.dtype == np.uint8
    assert packed.size == -(-q.size // 2)
    assert unpack(packed, 4, q.size).tolist() == [value % 16 for value in values]
    assert (pack_flat(q.astype(INT4.dtype), 4) == packed).all()
    assert (pack_flat(q.astype(np.int64), 4) == packed).all()


@given(st.lists(st.integers(0, 15)))
def test_unsigned_values_survive_packing(values: list[int]) -> None:
    q = np.array(values, np.uint8)
    packed = pack_flat(q, 4)
    assert unpack(packed, 4, q.size).tolist() == values
    assert (pack_flat(q.astype(UINT4.dtype), 4) == packed).all()


@given(st.lists(st.integers(0, 255)))
def test_bytes_survive_unpacking(values: list[int]) -> None:
    packed = np.array(values, np.uint8)
    for bits in (2, 4):
        assert (pack_flat(unpack(packed, bits, packed.size * 8 // bits), bits) == packed).all()


def test_first_value_is_in_the_low_half_and_an_odd_count_is_filled_with_zero() -> None:
    assert pack_flat(np.array([1, 2, -1], np.int8), 4).tolist() == [0x21, 0x0F]


def test_packing_reads_an_array_in_its_logical_order() -> None:
    q = np.arange(-8, 8, dtype=np.int8).reshape(4, 4)
    assert (pack_flat(q.T, 4) == pack_flat(q.T.copy(), 4)).all()
    assert pack_flat(q[:, ::2], 4).tolist() == pack_flat(q[:, ::2].copy(), 4).tolist()


def test_one_slab_fits_the_cache() -> None:
    assert kernels.SLAB * 4 <= 2**21
