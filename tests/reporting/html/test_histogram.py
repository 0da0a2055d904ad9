"""Histograms for the page: few bins, nothing lost."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.calibration.statistics import HistogramState
from octavo.calibration.statistics.extremes import ExtremesState
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT8
from octavo.reporting.html import histogram


def state_of(values: np.ndarray) -> HistogramState:
    state = HistogramState()
    state.update(values.astype(np.float32))
    return state


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
@pytest.mark.parametrize("shift", [0.0, 3.0, -40.0])
def test_joined_bins_hold_every_value_in_its_place(scale: float, shift: float) -> None:
    values = np.random.default_rng(0).standard_normal(5000) * scale + shift * scale
    made = histogram.of_state(state_of(values))
    assert made is not None
    counts, low, width = np.array(made["counts"]), made["low"], made["width"]
    assert 0 < len(counts) <= histogram.BINS
    assert counts.sum() == values.size
    edges = low + width * np.arange(len(counts) + 1)
    again, _ = np.histogram(values.astype(np.float32).astype(np.float64), bins=edges)
    np.testing.assert_array_equal(counts, again)


def test_extremes_alone_make_no_histogram() -> None:
    assert histogram.of_state(ExtremesState(0.0, 1.0)) is None
    assert histogram.of_state(HistogramState()) is None


def test_nothing_but_zeros_is_one_bin() -> None:
    made = histogram.of_state(state_of(np.zeros(7)))
    assert made is not None
    assert made["counts"] == [7]


def test_a_constant_weight_and_infinities_make_no_trouble() -> None:
    assert histogram.of_values(np.array([np.inf, np.nan])) is None
    made = histogram.of_values(np.array([2.0, 2.0, np.inf]))
    assert made is not None
    assert made["counts"] == [2]
    assert made["low"] < 2.0 < made["low"] + made["width"]


@pytest.mark.parametrize(
    ("granularity", "shape"),
    [(PerTensor(), ()), (PerChannel(0), (6,)), (PerChannel(1), (8,)), (PerBlock(4, 1), (6, 2))],
)
def test_stored_weights_stand_for_scale_times_integer(
    granularity: Granularity, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(1)
    stored = rng.integers(-127, 127, (6, 8)).astype(np.int8)
    scale = rng.uniform(0.1, 1, shape).astype(np.float32)
    zero = rng.integers(-3, 3, shape).astype(np.int8)
    spread = [
        np.broadcast_to(part.reshape(6, 1) if granularity == PerChannel(0) else part, (6, 8))
        if not isinstance(granularity, PerBlock)
        else np.repeat(part, 4, axis=1)
        for part in (scale.astype(np.float64), zero.astype(np.float64))
    ]
    want = (stored - spread[1]) * spread[0]
    got = histogram.real_values(stored, QParams(scale, zero, INT8, granularity))
    np.testing.assert_allclose(got, want.reshape(-1))


def test_of_a_large_weight_evenly_spread_values_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histogram, "MAX_VALUES", 10)
    stored = np.arange(100, dtype=np.int8).reshape(10, 10)
    params = QParams(np.float32(1), np.int8(0), INT8)
    assert histogram.real_values(stored, params).tolist() == list(range(0, 100, 10))
