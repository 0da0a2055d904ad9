"""What is needed of some samples only: which they are, and that the rest is as if all were looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor

from calibration.graphs import normal
from octavo.algorithms.layers.input_moments import probe_sum as total_of
from octavo.calibration import collect, gather
from octavo.calibration.engines import engine_of
from octavo.calibration.observe.collect import Collector
from octavo.calibration.observe.sampling import number_among_some
from octavo.core.requests import Extremes, Histogram, Request
from octavo.core.stats import Stats
from octavo.data.fingerprints import FingerprintedSamples
from octavo.errors import DataError
from octavo.model.runtime.samples import specs_of

OFTEN = {"x": Request(Histogram()), "a": Request(Extremes(each_sample=True)), "b": Request()}
SELDOM = {"c": Request(Histogram(), some_samples=True), "y": Request(sums=True, some_samples=True)}


def network() -> Any:
    w = {"w": np.eye(4, dtype=np.float32) * 2}
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Neg", ["b"], ["c"]),
        node("Exp", ["c"], ["y"]),
    ]
    proto = model(nodes, [tensor("x", ["n", 4])], [tensor("y", ["n", 4])], w)
    return normal(onnx.shape_inference.infer_shapes(proto))


def samples(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    return [{"x": rng.standard_normal((2, 4)).astype(np.float32) * (1 + i % 7)} for i in range(count)]


@pytest.mark.parametrize("total", [1, 63, 64, 65, 100, 256, 1000])
def test_samples_are_picked_evenly(total: int) -> None:
    places = [number_among_some(index, total) for index in range(total)]
    picked = np.flatnonzero([at is not None for at in places])
    assert [at for at in places if at is not None] == list(range(len(picked)))
    assert len(picked) == min(total, 64)
    assert picked[0] == 0
    gaps = np.diff([*picked, total])
    assert gaps.max() - gaps.min() <= 1


def test_where_nobody_knows_how_many_there_are_the_first_are_picked_and_some_of_the_others() -> None:
    picked = {index: at for index in range(100) if (at := number_among_some(index, None)) is not None}
    assert list(picked) == [*range(32), *range(32, 100, 8)]
    assert list(picked.values()) == list(range(len(picked)))


@pytest.mark.parametrize("length", ["told", "unknown"])
def test_what_is_needed_of_all_samples_is_the_same_to_the_bit(length: str) -> None:
    data = samples(200)
    source: Any = data if length == "told" else iter(data)
    both = collect(network(), {**OFTEN, **SELDOM}, source)
    alone = collect(network(), OFTEN, data)
    assert both.samples == alone.samples == 200
    assert Stats({name: both[name] for name in OFTEN}).to_bytes() == Stats(alone).to_bytes()


@pytest.mark.parametrize("length", ["told", "unknown"])
def test_what_is_needed_of_some_is_what_those_show(length: str) -> None:
    data = samples(200)
    total = 200 if length == "told" else None
    found = collect(network(), {**OFTEN, **SELDOM}, data if total else iter(data))
    picked = [index for index in range(200) if number_among_some(index, total) is not None]
    assert found["c"].count == found["y"].count == len(picked)
    exact = sum(np.exp(-np.maximum(data[i]["x"].astype(np.float64) * 2, 0)) for i in picked)
    np.testing.assert_allclose(total_of(found, "y"), exact, rtol=1e-6)


def test_samples_that_nothing_is_needed_of_are_counted() -> None:
    found = collect(network(), SELDOM, samples(100))
    assert found.samples == 100
    assert found["c"].count == 64


def test_an_array_that_is_used_again_for_the_next_sample_does_no_harm() -> None:
    data = samples(150)

    def reused() -> Iterator[dict[str, Any]]:
        array = np.empty((2, 4), np.float32)
        for sample in data:
            array[:] = sample["x"]
            yield {"x": array}

    wanted = {**OFTEN, **SELDOM}
    found, exact = collect(network(), wanted, reused()), collect(network(), wanted, iter(data))
    assert found.to_bytes() == exact.to_bytes()


def test_any_engine_gives_the_same_bits() -> None:
    wanted = {**OFTEN, **SELDOM}
    serial = collect(network(), wanted, samples(150))
    for workers in (1, 2):
        watched = FingerprintedSamples(samples(150), specs_of(network()))
        found = gather(network(), wanted, watched, engine_of("processes", workers, None, 1))
        assert found.to_bytes() == serial.to_bytes()


def test_nan_in_a_sample_that_waits_is_told_with_its_index() -> None:
    data = samples(128)
    wide = {"x": np.full((2, 4), 3e38, np.float32)}
    nodes = [node("Add", ["x", "x"], ["a"]), node("Sub", ["a", "a"], ["y"])]
    loaded = normal(model(nodes, [tensor("x", ["n", 4])], [tensor("y", ["n", 4])]))
    data[6] = wide
    needs = {"a": Request(), "y": Request(sums=True, some_samples=True)}
    with pytest.raises(DataError, match=r"'y' has NaN .* sample 6 "):
        collect(loaded, needs, data)


def test_sums_over_some_samples_stay_small() -> None:
    found = collect(network(), SELDOM, iter(samples(600)))
    assert len(found["y"].parts["totals"]._nodes) < 10  # type: ignore[attr-defined]


def test_a_model_that_is_not_held_twice_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {**OFTEN, **SELDOM}
    twice = collect(network(), wanted, samples(150))
    monkeypatch.setattr("octavo.calibration.observe.collect._MAX_IN_TWO_SESSIONS", 0)
    assert collect(network(), wanted, samples(150)).to_bytes() == twice.to_bytes()


def test_progress_tells_samples_that_were_seen() -> None:
    told: list[int] = []
    collect(network(), {**OFTEN, **SELDOM}, samples(100), progress=lambda done, _: told.append(done))
    assert told == sorted(told)
    assert told[-1] == 100
    assert told[0] < 10


def test_what_a_failed_portion_left_is_forgotten() -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield {"x": np.full((2, 4), 100, np.float32)}
        raise OSError("the disk is gone")

    with Collector(network(), {**OFTEN, **SELDOM}, total=100) as collector:
        with pytest.raises(OSError, match="disk"):
            collector.collect(broken())
        found = collector.collect(samples(3))
    assert found["x"].high < 50


def test_arrays_read_ahead_may_be_used_again() -> None:
    nodes = [node("Relu" if i % 2 else "Neg", [f"t{i}" if i else "x"], [f"t{i + 1}"]) for i in range(220)]
    loaded = normal(model(nodes, [tensor("x", [1])], [tensor("t220", [1])]))

    def reused() -> Iterator[dict[str, Any]]:
        array = np.empty(1, np.float32)
        for value in (-10, 5, -7):
            array[:] = value
            yield {"x": array}

    found = collect(loaded, {"x": Request()}, reused())
    assert (found["x"].low, found["x"].high) == (-10, 5)
