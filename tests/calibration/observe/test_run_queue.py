"""Runs beside each other: results come in order, errors too, and nothing is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from builders import model, node, tensor

from octavo import calibration
from octavo.calibration.gather import _Merger
from octavo.calibration.observe import run_queue
from octavo.calibration.observe.run_queue import Outputs, RunQueue
from octavo.core.requests import Histogram, Request
from octavo.core.stats import Stats
from octavo.data.fingerprints import FingerprintedSamples
from octavo.data.shards import Portion, Shards
from octavo.errors import DataError
from octavo.model.files import io
from octavo.model.runtime.session import InputSpec


def outputs(number: int) -> Outputs:
    return {"y": np.full(1, number)}


def taken(queue: RunQueue, delays: list[float]) -> list[int]:
    found: list[int] = []

    def run(number: int) -> Outputs:
        time.sleep(delays[number])
        return outputs(number)

    for number in range(len(delays)):
        queue.put(lambda number=number: run(number), lambda values: found.append(int(values["y"][0])))
    queue.finish()
    return found


@pytest.mark.parametrize("concurrent", [True, False])
def test_results_are_taken_in_the_order_of_the_samples(concurrent: bool) -> None:
    queue = RunQueue(concurrent=concurrent)
    assert taken(queue, [0.0, 0.05, 0.0, 0.03, 0.0, 0.0, 0.02]) == list(range(7))
    queue.cancel()
    assert not [t for t in threading.enumerate() if t.name.startswith("octavo-run")]


def test_a_long_first_run_keeps_the_others_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_queue, "_MAX_SECONDS", 0.01)
    queue, where = RunQueue(concurrent=True), set()
    for delay in (0.02, 0.0, 0.0):
        queue.put(
            lambda delay=delay: (time.sleep(delay), where.add(threading.current_thread()), outputs(0))[2],
            lambda _: None,
        )
    queue.cancel()
    assert where == {threading.current_thread()}


@pytest.mark.parametrize(("least", "threads"), [(60.0, False), (0.0, True)])
def test_few_short_runs_start_no_threads(
    monkeypatch: pytest.MonkeyPatch, least: float, threads: bool
) -> None:
    monkeypatch.setattr(run_queue, "_LEAST_SECONDS", least)
    queue, where = RunQueue(concurrent=True, few_runs=True), set()
    for _ in range(3):
        queue.put(lambda: (where.add(threading.current_thread()), outputs(0))[1], lambda _: None)
    queue.finish()
    assert (where != {threading.current_thread()}) is threads


def test_much_that_is_given_keeps_the_others_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_queue, "_MAX_BYTES", 4)
    queue, where = RunQueue(concurrent=True), set()
    for _ in range(3):
        queue.put(lambda: (where.add(threading.current_thread()), outputs(0))[1], lambda _: None)
    queue.cancel()
    assert where == {threading.current_thread()}


def test_an_error_comes_when_its_sample_is_taken() -> None:
    queue = RunQueue(concurrent=True)
    found: list[int] = []

    def fails() -> Outputs:
        raise DataError("sample 2 is no good")

    queue.put(lambda: outputs(0), lambda values: found.append(0))
    queue.put(lambda: outputs(1), lambda values: found.append(1))
    queue.put(fails, lambda values: found.append(2))
    with pytest.raises(DataError, match="sample 2"):
        queue.finish()
    assert found == [0, 1]
    queue.cancel()


def observed() -> Stats:
    rng = np.random.default_rng(0)
    w = {"w": rng.standard_normal((8, 8)).astype(np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["h"], "fc"), node("Tanh", ["h"], ["y"], "tanh")]
    proto = model(nodes, [tensor("x", ["n", 8])], [tensor("y", ["n", 8])], w)
    buffer = np.zeros((4, 8), np.float32)

    def samples() -> Iterator[dict[str, np.ndarray]]:  # one array that is used again and again
        for _ in range(40):
            buffer[:] = rng.standard_normal((4, 8)) * 10 ** rng.uniform(-1, 2)
            yield {"x": buffer}

    need = Request(Histogram(), channels=1)
    return calibration.collect(io.load(proto), {"x": need, "h": need}, samples())


def test_statistics_do_not_depend_on_how_many_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = observed()
    monkeypatch.setattr("octavo.calibration.observe.collect._can_be_concurrent", lambda **_: False)
    assert found.to_bytes() == observed().to_bytes()


def test_a_sample_that_overflows_is_looked_at_closer_with_others_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = {"w": np.eye(8, dtype=np.float32) * 1e20}
    proto = model([node("MatMul", ["x", "w"], ["y"], "fc")], [tensor("x", [1, 8])], [tensor("y", [1, 8])], w)
    samples = [{"x": np.full((1, 8), float(i), np.float32)} for i in range(12)]
    samples[5]["x"][:] = 1e19  # infinite behind the product
    need = {"y": Request(Histogram())}
    wide = calibration.collect(io.load(proto), need, samples)
    monkeypatch.setattr("octavo.calibration.observe.collect._can_be_concurrent", lambda **_: False)
    assert wide.to_bytes() == calibration.collect(io.load(proto), need, samples).to_bytes()
    assert wide["y"].non_finite


@pytest.mark.parametrize("large", ["result", "sample"])
def test_a_large_result_or_sample_ends_it(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_queue, "_MAX_BYTES", 100)
    queue, found = RunQueue(concurrent=True), list[int]()
    for number in range(8):
        is_large = number == 4
        values = {"y": np.full(100 if is_large and large == "result" else 1, number)}
        size = 100 if is_large and large == "sample" else 0
        queue.put(lambda values=values: values, lambda got: found.append(int(got["y"][0])), size)
        assert queue.is_concurrent or number >= 4
    assert not queue.is_concurrent
    assert found == list(range(8))


def test_a_generator_draws_in_the_order_of_the_samples() -> None:
    nodes = [
        node("RandomUniformLike", ["x"], ["r"], "noise", seed=1.0),
        node("Mul", ["x", "r"], ["y"], "mul"),
    ]
    proto = model(nodes, [tensor("x", [1, 64])], [tensor("y", [1, 64])], {})
    samples = [{"x": np.full((1, 64), float(i), np.float32)} for i in range(100)]
    need = {"y": Request(Histogram())}
    found = {calibration.collect(io.load(proto), need, samples).to_bytes() for _ in range(4)}
    assert len(found) == 1


def test_what_is_wrong_with_a_sample_is_said_before_what_is_wrong_with_the_next() -> None:
    proto = model([node("Log", ["x"], ["y"], "log")], [tensor("x", [1, 4])], [tensor("y", [1, 4])], {})
    samples = [{"x": np.ones((1, 4), np.float32)} for _ in range(5)]
    samples[3]["x"][:] = -1
    samples[4]["x"] = np.ones((1, 5), np.float32)
    with pytest.raises(DataError, match="in sample 3"):
        calibration.collect(io.load(proto), {"y": Request(Histogram())}, samples)


def test_samples_for_other_processes_are_copies() -> None:
    """A reader may fill one array again and again."""
    spec = InputSpec("x", np.dtype(np.float32), (1,))
    buffer = np.zeros(1, np.float32)

    def samples() -> Iterator[dict[str, np.ndarray]]:
        for number in range(12):
            buffer[:] = number
            yield {"x": buffer}

    shards = Shards(FingerprintedSamples(samples(), [spec]), 0, None, (), 2).elsewhere()
    portions = [shard for shard in shards if isinstance(shard, Portion)]
    assert [float(one["x"][0]) for portion in portions for one in portion.samples] == list(range(12))


def test_a_merge_that_is_interrupted_loses_nothing() -> None:
    class Interrupted(Stats):
        def merge(self, other: Stats) -> Stats:
            raise KeyboardInterrupt

    pile = _Merger()
    first = Interrupted({}, 4)
    pile.add(first)
    with pytest.raises(KeyboardInterrupt):
        pile.add(Stats({}, 3))
    assert pile.samples == 4
    assert pile.total() is first
