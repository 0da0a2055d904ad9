"""Runs beside each other: results come in order, errors too, and nothing is left behind."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from builders import model, node, tensor

from octavo import calibration
from octavo.calibration import lanes as lanes_module
from octavo.calibration.lanes import Lanes, Outputs
from octavo.core.stats import Need
from octavo.errors import DataError
from octavo.model import io


def outputs(number: int) -> Outputs:
    return {"y": np.full(1, number)}


def taken(lanes: Lanes, delays: list[float]) -> list[int]:
    found: list[int] = []

    def run(number: int) -> Outputs:
        time.sleep(delays[number])
        return outputs(number)

    for number in range(len(delays)):
        lanes.put(lambda number=number: run(number), lambda values: found.append(int(values["y"][0])))
    lanes.settle()
    return found


@pytest.mark.parametrize("wide", [True, False])
def test_results_are_taken_in_the_order_of_the_samples(wide: bool) -> None:
    lanes = Lanes(wide=wide)
    assert taken(lanes, [0.0, 0.05, 0.0, 0.03, 0.0, 0.0, 0.02]) == list(range(7))
    lanes.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("octavo-lane")]


def test_a_long_first_run_keeps_the_others_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "_QUICK", 0.01)
    lanes, where = Lanes(wide=True), set()
    for delay in (0.02, 0.0, 0.0):
        lanes.put(
            lambda delay=delay: (time.sleep(delay), where.add(threading.current_thread()), outputs(0))[2],
            lambda _: None,
        )
    lanes.close()
    assert where == {threading.current_thread()}


def test_much_that_is_given_keeps_the_others_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "_SMALL", 4)
    lanes, where = Lanes(wide=True), set()
    for _ in range(3):
        lanes.put(lambda: (where.add(threading.current_thread()), outputs(0))[1], lambda _: None)
    lanes.close()
    assert where == {threading.current_thread()}


def test_an_error_comes_when_its_sample_is_taken() -> None:
    lanes = Lanes(wide=True)
    found: list[int] = []

    def fails() -> Outputs:
        raise DataError("sample 2 is no good")

    lanes.put(lambda: outputs(0), lambda values: found.append(0))
    lanes.put(lambda: outputs(1), lambda values: found.append(1))
    lanes.put(fails, lambda values: found.append(2))
    with pytest.raises(DataError, match="sample 2"):
        lanes.settle()
    assert found == [0, 1]
    lanes.close()


def observed() -> calibration.Stats:
    rng = np.random.default_rng(0)
    w = {"w": rng.standard_normal((8, 8)).astype(np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["h"], "fc"), node("Tanh", ["h"], ["y"], "tanh")]
    proto = model(nodes, [tensor("x", ["n", 8])], [tensor("y", ["n", 8])], w)
    buffer = np.zeros((4, 8), np.float32)

    def samples():  # one array that is used again and again
        for _ in range(40):
            buffer[:] = rng.standard_normal((4, 8)) * 10 ** rng.uniform(-1, 2)
            yield {"x": buffer}

    need = Need(histogram=True, channels=1)
    return calibration.collect(io.load(proto), {"x": need, "h": need}, samples())


def test_statistics_do_not_depend_on_how_many_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = observed()
    monkeypatch.setattr("octavo.calibration.run._is_wide", lambda **_: False)
    assert found.to_bytes() == observed().to_bytes()


def test_a_sample_that_overflows_is_looked_at_closer_with_others_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = {"w": np.eye(8, dtype=np.float32) * 1e20}
    proto = model([node("MatMul", ["x", "w"], ["y"], "fc")], [tensor("x", [1, 8])], [tensor("y", [1, 8])], w)
    samples = [{"x": np.full((1, 8), float(i), np.float32)} for i in range(12)]
    samples[5]["x"][:] = 1e19  # infinite behind the product
    need = {"y": Need(histogram=True)}
    wide = calibration.collect(io.load(proto), need, samples)
    monkeypatch.setattr("octavo.calibration.run._is_wide", lambda **_: False)
    assert wide.to_bytes() == calibration.collect(io.load(proto), need, samples).to_bytes()
    assert wide["y"].non_finite
