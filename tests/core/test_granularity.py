from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.granularity import (
    Granularity,
    PerBlock,
    PerChannel,
    PerTensor,
    checked,
    moved,
    normal_axis,
    parameter_shape,
    parse,
    spread,
)
from octavo.errors import RecipeError

axes = st.none() | st.integers(-8, 8)
grains = st.one_of(
    st.just(PerTensor()), st.builds(PerChannel, axes), st.builds(PerBlock, st.integers(1, 4096), axes)
)


@given(grains)
def test_text_of_a_granularity_parses_to_it(grain: Granularity) -> None:
    assert parse(str(grain)) == grain
    assert hash(parse(str(grain))) == hash(grain)


@pytest.mark.parametrize(
    ("text", "grain"),
    [
        ("tensor", PerTensor()),
        ("channel", PerChannel()),
        ("channel:1", PerChannel(1)),
        ("channel:-1", PerChannel(-1)),
        ("block:32", PerBlock(32)),
        ("block:32:0", PerBlock(32, 0)),
    ],
)
def test_granularity_is_written_short(text: str, grain: Granularity) -> None:
    assert parse(text) == grain
    assert str(grain) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tensor:1",
        "channel:a",
        "channel:1:2",
        "block",
        "block:",
        "block:1:2:3",
        "row",
        "block:" + "9" * 5000,
    ],
)
def test_other_text_is_no_granularity(text: str) -> None:
    with pytest.raises(RecipeError, match="is not a granularity; write tensor"):
        parse(text)


@pytest.mark.parametrize("size", [0, -32])
def test_block_has_at_least_one_value(size: int) -> None:
    with pytest.raises(RecipeError, match="not possible"):
        parse(f"block:{size}")


def test_axis_counts_from_either_end() -> None:
    assert [normal_axis(a, 3) for a in (-3, -2, -1, 0, 1, 2)] == [0, 1, 2, 0, 1, 2]


def test_axis_outside_the_rank_is_an_error() -> None:
    for axis in (2, -3):
        with pytest.raises(RecipeError, match=r"Axis -?\d does not exist in w of rank 2; choose one of -2…1"):
            normal_axis(axis, 2, "w")
    with pytest.raises(RecipeError, match=r"rank 0.*write tensor"):
        normal_axis(0, 0)


def test_axis_left_open_is_an_error_where_one_is_needed() -> None:
    with pytest.raises(RecipeError, match="No axis was chosen"):
        parameter_shape((2, 3), PerChannel())


def test_parameters_have_the_shape_that_onnx_stores() -> None:
    assert parameter_shape((4, 6), PerTensor()) == ()
    assert parameter_shape((4, 6), PerChannel(-1)) == (6,)
    assert parameter_shape((4, 6, 5), PerBlock(2, 1)) == (4, 3, 5)
    assert parameter_shape((4, 7), PerBlock(4, 1)) == (4, 2)
    assert parameter_shape((3, 7), PerBlock(32, 0)) == (1, 7)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12), st.integers(0, 1))
def test_spread_blocks_repeat_each_value_along_the_axis(
    rows: int, columns: int, size: int, axis: int
) -> None:
    shape, grain = (rows, columns), PerBlock(size, axis)
    values = np.arange(np.prod(parameter_shape(shape, grain))).reshape(parameter_shape(shape, grain))
    whole = spread(values, shape, grain)
    assert whole.shape == shape
    for i, j in np.ndindex(shape):
        assert whole[i, j] == (values[i // size, j] if axis == 0 else values[i, j // size])


def test_spread_channels_broadcast() -> None:
    assert spread(np.arange(3), (2, 3, 4), PerChannel(1)).shape == (1, 3, 1)
    assert spread(np.arange(1), (2, 3), PerTensor()).shape == ()


@pytest.mark.parametrize(
    ("count", "grain"),
    [(2, PerTensor()), (4, PerChannel(1)), (1, PerChannel(1)), (3, PerBlock(1, 0))],
    ids=str,
)
def test_wrong_number_of_parameters_is_an_error(count: int, grain: Granularity) -> None:
    with pytest.raises(RecipeError, match=r"does not fit a tensor of shape \[2, 3\]"):
        spread(np.ones(count), (2, 3), grain)


def test_blocked_parameters_are_not_taken_in_another_shape() -> None:
    with pytest.raises(RecipeError, match=r"give the shape \[2, 3\]"):
        checked(np.ones((3, 2)), (2, 3), PerBlock(1, 0))


@given(st.permutations(range(4)), st.integers(-4, 3), st.integers(1, 3))
def test_moved_granularity_follows_the_axis_through_a_transpose(
    perm: list[int], axis: int, size: int
) -> None:
    shape = (2, 3, 5, 7)
    for grain in (PerChannel(axis), PerBlock(size, axis)):
        count = np.arange(np.prod(parameter_shape(shape, grain)))
        values = count.reshape(parameter_shape(shape, grain))
        after = moved(grain, tuple(perm))
        turned = values if isinstance(grain, PerChannel) else values.transpose(perm)
        expected = np.broadcast_to(spread(values, shape, grain), shape).transpose(perm)
        found = spread(turned, expected.shape, after)
        assert (np.broadcast_to(found, expected.shape) == expected).all()


def test_one_scale_is_not_moved() -> None:
    assert moved(PerTensor(), (1, 0)) == PerTensor()
