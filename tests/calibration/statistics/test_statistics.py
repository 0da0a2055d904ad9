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
from octavo.calibration.statistics import (
    KINDS,
    ChannelState,
    CombinedState,
    ExtremesState,
    GramState,
    HistogramState,
    MagnitudeState,
    MomentsState,
    SampleExtremesState,
)
from octavo.calibration.statistics.histograms import Waiting
from octavo.calibration.statistics.state_parts import SampleSet
from octavo.core.stats import Stats
from octavo.errors import DataError, TableError

Array = npt.NDArray[Any]


def arrays(dtype: Any) -> st.SearchStrategy[Array]:
    return hnp.arrays(dtype, st.integers(0, 40), elements=finite(dtype))


def finite(dtype: Any) -> st.SearchStrategy[Any]:
    if dtype is np.float16:
        return st.integers(0, 0xF7FF).map(lambda bits: _half(bits if bits & 0x7C00 < 0x7C00 else 0))
    width = np.dtype(dtype).itemsize * 8
    return st.floats(width=width, allow_nan=False, allow_infinity=False)  # type: ignore[call-overload]


def _half(bits: int) -> float:
    return float(np.array(bits, np.uint16).view(np.float16))


def histogram(parts: list[Array], index: int = 0) -> HistogramState:
    state = HistogramState()
    for part in parts:
        state.update(part, index)
    return state


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_histograms_do_not_depend_on_split_order_or_merge(dtype: Any) -> None:
    @settings(max_examples=60, deadline=None)
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


@pytest.mark.parametrize("lowest", [-np.inf, 0.0, 0.5], ids=["signed", "half zeros", "above zero"])
@pytest.mark.parametrize("digits", [None, 6], ids=["anywhere", "on edges"])
def test_large_arrays_are_counted_in_pieces(lowest: float, digits: int | None) -> None:
    x = np.random.default_rng(0).standard_normal((3, 100_000)).astype(np.float32)
    x = np.maximum(x, np.float32(lowest))
    if digits is not None:
        x = np.round(x * 2**digits) / np.float32(2**digits)
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


STATES = [
    HistogramState,
    SampleExtremesState,
    ExtremesState,
    MomentsState,
    GramState,
    lambda: ChannelState(0),
]


@pytest.mark.parametrize("make", STATES)
def test_nan_is_an_error(make: Any) -> None:
    state = make()
    with pytest.raises(DataError, match="NaN"):
        state.update(np.array([1, np.nan], np.float32), 3)


records = st.lists(st.tuples(st.integers(0, 5), st.floats(-10, 10), st.floats(0, 10)), max_size=12)


def extremes(rows: list[tuple[int, float, float]]) -> SampleExtremesState:
    state = SampleExtremesState()
    for index, low, span in rows:
        state.add(index, low, low + span)
    return state


@given(records, records, records)
def test_extremes_are_a_commutative_monoid(a: Any, b: Any, c: Any) -> None:
    whole = extremes(a + b + c).to_bytes()
    x, y, z = extremes(a), extremes(b), extremes(c)
    assert x.merge(y).merge(z).to_bytes() == z.merge(x.merge(y)).to_bytes() == whole
    assert x.merge(SampleExtremesState()).to_bytes() == x.to_bytes()
    assert SampleExtremesState.from_bytes(whole).to_bytes() == whole


def test_extremes_by_sample() -> None:
    state = SampleExtremesState()
    state.update(np.float32([3, 4]), 2)
    state.update(np.float32([-1, 1]), 0)
    state.update(np.float32([5]), 2)
    state.update(np.empty(0, np.float32), 1)
    assert state.records.tolist() == [(0, -1, 1), (2, 3, 5)]
    assert (state.low, state.high, state.count, state.non_finite) == (-1, 5, 2, False)
    again = SampleExtremesState.of([2, 0, 1], [3, -1, np.inf], [5, 1, -np.inf])
    assert again.to_bytes() == state.to_bytes()


def test_an_empty_state() -> None:
    for state in (SampleExtremesState(), HistogramState(), ExtremesState()):
        assert (state.count, state.non_finite, state.low, state.high) == (0, False, np.inf, -np.inf)


def shapes(channels: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of unequal size, some of them empty, with so many channels along the last axis."""
    return st.tuples(st.integers(0, 3), st.integers(0, 4), st.just(channels))


@st.composite
def samples(draw: Any) -> list[Array]:
    """Samples of one tensor: of unequal shape, empty, constant, half precision, of any scale."""
    channels = draw(st.integers(1, 4))
    found = []
    for _ in range(draw(st.integers(1, 7))):
        dtype = draw(st.sampled_from([np.float16, np.float32]))
        elements = finite(dtype)
        fill = draw(st.sampled_from([None, st.just(dtype(draw(elements)))]))
        shape = draw(shapes(channels))
        array = draw(hnp.arrays(dtype, shape, elements=fill if fill is not None else elements))
        scale = draw(st.sampled_from([1.0, 1e-30, 1e-4])) if dtype is np.float32 else 1.0
        found.append(array * dtype(scale))
    return found


KINDS_OF_STATES: dict[str, Any] = {
    "extremes": ExtremesState,
    "minmax": SampleExtremesState,
    "histogram": HistogramState,
    "histogram of samples": lambda: HistogramState(SampleExtremesState()),
    "histogram with a stride": lambda: HistogramState(stride=3),
    "channels": lambda: ChannelState(-1),
    "moments": MomentsState,
    "gram": GramState,
}


@pytest.mark.parametrize("kind", KINDS_OF_STATES)
def test_any_split_order_and_number_of_workers_gives_the_same_bits(kind: str) -> None:
    make = KINDS_OF_STATES[kind]

    @settings(max_examples=40, deadline=None)
    @given(samples(), st.integers(1, 7), st.randoms())
    def check(data: list[Array], workers: int, rng: Any) -> None:
        whole = make()
        for index, sample in enumerate(data):
            whole.update(sample, index)
        parts = [make() for _ in range(workers)]
        order = list(range(len(data)))
        rng.shuffle(order)
        for index in order:
            parts[rng.randrange(workers)].update(data[index], index)
        rng.shuffle(parts)
        while len(parts) > 1:
            left, right = parts.pop(), parts.pop(rng.randrange(len(parts)))
            again = type(left).from_bytes(left.to_bytes())
            parts.insert(0, again.merge(right))
        assert parts[0].to_bytes() == whole.to_bytes()
        assert type(whole).from_bytes(whole.to_bytes()).to_bytes() == whole.to_bytes()

    check()


@settings(max_examples=100, deadline=None)
@given(arrays(np.float32))
def test_moments_are_those_of_exact_arithmetic(x: Array) -> None:
    from fractions import Fraction

    state = MomentsState()
    for part in np.array_split(x, 3):
        state.update(part)
    values = [Fraction(v) for v in x.tolist()]
    mean = sum(values, Fraction(0)) / max(len(values), 1)
    variance = sum(((v - mean) ** 2 for v in values), Fraction(0)) / max(len(values), 1)
    assert (state.mean, state.variance) == (float(mean), float(variance))


def test_gram_matrix_is_that_of_all_rows() -> None:
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((rows, 3, 5)).astype(np.float32) for rows in (2, 1, 4, 0, 3)]
    state = GramState()
    for index, sample in enumerate(data):
        state.update(sample, index)
    rows = np.concatenate([sample.reshape(-1, 5) for sample in data]).astype(np.float64)
    np.testing.assert_allclose(state.matrix, rows.T @ rows, rtol=1e-13)
    assert state.count == len(rows)
    assert GramState().matrix.shape == (0, 0)


def test_a_run_of_samples_leaves_few_gram_matrices() -> None:
    state = GramState()
    for index in range(1000):
        state.update(np.ones((1, 2), np.float32), index)
    assert len(state.to_bytes()) < 12 * 8 * 8
    assert state.matrix[0, 1] == 1000


def test_a_sample_is_in_a_gram_matrix_once() -> None:
    state = GramState()
    for index in (4, 5, 6):
        state.update(np.ones((1, 2), np.float32), index)
    for index in (4, 5, 6):
        with pytest.raises(DataError, match=f"Sample {index} .*already"):
            state.update(np.ones((1, 2), np.float32), index)
    with pytest.raises(DataError, match=r"\[2, 2\].*\[3, 3\]"):
        state.update(np.ones((1, 3), np.float32), 9)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_channels_are_those_of_the_values(axis: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    state = ChannelState(axis)
    state.update(x)
    state.update(2 * x)
    others = tuple(a for a in range(3) if a != axis % 3)
    np.testing.assert_array_equal(state.low, (2 * x).min(axis=others))
    np.testing.assert_array_equal(state.high, (2 * x).max(axis=others))
    np.testing.assert_array_equal(state.absolute, np.abs(2 * x).max(axis=others))


def test_channels_know_the_extremes_of_every_fourth_sample() -> None:
    x = np.random.default_rng(0).standard_normal((9, 4, 5)).astype(np.float32)
    state, later = ChannelState(1), ChannelState(1)
    for index, sample in enumerate(x):
        (state if index < 4 else later).update(sample, index)
    whole = state.merge(later)
    for share in range(4):
        np.testing.assert_array_equal(whole.lows[share], x[share::4].min(axis=(0, 1)))
        np.testing.assert_array_equal(whole.highs[share], x[share::4].max(axis=(0, 1)))
    again = ChannelState.from_bytes(whole.to_bytes())
    assert again.to_bytes() == whole.to_bytes()
    np.testing.assert_array_equal(again.lows, whole.lows)


def test_another_number_of_channels_is_an_error() -> None:
    state = ChannelState(1)
    state.update(np.ones((1, 2), np.float32))
    with pytest.raises(DataError, match=r"2 channels along axis 1 .* 3 in another"):
        state.update(np.ones((1, 3), np.float32))


def test_a_stride_takes_every_so_many_th_value_of_a_sample_and_exact_extremes() -> None:
    x = np.random.default_rng(0).standard_normal(200_001).astype(np.float32)
    state, some = HistogramState(stride=7), HistogramState()
    state.update(x)
    some.update(np.append(x[::7], [x.min(), x.max()]))
    assert (state.low, state.high, state.total) == (x.min(), x.max(), len(x[::7]))
    assert state.exponent == some.exponent
    assert some.total - state.total == 2
    with pytest.raises(TableError, match="different subsets"):
        state.merge(some)


@given(st.lists(st.integers(0, 30), max_size=40))
def test_seen_samples_are_a_set_in_few_bytes(indices: list[int]) -> None:
    seen = SampleSet()
    for index in indices:
        seen.add(index)
    assert len(seen) == len(set(indices))
    assert SampleSet([(index, index + 1) for index in indices]).to_bytes() == seen.to_bytes()
    assert SampleSet.from_bytes(seen.to_bytes()).merge(seen).to_bytes() == seen.to_bytes()


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("sizes", [(5,), (3000, 4097, 1, 12_000), (20_000, 40_000, 0, 300)])
def test_values_that_wait_are_counted_to_the_same_bits(sizes: tuple[int, ...], stride: int) -> None:
    rng = np.random.default_rng(3)
    at_once, later = HistogramState(stride=stride), HistogramState(stride=stride)
    waiting = Waiting(later)
    for index in range(60):
        x = (rng.standard_normal(sizes[index % len(sizes)]) * 1.2**index).astype(np.float32)
        x = np.maximum(x, 0) if index % 3 else x
        x[:1] = np.inf if index == 40 else x[:1]
        for state in (at_once, waiting):
            state.update(x, index)
        x[:] = 7  # its owner may use it again
    waiting.count()
    assert later.to_bytes() == at_once.to_bytes()


def test_memory_does_not_grow_with_the_samples() -> None:
    def size(kind: str, count: int) -> int:
        state = KINDS_OF_STATES[kind]()
        for index in range(count):
            state.update(np.arange(8, dtype=np.float32).reshape(2, 4), index)
        return len(state.to_bytes())

    for kind in ("extremes", "histogram", "channels"):
        assert size(kind, 10) == size(kind, 100)
    assert size("moments", 100) <= size("moments", 10) + 4
    assert size("minmax", 100) - size("minmax", 10) == 90 * 24


def several() -> CombinedState:
    first = histogram([np.arange(9, dtype=np.float32)])
    parts = {"moments": MomentsState(), "channels": ChannelState(-1), "gram": GramState()}
    for part in parts.values():
        part.update(np.arange(12, dtype=np.float32).reshape(3, 4))
    return CombinedState(first, parts)


def test_several_observations_of_a_tensor_are_one_state() -> None:
    state = several()
    assert (state.low, state.high, state.count, state.non_finite) == (0, 8, 1, False)
    again = CombinedState.from_bytes(state.to_bytes())
    assert again.to_bytes() == state.to_bytes()
    other = several()
    other.parts.pop("gram")
    with pytest.raises(TableError, match="Different statistics"):
        state.merge(other)


@pytest.mark.parametrize(
    "state", [ExtremesState(0.0, 1.0, SampleSet([(0, 1)])), several(), extremes([(0, 0.0, 1.0)])]
)
def test_a_cut_record_is_an_error(state: Any) -> None:
    data = state.to_bytes()
    for end in range(len(data)):
        with pytest.raises(TableError):
            KINDS[state.kind](data[:end])


@pytest.mark.parametrize("kind", ["channels", "moments", "gram"])
def test_a_cut_record_of_a_part_is_an_error(kind: str) -> None:
    part = several().parts[kind]
    data = part.to_bytes()
    for end in range(len(data)):
        with pytest.raises(TableError):
            type(part).from_bytes(data[:end])  # type: ignore[attr-defined]


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
    with pytest.raises(TableError, match="damaged"):
        load_stats(data + b"x")
    with pytest.raises(TableError, match="not statistics"):
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


def rows(count: int) -> list[Array]:
    """Samples of different magnitude, each behind its mean square."""
    rng = np.random.default_rng(count)
    values = [(rng.standard_normal(50) * 4.0 ** (i % 3)).astype(np.float32) for i in range(count)]
    return [np.concatenate([[np.mean(np.square(x))], x]) for x in values]


def by_magnitude(samples: list[Array], first: int = 0) -> MagnitudeState:
    state = MagnitudeState()
    for index, row in enumerate(samples):
        state.update(row, first + index)
    return state


def test_samples_of_like_magnitude_share_a_histogram_whoever_has_seen_them() -> None:
    samples = rows(12)
    whole = by_magnitude(samples)
    assert len(whole.groups) == 3 and whole.count == 12
    assert sum(state.total for state in whole.groups.values()) == 12 * 50
    assert whole.high == max(float(row[1:].max()) for row in samples)
    for cut in range(13):
        left, right = by_magnitude(samples[:cut]), by_magnitude(samples[cut:], cut)
        assert left.merge(right).to_bytes() == right.merge(left).to_bytes() == whole.to_bytes()
    assert MagnitudeState.from_bytes(whole.to_bytes()).to_bytes() == whole.to_bytes()
    assert KINDS["loudness"](whole.to_bytes()).low == whole.low


def test_silent_endless_and_empty_samples_have_their_place() -> None:
    state = by_magnitude([np.zeros(9, np.float32), np.array([np.inf, np.inf, 1.0]), np.ones(1, np.float32)])
    assert len(state.groups) == 2 and state.count == 2 and state.non_finite
    with pytest.raises(DataError):
        state.update(np.array([np.nan, np.nan, 1.0]), 3)


@pytest.mark.parametrize("data", [b"", b"\1", b"\2", b"\1" + b"\0" * 7, b"\1" + b"\0" * 4 + b"\xff" * 4])
def test_damaged_histograms_by_magnitude_are_refused(data: bytes) -> None:
    with pytest.raises(TableError, match="collect it again"):
        MagnitudeState.from_bytes(data)
    good = by_magnitude(rows(3)).to_bytes()
    with pytest.raises(TableError, match="collect it again"):
        MagnitudeState.from_bytes(good + good[1:])
