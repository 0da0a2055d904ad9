"""Of large maps a lattice is counted: the same places however the data comes, and extremes of all values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor

import octavo
from calibration.graphs import fetch, normal
from octavo.calibration import collect, sampled
from octavo.calibration.observe.augment import augment
from octavo.calibration.observe.collect import Collector
from octavo.calibration.observe.observing_session import observations_of
from octavo.calibration.statistics import HistogramState
from octavo.core.requests import Extremes, Histogram, Lattice, Request
from octavo.core.stats import Stats
from octavo.errors import DataError, RecipeError
from octavo.model.files.serialize import skeleton

MAPS = ("x", "c1", "r1", "c2", "sum", "r2")


def network(side: int = 56, batch: int | str = "n") -> onnx.ModelProto:
    """Two convolutions with a sum around the second; 16 channels of side × side."""
    rng = np.random.default_rng(7)
    weights = {
        "w1": rng.standard_normal((16, 3, 3, 3)).astype(np.float32) / 4,
        "w2": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 8,
    }
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        node("Add", ["c2", "r1"], ["sum"]),
        node("Relu", ["sum"], ["r2"]),
        node("GlobalAveragePool", ["r2"], ["y"]),
    ]
    return model(nodes, [tensor("x", [batch, 3, side, side])], [tensor("y", [batch, 16, 1, 1])], weights)


def feeds(count: int, side: int = 56) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((1, 3, side, side)).astype(np.float32)} for _ in range(count)]


def prepared(side: int = 56) -> Any:
    loaded = normal(onnx.shape_inference.infer_shapes(network(side)))
    return loaded, dict.fromkeys(MAPS, Request(Histogram()))


def test_a_lattice_without_zeros_does_not_tell_the_minimum() -> None:
    proto = model(
        [node("Relu", ["x"], ["y"])], [tensor("x", [1, 16, 56, 56])], [tensor("y", [1, 16, 56, 56])]
    )
    loaded = normal(proto)
    x = np.ones((1, 16, 56, 56), np.float32)
    x[0, 1, 3, 5] = 0.5
    for need in (
        Request(Histogram(subset=Lattice(2))),
        Request(Histogram(Extremes(each_sample=True), subset=Lattice(2))),
    ):
        with Collector(loaded, {"y": need}, threads=1) as collector:
            stats = collector.collect([{"x": x}, {"x": x - 1}])
        assert (stats["y"].low, stats["y"].high) == (0, 1)
        first = collect(loaded, {"y": need}, [{"x": x}])
        assert (first["y"].low, first["y"].high) == (0.5, 1)


def test_of_a_large_map_every_so_many_th_place_is_counted_and_extremes_are_of_all() -> None:
    loaded, needs = prepared()
    wanted = sampled(loaded, needs, None)
    subsets = {name: request.subset for name, request in wanted.items()}
    assert subsets == {"x": None, **dict.fromkeys(MAPS[1:], Lattice(3))}
    data = feeds(3)
    values = fetch(normal(network()), list(MAPS[1:]), data)
    stats = collect(loaded, wanted, data)
    for name, samples in values.items():
        expected = HistogramState()
        for sample in samples:
            expected.update(sample[:, :, ::3, ::3])
        state = stats[name]
        assert isinstance(state, HistogramState)
        assert state.low == pytest.approx(min(s.min() for s in samples), rel=1e-5)
        assert state.high == pytest.approx(max(s.max() for s in samples), rel=1e-5)
        assert state.total == sum(s[:, :, ::3, ::3].size for s in samples)
        rise = 1 << (state.exponent - expected.exponent)  # the extremes may lie elsewhere
        first, counts = expected.bins()
        edges = np.repeat(np.arange(first, first + len(counts)) // rise, counts)
        begin, found = state.bins()
        places = np.repeat(np.arange(begin, begin + len(found)), found)
        assert np.abs(places - edges).max() <= 1  # the runtime may round a sum otherwise


def test_batches_and_splits_give_the_same_bits() -> None:
    loaded, needs = prepared()
    wanted = sampled(loaded, needs, None)
    data = feeds(4)
    whole = collect(loaded, wanted, data)
    parts = collect(loaded, wanted, data[:1]).merge(collect(loaded, wanted, data[1:], first=1))
    assert parts.to_bytes() == whole.to_bytes()
    batch = collect(loaded, wanted, [{"x": np.concatenate([feed["x"] for feed in data])}])
    for name in MAPS:
        one, other = batch[name], whole[name]
        assert isinstance(one, HistogramState)
        assert isinstance(other, HistogramState)
        assert (one.low, one.high, one.exponent) == (other.low, other.high, other.exponent)
        assert np.array_equal(one.bins()[1], other.bins()[1])


def test_outputs_about_the_first_maps_are_made_by_the_last_nodes() -> None:
    """So the runtime computes them first, and lets go of the maps."""
    loaded, requests = prepared()
    proto = skeleton(loaded, 10)
    augmented = augment(proto, observations_of(loaded, sampled(loaded, requests, None)))
    maker = {name: place for place, one in enumerate(proto.graph.node) for name in one.output}
    places = [maker[augmented.values[tensor]] for tensor in MAPS]
    assert places == sorted(places, reverse=True)


def test_extremes_of_each_sample_come_with_it() -> None:
    loaded, _ = prepared()
    needs = sampled(loaded, {"r1": Request(Histogram(Extremes(each_sample=True)))}, None)
    data = feeds(3)
    state: Any = collect(loaded, needs, data)["r1"]
    values = fetch(normal(network()), ["r1"], data)["r1"]
    highs = state.extremes.records["high"].tolist()
    assert highs == pytest.approx([v.max() for v in values], rel=1e-5)


def test_nan_beside_the_lattice_is_found() -> None:
    loaded, needs = prepared()
    wanted = sampled(loaded, {"r2": needs["r2"]}, None)
    data = feeds(1)
    data[0]["x"][0, 0, 1, 1] = np.nan
    with pytest.raises(DataError, match="NaN"):
        collect(loaded, wanted, data)


def test_an_infinity_is_noted_and_not_counted() -> None:
    loaded, needs = prepared()
    data = feeds(1)
    data[0]["x"][0, 0, 30, 30] = 3e38
    data[0]["x"][0, 0, 30, 31] = -3e38
    state = collect(loaded, sampled(loaded, {"c2": needs["c2"]}, None), data)["c2"]
    assert state.non_finite or state.high > 1e37


def test_small_maps_and_tensors_that_are_no_maps_are_counted_whole() -> None:
    loaded, needs = prepared(side=12)
    assert all(request.subset is None for request in sampled(loaded, needs, None).values())
    nodes = [node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]), node("Relu", ["t"], ["y"])]
    rows = model(nodes, [tensor("x", [1, 64, 56, 56])], [tensor("y", [1, 56, 56, 64])])
    needs = dict.fromkeys(("x", "t", "y"), Request(Histogram()))
    assert all(request.subset is None for request in sampled(normal(rows), needs, None).values())


def test_what_needs_all_values_gets_them() -> None:
    loaded, _ = prepared()
    needs = {
        "r1": Request(Histogram(), channels=1),
        "r2": Request(Histogram(), moments=True),
        "c1": Request(),
    }
    assert sampled(loaded, needs, None) == needs


def test_a_stride_of_one_counts_every_value() -> None:
    loaded, needs = prepared()
    stats = collect(loaded, sampled(loaded, needs, 1), feeds(1))
    state = stats["r1"]
    assert isinstance(state, HistogramState)
    assert state.total == 16 * 56 * 56
    with pytest.raises(RecipeError, match="counts nothing"):
        sampled(loaded, needs, 0)


def test_statistics_of_a_lattice_are_saved_and_not_mixed_with_others() -> None:
    plan = octavo.plan(network())
    way: dict[str, Any] = {"every_method": True, "engine": "serial"}
    some = octavo.calibrate(network(), plan, feeds(2), **way)
    again = octavo.calibrate(network(), plan, feeds(2), **{**way, "engine": "processes"}, workers=2)
    every = octavo.calibrate(network(), plan, feeds(2), **way, stride=1)
    assert some.to_bytes() == again.to_bytes()
    assert {state.lattice for state in some.values() if isinstance(state, HistogramState)} == {1, 3}
    with pytest.raises(octavo.TableError):
        Stats(dict(some)).merge(Stats(dict(every)))
