"""Observers are exact: any split, order and merge of the data gives the same bits."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octavo.calibration import load_stats
from octavo.calibration.observers import HistogramState, MinMaxState
from octavo.core.stats import Stats
from octavo.errors import DataError, TableError

Array = npt.NDArray[Any]


def arrays(dtype: Any) -> st.SearchStrategy[Array]:
    width = np.dtype(dtype).itemsize * 8
    elements = st.floats(width=width, allow_nan=False, allow_infinity=False)  # type: ignore[call-overload]
    return hnp.arrays(dtype, st.integers(0, 40), elements=elements)


def histogram(parts: list[Array], index: int = 0) -> HistogramState:
    state = HistogramState()
    for part in parts:
        state.update(part, index)
    return state


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_histograms_do_not_depend_on_split_order_or_merge(dtype: Any) -> None:
    @settings(max_examples=200, deadline=None)
    @given(st.lists(arrays(dtype), min_size=1, max_size=5), st.randoms())
    def check(parts: list[Array], rng: Any) -> None:
        whole = histogram([np.concatenate(parts)]).to_bytes()
        shuffled = list(parts)
        rng.shuffle(shuffled)
        assert histogram(shuffled).to_bytes() == whole
        merged = HistogramState()
        for part in shuffled:
            merged = merged.merge(histogram([part]))
        assert merged.to_bytes() == whole
        cut = rng.randint(0, len(parts))
        two = histogram(parts[cut:]).merge(histogram(parts[:cut]))
        assert two.to_bytes() == whole
        assert HistogramState.from_bytes(whole).to_bytes() == whole

    check()


@settings(max_examples=200, deadline=None)
@given(arrays(np.float64))
def test_every_value_is_in_the_bin_that_holds_it(x: Array) -> None:
    state = histogram([x])
    first, counts = state.bins()
    assert counts.sum() == state.total == x.size
    if not x.size:
        return
    top = float(np.abs(x).max())
    assert len(counts) <= 8192
    if top > 0:
        assert top < 4096 * state.width <= 2 * top or state.width == 0.0
        numbers = [
            math.floor(math.ldexp(v, -state.exponent)) if v >= 0 else _below(v, state) for v in x.tolist()
        ]
        expected = np.bincount(np.array(numbers) - min(numbers))
        assert first == min(numbers)
        np.testing.assert_array_equal(counts, expected)


def _below(value: float, state: HistogramState) -> int:
    """The bin of a negative value, tiny ones included."""
    return min(-1, math.floor(math.ldexp(value, -state.exponent)))


@pytest.mark.parametrize(
    "values",
    [
        [0.0, -0.0],
        [1e-45, -1e-45],
        [3.4e38, -3.4e38, 1e-45, -1e-45],
        [1e38, 1.0, -1e-30],
        [-1.0],
        [4096.0, 4095.999, -4096.0],
    ],
)
def test_zero_denormal_and_huge_values(values: list[float]) -> None:
    x = np.array(values, np.float32)
    whole = histogram([x])
    assert whole.total == x.size
    assert (whole.low, whole.high) == (x.min(), x.max())
    one_by_one = histogram([x[i : i + 1] for i in range(x.size)])
    assert one_by_one.to_bytes() == whole.to_bytes()
    first, counts = whole.bins()
    assert counts[: max(0, -first)].sum() == np.count_nonzero(x < 0)


def test_large_arrays_are_counted_in_pieces() -> None:
    x = np.random.default_rng(0).standard_normal((3, 100_000)).astype(np.float32)
    state = histogram([x])
    first, counts = state.bins()
    edges = (first + np.arange(len(counts) + 1)) * state.width
    np.testing.assert_array_equal(counts, np.histogram(x.astype(np.float64), edges)[0])


def test_bfloat16_and_integers() -> None:
    x = np.array([1.5, -2, 3], ml_dtypes.bfloat16)
    assert histogram([x]).to_bytes() == histogram([x.astype(np.float32)]).to_bytes()
    assert histogram([np.array([1, -5])]).low == -5


def test_infinities_are_noted_and_in_no_bin() -> None:
    state = histogram([np.array([np.inf, 1, 2, -np.inf], np.float32)])
    assert state.non_finite
    assert (state.low, state.high, state.total) == (-np.inf, np.inf, 2)
    assert histogram([np.array([np.inf], np.float32)]).total == 0
    assert HistogramState.from_bytes(state.to_bytes()).to_bytes() == state.to_bytes()


@pytest.mark.parametrize("state", [HistogramState(), MinMaxState()])
def test_nan_is_an_error(state: HistogramState | MinMaxState) -> None:
    with pytest.raises(DataError, match="NaN"):
        state.update(np.array([1, np.nan], np.float32), 3)


records = st.lists(st.tuples(st.integers(0, 5), st.floats(-10, 10), st.floats(0, 10)), max_size=12)


def extremes(rows: list[tuple[int, float, float]]) -> MinMaxState:
    state = MinMaxState()
    for index, low, span in rows:
        state.add(index, low, low + span)
    return state


@given(records, records, records)
def test_extremes_are_a_commutative_monoid(a: Any, b: Any, c: Any) -> None:
    whole = extremes(a + b + c).to_bytes()
    x, y, z = extremes(a), extremes(b), extremes(c)
    assert x.merge(y).merge(z).to_bytes() == z.merge(x.merge(y)).to_bytes() == whole
    assert x.merge(MinMaxState()).to_bytes() == x.to_bytes()
    assert MinMaxState.from_bytes(whole).to_bytes() == whole


def test_extremes_by_sample() -> None:
    state = MinMaxState()
    state.update(np.float32([3, 4]), 2)
    state.update(np.float32([-1, 1]), 0)
    state.update(np.float32([5]), 2)
    state.update(np.empty(0, np.float32), 1)
    assert state.batches == {0: (-1, 1), 2: (3, 5)}
    assert (state.low, state.high, state.count, state.non_finite) == (-1, 5, 2, False)
    assert MinMaxState.of([2, 0, 1], [3, -1, np.inf], [5, 1, -np.inf]).batches == state.batches


def test_an_empty_state() -> None:
    for state in (MinMaxState(), HistogramState()):
        assert (state.count, state.non_finite, state.low, state.high) == (0, False, np.inf, -np.inf)


def some_stats() -> Stats:
    one = histogram([np.arange(9, dtype=np.float32)])
    return Stats({"b": one, "a é": extremes([(0, -1.0, 2.0)])}, 3)


def test_stats_are_saved_and_read_again_to_the_bit() -> None:
    stats = some_stats()
    again = load_stats(stats.to_bytes())
    assert again.to_bytes() == stats.to_bytes()
    assert (again.samples, sorted(again)) == (3, ["a é", "b"])
    assert again["b"].high == 8


def test_damaged_stats_are_an_error_and_never_a_crash() -> None:
    data = some_stats().to_bytes()
    for end in range(len(data)):
        with pytest.raises(TableError):
            load_stats(data[:end])
    with pytest.raises(TableError, match="follows"):
        load_stats(data + b"x")
    with pytest.raises(TableError, match="version"):
        load_stats(b"PK" + data)


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_is_an_error_or_other_statistics(place: int, value: int) -> None:
    data = bytearray(some_stats().to_bytes())
    data[place % len(data)] = value
    with contextlib.suppress(TableError):
        load_stats(bytes(data))


def test_merging_takes_in_tensors_of_both() -> None:
    left = Stats({"a": extremes([(0, 0.0, 1.0)])}, 1)
    right = Stats({"a": extremes([(1, -3.0, 1.0)]), "b": extremes([(1, 0.0, 1.0)])}, 1)
    both = left.merge(right)
    assert (both.samples, both["a"].low, both["a"].high, both["b"].count) == (2, -3, 1, 1)
    assert left["a"].low == 0


def test_different_kinds_do_not_merge() -> None:
    left, right = Stats({"a": extremes([])}, 1), Stats({"a": HistogramState()}, 1)
    with pytest.raises(TableError, match=r"'a'.*'minmax' and 'histogram'"):
        left.merge(right)
