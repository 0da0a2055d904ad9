"""Methods against plain computations in float64 on the raw values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo.calibration import need_of, ranges, read, unusable
from octavo.calibration.methods.auto import candidates
from octavo.calibration.methods.entropy import divergence, magnitudes
from octavo.calibration.methods.spread import Spread
from octavo.calibration.statistics import (
    ChannelState,
    CombinedState,
    ExtremesState,
    HistogramState,
    MomentsState,
    SampleExtremesState,
)
from octavo.calibration.statistics.state_parts import SampleSet
from octavo.core import affine
from octavo.core.qtypes import FLOAT8E4M3FN, INT4, INT8, INT16, UINT8
from octavo.core.requests import Extremes, Histogram, Request
from octavo.core.scheme import MSE, Auto, Distribution, Entropy, MinMax, Percentile, Scheme
from octavo.core.stats import Range, Stats
from octavo.errors import TableError

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)
DATA: dict[str, Array] = {
    "normal": RNG.standard_normal(200_000).astype(np.float32),
    "relu": np.maximum(RNG.standard_normal(200_000), 0).astype(np.float32) * 3,
    "outliers": (RNG.standard_t(2, 200_000) * 0.1).astype(np.float32),
    "shifted": (RNG.gamma(2.0, 1.0, 200_000) - 0.5).astype(np.float32),
    "negative": -np.abs(RNG.standard_normal(100_000)).astype(np.float32),
    "few": np.float32([0.5, 1, 2, -3]),
}
SCHEMES = {
    "uint8": Scheme(UINT8),
    "int8 symmetric": Scheme(INT8, symmetric=True),
    "int8 reduced": Scheme(INT8, reduce_range=True),
    "int4": Scheme(INT4),
    "uint8 restricted": Scheme(UINT8, restricted=True),
    "int16": Scheme(INT16),
}
DATASETS = pytest.mark.parametrize("name", DATA)
WAYS = pytest.mark.parametrize("way", SCHEMES)


def state(x: Array) -> HistogramState:
    found = HistogramState()
    for i, part in enumerate(np.array_split(x, 3)):
        found.update(part, i)
    return found


def squared_error(x: Array, found: Range, scheme: Scheme) -> float:
    """What quantizing these values with that range costs, value by value."""
    params = affine.from_range(found.low, found.high, scheme)
    scale, zero = np.float64(params.scale), np.float64(params.zero_point)
    qmin, qmax = scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
    wide = x.astype(np.float64)
    quantized = np.clip(np.rint(wide / scale) + zero, qmin, qmax)
    return float(np.mean(((quantized - zero) * scale - wide) ** 2))


def test_minmax_average_and_momentum() -> None:
    found = SampleExtremesState.of([0, 2, 1], [-1, -4, -2], [1, 8, 3])
    assert read(found, Scheme(UINT8)) == Range(-4, 8)
    assert read(found, Scheme(UINT8, method=MinMax(average=True))) == pytest.approx((-7 / 3, 4.0, None))
    low = high = None
    for a, b in ((-1, 1), (-2, 3), (-4, 8)):
        low = a if low is None else 0.9 * low + 0.1 * a
        high = b if high is None else 0.9 * high + 0.1 * b
    assert read(found, Scheme(UINT8, method=MinMax(momentum=0.1))) == pytest.approx((low, high, None))


def test_minmax_reads_a_histogram_too() -> None:
    assert read(state(DATA["few"]), Scheme(UINT8)) == Range(-3, 2)


def test_extremes_serve_where_a_histogram_could_not_be_made() -> None:
    found = SampleExtremesState.of([0], [-1], [2])
    for method in (Percentile(99), Entropy(), MSE(), Auto(), Distribution()):
        assert read(found, Scheme(UINT8, method=method)) == Range(-1, 2)


def is_quantile(ordered: Array, value: float, part: float, width: float) -> bool:
    """Whether that part of the values lies below one that is at most a bin away."""
    rank = part * len(ordered)
    low = ordered[max(0, int(np.ceil(rank - 0.01)) - 1)]
    high = ordered[min(len(ordered) - 1, int(np.floor(rank + 0.01)))]
    return bool(low - 1.01 * width <= value <= high + 1.01 * width)


@DATASETS
@pytest.mark.parametrize("percent", [90.0, 99.0, 99.9, 99.99, 100.0])
def test_percentile_is_within_a_bin_of_the_true_one(name: str, percent: float) -> None:
    x = DATA[name]
    if name == "few" and percent < 100:
        pytest.skip("four values have no percentiles")
    found = state(x)
    got = read(found, Scheme(UINT8, method=Percentile(percent)))
    tail = (100 - percent) / 2
    wide = np.sort(x.astype(np.float64))
    assert is_quantile(wide, got.low, tail / 100, found.width)
    assert is_quantile(wide, got.high, 1 - tail / 100, found.width)
    symmetric = read(found, Scheme(INT8, symmetric=True, method=Percentile(percent)))
    top = max(-symmetric.low, symmetric.high)
    assert is_quantile(np.sort(np.abs(wide)), top, percent / 100, found.width)


@DATASETS
@WAYS
def test_expected_error_is_that_of_the_values(name: str, way: str) -> None:
    x, scheme = DATA[name], SCHEMES[way]
    if name == "few":
        pytest.skip("four values are not spread evenly")
    spread = Spread.of(state(x))
    for share in (1.0, 0.5, 0.1):
        found = Range(float(x.min()) * share, float(x.max()) * share)
        expected = squared_error(x, found, scheme)
        if name == "relu" and way == "int16":
            expected = pytest.approx(expected, rel=1.1)  # half of the values are exactly zero
        else:
            expected = pytest.approx(expected, rel=0.03)
        assert spread.error(found.low, found.high, scheme)[0] == expected


def brute_force(x: Array, scheme: Scheme) -> float:
    """The least error over a fine grid of ranges."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    shares = np.geomspace(2.0**-7, 1.0, 24)
    if scheme.symmetric:
        top = max(-low, high)
        pairs = [(-top * s, top * s) for s in np.geomspace(2.0**-7, 1.0, 100)]
    else:
        pairs = [(low * a, high * b) for a in (shares if low else [1.0]) for b in (shares if high else [1.0])]
    return min(squared_error(x, Range(a, b), scheme) for a, b in pairs)


@DATASETS
@WAYS
def test_mse_is_as_good_as_trying_all_ranges_on_the_values(name: str, way: str) -> None:
    x, scheme = DATA[name][:10_000], SCHEMES[way].but(method=MSE())
    got = read(state(x), scheme)
    assert x.min() <= got.low <= 0 or got.low == min(0, x.min())
    assert got.high <= max(0, x.max())
    assert squared_error(x, got, scheme) <= 1.03 * brute_force(x, scheme) + 1e-12


@DATASETS
@WAYS
def test_auto_is_no_worse_than_any_method_it_compares(name: str, way: str) -> None:
    scheme = SCHEMES[way]
    found = state(DATA[name])
    got = read(found, scheme.but(method=Auto()))
    spread = Spread.of(found)
    (least,) = spread.error(got.low, got.high, scheme)
    for other in candidates(found, scheme):
        assert least <= spread.error(other.low, other.high, scheme)[0]


def slow_divergence(counts: Array, size: int, levels: int) -> float:
    """The definition, with loops."""
    p = counts[:size].astype(np.float64)
    p[-1] += counts[size:].sum()
    q = np.zeros(size)
    for level in range(levels):
        start, stop = level * size // levels, (level + 1) * size // levels
        filled = p[start:stop] > 0
        if filled.any():
            q[start:stop][filled] = counts[start:stop].sum() / filled.sum()
    if not q.any():
        return float("inf")
    p, q = p / p.sum(), q / q.sum()
    used = p > 0
    return float(np.sum(p[used] * np.log(p[used] / q[used]))) if np.all(q[used] > 0) else float("inf")


@DATASETS
def test_divergence_is_the_definition(name: str) -> None:
    counts, width = magnitudes(state(DATA[name]), 512)
    assert len(counts) <= 512
    assert counts.sum() == DATA[name].size
    assert len(counts) * width >= np.abs(DATA[name]).max()
    got = divergence(counts, 32)
    expected = [slow_divergence(counts, size, 32) for size in range(32, len(counts) + 1)]
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9)


def test_entropy_is_symmetric_where_the_scheme_is() -> None:
    x = np.append(DATA["shifted"], np.float32(-4))
    symmetric = Scheme(INT8, symmetric=True, method=Entropy())
    got = read(state(x), symmetric)
    params = affine.from_range(got.low, got.high, symmetric)
    assert int(params.zero_point) == 0
    assert float(params.scale) * 127 == pytest.approx(max(-got.low, got.high))


def test_magnitudes_of_both_sides_are_counted_together() -> None:
    x = np.float32([-1.0, -0.3, 0.3, 0.9, 0.0])
    found = state(x)
    counts, width = magnitudes(found, 4096)
    expected = np.histogram(np.abs(x[x >= 0]), np.arange(len(counts) + 1) * width)[0]
    expected[np.floor(np.array([1.0, np.float64(np.float32(0.3))]) / width - 1e-9).astype(int)] += 1
    np.testing.assert_array_equal(counts, expected)


def test_entropy_cuts_off_outliers_and_stays_inside_the_extremes() -> None:
    x = np.append(DATA["normal"], np.float32([60, -50]))
    got = read(state(x), Scheme(INT8, symmetric=True, method=Entropy()))
    assert 3 < got.high < 15
    one_sided = read(state(DATA["relu"]), Scheme(UINT8, method=Entropy()))
    assert one_sided.low == 0
    assert one_sided.high <= DATA["relu"].max()


@DATASETS
def test_distribution_is_the_standard_deviation(name: str) -> None:
    x = DATA[name]
    got = read(state(x), Scheme(FLOAT8E4M3FN, symmetric=True, method=Distribution()))
    assert got.std == pytest.approx(float(np.std(x.astype(np.float64))), rel=1e-3)
    assert (got.low, got.high) == (x.min(), x.max())


@pytest.mark.parametrize("method", [MinMax(), Percentile(99), Entropy(), MSE(), Auto(), Distribution()])
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-42, 3e38])
def test_a_constant_tensor_has_its_value_as_range(method: Any, value: float) -> None:
    x = np.full(10, value, np.float32)
    got = read(state(x), Scheme(UINT8, method=method))
    assert (got.low, got.high) == (x[0], x[0])


@pytest.mark.parametrize("method", [Percentile(99), Entropy(), MSE(), Auto(), Distribution()])
@pytest.mark.parametrize("scale", [1e-38, 1e36])
def test_methods_scale_with_the_values(method: Any, scale: float) -> None:
    x = DATA["normal"]
    exponent = int(np.log2(scale))
    one = read(state(x), Scheme(INT8, symmetric=True, method=method))
    far = read(state(np.ldexp(x, exponent)), Scheme(INT8, symmetric=True, method=method))
    if scale < 1e-30 and isinstance(method, MSE | Auto):
        return  # below the smallest scale of float32
    assert far.high == pytest.approx(np.ldexp(one.high, exponent), rel=1e-2)


def test_averages_need_the_extremes_of_each_sample() -> None:
    found = ExtremesState(-2.0, 3.0, SampleSet([(0, 2)]))
    assert read(found, Scheme(UINT8)) == Range(-2, 3)
    for method in (MinMax(average=True), MinMax(momentum=0.1)):
        with pytest.raises(TableError, match=r"extremes of each sample.*calibrate again"):
            read(found, Scheme(UINT8, method=method))


@pytest.mark.parametrize("axis", [0, 1])
def test_channels_have_ranges_of_their_own(axis: int) -> None:
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    found = ChannelState(axis)
    found.update(x)
    np.testing.assert_array_equal((found.low, found.high), (x.min(axis=1 - axis), x.max(axis=1 - axis)))
    top = np.abs(x).max(axis=1 - axis)
    np.testing.assert_array_equal(found.absolute, top)


def test_a_state_of_several_observations_is_read_by_its_first() -> None:
    several = CombinedState(state(DATA["normal"]), {"moments": MomentsState()})
    scheme = Scheme(UINT8, method=Percentile(99))
    assert read(several, scheme) == read(several.first, scheme)


def test_needs() -> None:
    assert need_of(MinMax()) == Request()
    assert (
        need_of(MinMax(average=True)) == need_of(MinMax(momentum=0.5)) == Request(Extremes(each_sample=True))
    )
    assert need_of(MSE()) == need_of(Entropy()) == Request(Histogram())


def test_ranges_leave_out_what_was_never_seen_or_is_infinite() -> None:
    stats = Stats(
        {"a": SampleExtremesState.of([0], [0], [1]), "b": SampleExtremesState.of([0], [-np.inf], [1])},
        samples=1,
    )
    wanted = dict.fromkeys("abc", Scheme(UINT8))
    assert ranges(stats, wanted) == {"a": Range(0, 1)}
    reasons = unusable(stats, wanted)
    assert "infinite" in reasons["b"]
    assert "no value in any of the 1" in reasons["c"]
