"""Trials beside the float model: whose answers are counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from octavo.calibration.engines.protocol import Serial
from octavo.model.runtime.session import Session
from octavo.tuning.fidelity import Fidelity, with_answers_of
from octavo.tuning.measure import MAX_MORE, Reference
from octavo.tuning.requirements import COUNTED_ANSWERS
from octavo.tuning.split import Feed

CLASSES = 6


def scores(path: Path, shift: float) -> Path:
    """Scores of classes, all of them moved by as much: other numbers, the same best class."""
    weight = np.random.default_rng(0).normal(size=(8, CLASSES)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "scores",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.full(CLASSES, shift, np.float32), "b"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


class Samples:
    """Samples that can be gone through again, and how many were taken."""

    def __init__(self, count: int) -> None:
        self.count, self.taken = count, 0

    def __iter__(self) -> Iterator[Feed]:
        for number in range(self.count):
            self.taken += 1
            yield {"x": np.random.default_rng(100 + number).normal(size=(1, 8)).astype(np.float32)}


def judged(folder: Path, shift: float, more: Samples) -> Fidelity:
    held = [{"x": np.random.default_rng(n).normal(size=(1, 8)).astype(np.float32)} for n in range(8)]
    session = Session.open(scores(folder / "float.onnx", 0.0), threads=1)
    scores(folder / "0.onnx", shift)
    reference = Reference(session, held, folder, more)
    return reference.fidelity(["0.onnx"], Serial())["0.onnx"]


def test_answers_of_calibration_are_counted_where_those_held_back_are_few(tmp_path: Path) -> None:
    more = Samples(200)
    found = judged(tmp_path, 0.6, more)
    assert 10 < found.sqnr_db < 20 and found.agreement == 1.0
    assert found.places == 8 + COUNTED_ANSWERS and more.taken == COUNTED_ANSWERS <= MAX_MORE


@pytest.mark.parametrize("shift", [0.01, 3.0])  # close enough in decibels, and too far for any answers
def test_samples_of_calibration_are_run_only_where_answers_decide(tmp_path: Path, shift: float) -> None:
    more = Samples(200)
    assert judged(tmp_path, shift, more).places == 8
    assert more.taken == 0


def test_without_further_samples_the_answers_stay_few(tmp_path: Path) -> None:
    assert judged(tmp_path, 0.6, Samples(3)).places == 11
    assert judged(tmp_path, 0.6, Samples(0)).places == 8


def test_answers_of_samples_that_calibration_has_fitted_never_raise_the_share() -> None:
    held, seen = Fidelity(15.0, 0.9, {}, 10), Fidelity(30.0, 1.0, {}, 90)
    assert with_answers_of(held, seen) == Fidelity(15.0, 0.9, {}, 100)
    worse = with_answers_of(held, Fidelity(30.0, 0.8, {}, 90))
    assert worse.agreement == pytest.approx(0.81) and worse.sqnr_db == 15.0
