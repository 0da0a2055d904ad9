"""Every method on any data: what it may cost, what it keeps, and what a brute-force search finds."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.calibration import narrow_ranges, narrow_ranges_note, read
from octavo.calibration.methods.entropy import best_threshold, clipping, magnitudes
from octavo.calibration.statistics import HistogramState
from octavo.core import affine
from octavo.core.qtypes import FLOAT8E4M3FN, INT4, INT8, INT16, UINT8
from octavo.core.scheme import MSE, Auto, Distribution, Entropy, Method, MinMax, Percentile, Scheme
from octavo.core.stats import Range
from octavo.quantization import QuantType, calibrate, quantize_static
from octavo.quantization._errors import QuantizationWarning

Array = npt.NDArray[np.float32]
SCHEMES = (
    Scheme(UINT8),
    Scheme(INT8, symmetric=True),
    Scheme(INT4),
    Scheme(INT16),
    Scheme(UINT8, restricted=True),
)
EXAMPLES = os.environ.get("EXAMPLES")  # a number: so many, and others each time
FEW = settings(max_examples=int(EXAMPLES or 40), derandomize=EXAMPLES is None, deadline=None)


KINDS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "uniform": lambda rng, n: rng.uniform(-1, 1, n),
    "laplace": lambda rng, n: rng.laplace(size=n),
    "student": lambda rng, n: rng.standard_t(2, n),
    "cauchy": lambda rng, n: rng.standard_cauchy(n),
    "lognormal": lambda rng, n: rng.lognormal(size=n),
    "steps": lambda rng, n: rng.integers(-5, 6, n).astype(float),
    "two": lambda rng, n: rng.choice([0.3, 7.0], n, p=[0.9, 0.1]),
    "clusters": lambda rng, n: rng.normal(rng.choice([-4.0, 6.0], n), 0.1),
    "constant": lambda rng, n: np.full(n, rng.normal()),
    "mostly zero": lambda rng, n: rng.standard_normal(n) * (rng.uniform(size=n) < 0.02),
}


@st.composite
def tensors(draw: st.DrawFn) -> Array:
    """Values as tensors have them: any center, any spread, tails, spikes of zeros, outliers, few or many."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    size = draw(st.sampled_from([1, 5, 60, 200, 1000, 20_000]))
    kind = draw(st.sampled_from(list(KINDS)))
    values = KINDS[kind](rng, size) * draw(st.sampled_from([1e-30, 1e-3, 0.1, 1.0, 40.0]))
    values += draw(st.sampled_from([0.0, 0.5, 3.0, -3.0, 200.0])) * np.std(values)
    shape = draw(st.sampled_from(["as it is", "relu", "sigmoid", "absolute"]))
    if shape == "relu":
        values = np.maximum(values, 0)
    elif shape == "sigmoid":
        values = 1 / (1 + np.exp(-np.clip(values, -50, 50)))
    elif shape == "absolute":
        values = -np.abs(values)
    outliers = draw(st.sampled_from([0, 0, 1, 3]))
    if outliers:
        count = min(outliers, size)
        values[:count] = np.max(np.abs(values)) * rng.choice([-20, 20], count)
    if draw(st.sampled_from([np.float32, np.float32, np.float16])) is np.float16:
        values = np.clip(values, -65504, 65504).astype(np.float16)
    return np.asarray(values, np.float32)


def state_of(values: Array) -> HistogramState:
    state = HistogramState()
    state.update(values)
    return state


def error_of(values: Array, found: Range, scheme: Scheme) -> float:
    """The root of the mean squared error of the values after quantization, one by one in float64."""
    params = affine.from_range(found.low, found.high, scheme)
    scale, zero = np.float64(params.scale), np.float64(params.zero_point)
    qmin, qmax = scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
    wide = values.astype(np.float64)
    quantized = np.clip(np.rint(wide / scale) + zero, qmin, qmax)
    return math.sqrt(np.mean(((quantized - zero) * scale - wide) ** 2))


def error_of_extremes(values: Array, scheme: Scheme) -> float:
    """The error of min-max; values but zero that happen to lie on its steps count as spread evenly."""
    found = Range(float(values.min()), float(values.max()))
    step = float(affine.from_range(found.low, found.high, scheme).scale)
    return max(error_of(values, found, scheme), step * math.sqrt(np.mean(values != 0) / 12.0))


METHODS = (Entropy(), Entropy(1024, 128), Entropy(64, 64), MSE(), Auto(), Distribution())


@FEW
@given(tensors(), st.sampled_from(METHODS), st.sampled_from(SCHEMES))
def test_the_error_of_any_method_is_at_most_three_times_that_of_min_max(
    values: Array, method: Method, scheme: Scheme
) -> None:
    found = read(state_of(values), scheme.but(method=method))
    assert error_of(values, found, scheme) <= 3.0 * error_of_extremes(values, scheme) * (1 + 1e-6)


COARSE = tuple(scheme for scheme in SCHEMES if scheme.qtype.bits <= 8)  # steps wider than a histogram's bins


@FEW
@given(tensors(), st.sampled_from(COARSE))
def test_the_usual_percentile_errs_at_most_three_times_as_much_as_min_max(
    values: Array, scheme: Scheme
) -> None:
    found = read(state_of(values), scheme.but(method=Percentile(99.999)))
    assert error_of(values, found, scheme) <= 3.0 * error_of_extremes(values, scheme) * (1 + 1e-6)


@FEW
@given(tensors(), st.sampled_from(COARSE))
def test_least_squares_and_auto_are_no_worse_than_min_max(values: Array, scheme: Scheme) -> None:
    extremes = error_of(values, Range(float(values.min()), float(values.max())), scheme)
    for method in (MSE(), Auto()):
        found = error_of(values, read(state_of(values), scheme.but(method=method)), scheme)
        # the methods know a value to within its bin, and no value's error changes by more than the value does
        assert found <= extremes * (1 + 1e-6) + 2 * state_of(values).width


@FEW
@given(tensors(), st.sampled_from([60.0, 90.0, 99.0, 99.9, 99.999]), st.booleans())
def test_a_percentile_keeps_at_least_its_share_of_the_values(
    values: Array, percent: float, symmetric: bool
) -> None:
    scheme = Scheme(INT8 if symmetric else UINT8, symmetric=symmetric, method=Percentile(percent))
    state = state_of(values)
    found = read(state, scheme)
    room = state.width  # the range is known to within a bin
    kept = np.mean((values >= found.low - room) & (values <= found.high + room))
    assert kept >= percent / 100 - 1 / len(values)
    assert values.min() <= found.low <= found.high <= values.max()


@FEW
@given(tensors())
def test_a_distribution_has_the_extremes_and_the_standard_deviation(values: Array) -> None:
    found = read(state_of(values), Scheme(FLOAT8E4M3FN, symmetric=True, method=Distribution()))
    assert (found.low, found.high) == (values.min(), values.max())
    assert found.std == pytest.approx(np.std(values.astype(np.float64)), rel=0.02, abs=state_of(values).width)


def divergence_by_definition(counts: npt.NDArray[np.float64], size: int, levels: int) -> float:
    """KL(P || Q) with loops, and what the values cut off diverge."""
    reference = counts[:size].copy()
    reference[-1] += counts[size:].sum()
    quantized = np.zeros(size)
    for level in range(levels):
        start, stop = level * size // levels, (level + 1) * size // levels
        filled = reference[start:stop] > 0
        if filled.any():
            quantized[start:stop][filled] = counts[start:stop].sum() / filled.sum()
    used = reference > 0
    if not quantized.any() or not np.all(quantized[used] > 0):
        return math.inf
    p, q = reference / reference.sum(), quantized / quantized.sum()
    return float(np.sum(p[used] * np.log(p[used] / q[used])) - math.log(counts[:size].sum() / counts.sum()))


@FEW
@given(tensors())
def test_entropy_is_as_good_as_trying_every_threshold(values: Array) -> None:
    bins, levels, scheme = 128, 16, Scheme(INT8, symmetric=True)
    counts, width = magnitudes(state_of(values), bins)
    if len(counts) <= levels:
        return
    step = float(affine.from_range(float(values.min()), float(values.max()), scheme).scale)
    error = step**2 / 12 * (1 - counts[0] / counts.sum())
    without_spike = counts.copy()
    without_spike[0] = min(counts[0], counts[1])
    far = (np.arange(len(counts)) + 1) * width + step / 2
    found = []
    for size in range(levels, len(counts) + 1):
        beyond = counts[size:] @ (far[size:] - size * width) ** 2 / counts.sum()
        assert clipping(counts, width, step)[size] == pytest.approx(beyond, rel=1e-6, abs=1e-6 * error)
        allowed = beyond <= 6.0 * error
        found.append(divergence_by_definition(without_spike, size, levels) if allowed else math.inf)
    chosen = best_threshold(counts, width, levels, step)
    assert found[round(chosen / width) - levels] <= min(found) + 1e-9


@FEW
@given(tensors(), st.sampled_from([(512, 64), (1024, 128), (2048, 128)]))
def test_entropy_keeps_at_least_what_its_divergence_is_worth(values: Array, size: tuple[int, int]) -> None:
    scheme = Scheme(UINT8, method=Entropy(*size))
    state = state_of(values)
    found = read(state, scheme)
    counts, width = magnitudes(state, size[0])
    if len(counts) <= size[1]:
        return
    counts[0] = min(counts[0], counts[1])
    threshold = max(-found.low, found.high)
    kept = counts[: max(math.ceil(threshold / width), size[1])].sum() / counts.sum()
    upto = max(math.ceil(threshold / width), size[1])
    assert kept >= math.exp(-divergence_by_definition(counts, upto, size[1])) - 1e-9


AWAY_FROM_ZERO: dict[str, Callable[[np.random.Generator], Any]] = {
    "normal around 3": lambda rng: rng.normal(3, 0.5, 20_000),
    "sigmoid": lambda rng: 1 / (1 + np.exp(-rng.normal(1, 1, 20_000))),
    "pixels": lambda rng: rng.uniform(16, 235, 20_000),
    "negative": lambda rng: rng.normal(-5, 0.1, 20_000),
}


@pytest.mark.parametrize("bins", [128, 512, 2048])
@pytest.mark.parametrize("name", AWAY_FROM_ZERO)
def test_data_away_from_zero_keeps_its_range_by_entropy(name: str, bins: int) -> None:
    values = AWAY_FROM_ZERO[name](np.random.default_rng(0)).astype(np.float32)
    for levels in (64, 128):
        found = read(state_of(values), Scheme(UINT8, method=Entropy(bins, levels)))
        assert np.mean((values >= found.low) & (values <= found.high)) > 0.98


@pytest.mark.parametrize("name", ["normal", "laplace"])
def test_zeros_do_not_change_the_range_by_entropy(name: str) -> None:
    rng = np.random.default_rng(0)
    values = np.abs(KINDS[name](rng, 20_000)).astype(np.float32)
    scheme = Scheme(UINT8, method=Entropy(2048, 128))
    mostly_zero = np.concatenate([values, np.zeros(180_000, np.float32)])
    assert read(state_of(mostly_zero), scheme).high == read(state_of(values), scheme).high


# ---- the drop-in


def by_collector(package: Any, values: Array, method: str, bins: int, symmetric: bool) -> Range:
    collector = package.HistogramCollector(method, symmetric, bins, 128, 99.999, "same")
    collector.collect({"x": [values]})
    found = collector.compute_collection_result()["x"]
    low, high = found.range_value if hasattr(found, "range_value") else found[:2]
    return Range(float(low), float(high))


@FEW
@given(tensors(), st.sampled_from([128, 129, 255, 512, 777, 2048, 4095]))
def test_the_collector_errs_at_most_three_times_as_much_as_min_max_at_any_bin_count(
    values: Array, bins: int
) -> None:
    found = by_collector(calibrate, values, "entropy", bins, False)
    assert error_of(values, found, Scheme(UINT8)) <= 3 * error_of_extremes(values, Scheme(UINT8)) * (1 + 1e-6)


@pytest.mark.peer
@settings(FEW, max_examples=int(EXAMPLES or 15))
@given(values=tensors(), bins=st.sampled_from([128, 129, 255, 256, 512, 777, 1024]))
def test_the_collector_agrees_with_stock_where_stock_is_right(values: Array, bins: int) -> None:
    stock = pytest.importorskip("onnxruntime.quantization.calibrate")
    if values.min() == values.max():
        return  # stock fails there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = by_collector(stock, values, "entropy", bins, False)
    if theirs.low > theirs.high:
        return  # both ends on one side of the data, the wrong way round
    scheme = Scheme(UINT8)
    ours = by_collector(calibrate, values, "entropy", bins, False)
    extremes, right = error_of_extremes(values, scheme), error_of(values, theirs, scheme)
    if right <= 3 * extremes:
        assert error_of(values, ours, scheme) <= 3 * max(extremes, right)
        if bins <= 129:  # no more bins than levels: one threshold to choose from
            assert ours[:2] == pytest.approx(theirs[:2], rel=0.02)


@pytest.mark.peer
@pytest.mark.parametrize("bins", [128, 256, 512, 1024])
@pytest.mark.parametrize("name", AWAY_FROM_ZERO)
def test_the_collector_agrees_with_stock_at_every_bin_count_on_data_away_from_zero(
    name: str, bins: int
) -> None:
    stock = pytest.importorskip("onnxruntime.quantization.calibrate")
    values = AWAY_FROM_ZERO[name](np.random.default_rng(0)).astype(np.float32)
    ours, theirs = (by_collector(package, values, "entropy", bins, False) for package in (calibrate, stock))
    assert ours[:2] == pytest.approx(theirs[:2], abs=0.05 * float(np.abs(values).max()))


@FEW
@given(tensors(), st.sampled_from(["entropy", "percentile"]))
def test_a_symmetric_range_is_symmetric_about_zero(values: Array, method: str) -> None:
    found = by_collector(calibrate, values, method, 512, True)
    assert found.low == -found.high


def test_percentiles_without_a_word_on_symmetry_end_at_the_extremes() -> None:
    method = calibrate.CalibrationMethod.Percentile
    unset = calibrate.calibrator_of(method, {}, _identity())
    given_ = calibrate.calibrator_of(method, {"symmetric": True}, _identity())
    for calibrator, expected in ((unset, (-0.5, 2.0)), (given_, (-2.0, 2.0))):
        assert isinstance(calibrator, calibrate.HistogramCalibrater)
        calibrator.collector.collect({"y": np.linspace(-0.5, 2.0, 1000, dtype=np.float32)})
        found = calibrator.collector.compute_collection_result()["y"]
        assert isinstance(found, tuple)
        assert found[:2] == pytest.approx(expected, abs=0.01)


def _identity() -> Any:
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


# ---- what the user is told


def test_a_range_that_keeps_less_than_half_is_told_by_tensor() -> None:
    values = np.linspace(1, 2, 1000, dtype=np.float32)
    states = {"layer/x": state_of(values), "layer/y": state_of(values)}
    narrow = narrow_ranges(states, {"layer/x": Range(1.0, 1.2), "layer/y": Range(1.0, 1.9)})
    assert list(narrow) == ["layer/x"]
    assert narrow["layer/x"] == pytest.approx(0.2, abs=0.01)
    assert "'layer/x' (20%)" in narrow_ranges_note(narrow)


def test_the_collector_warns_of_a_range_that_keeps_less_than_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.quantization._collector.read", lambda *_: Range(0.0, 1.0))
    collector = calibrate.HistogramCollector("percentile", False, 2048, 128, 99.9, "same")
    collector.collect({"layer/x": np.linspace(-1, 2, 1000, dtype=np.float32)})
    with pytest.warns(QuantizationWarning, match="less than half of their values: 'layer/x' "):
        collector.compute_collection_result()


def test_a_cache_with_a_range_that_keeps_less_than_half_is_told_by_tensor(tmp_path: Path) -> None:
    method = calibrate.CalibrationMethod.Percentile
    edges, counts = np.linspace(-2, 2, 9, dtype=np.float32), np.full(8, 100)
    ranges = {"x": (-0.4, 0.4, counts, edges), "y": (-2.0, 2.0, counts, edges)}
    cache, reader = tmp_path / "cache.json", None
    calibrate.save_tensors_data(calibrate.TensorsData(method, ranges), cache)
    with pytest.warns(QuantizationWarning, match="less than half of their values: 'x' ") as caught:
        quantize_static(
            _identity(), tmp_path / "q.onnx", reader, calibrate_method=method, calibration_cache_path=cache
        )
    assert not any("'y'" in str(one.message) for one in caught)


def test_min_max_keeps_everything() -> None:
    state = state_of(np.linspace(-1, 2, 1000, dtype=np.float32))
    assert not narrow_ranges({"x": state}, {"x": read(state, Scheme(UINT8, method=MinMax()))})
    assert QuantType.QUInt8.qtype == UINT8
