"""The automatic choice: what is tried, what is chosen, and what happens if nothing will do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import model, node, tensor

import octavo
from octavo.cli.main import main
from octavo.evaluation.latency import Ratio
from octavo.tuning.candidates import Candidate
from octavo.tuning.search import choose
from octavo.tuning.trial import Demands, Trial

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "fashion_mnist"


def images(count: int) -> list[dict[str, np.ndarray]]:  # type: ignore[type-arg]
    with np.load(DEMO / "calibration.npz") as archive:
        pixels = archive["pixels"][:count]
    return [{"image": picture[None].astype(np.float32) / 255} for picture in pixels]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[octavo.Tuned, Path]:
    path = tmp_path_factory.mktemp("tuned") / "out.onnx"
    demands = Demands(min_speed=0.0)
    return octavo.tune(
        DEMO / "model.onnx", images(24), output=path, threads=1, seconds=0.05, demands=demands
    ), path


def test_static_and_dynamic_are_tried_and_measured(tuned: tuple[octavo.Tuned, Path]) -> None:
    found, _ = tuned
    names = [trial.name for trial in found.trials]
    assert names[:4] == ["static", "static, ranges by error", "static, repaired", "dynamic"]
    for trial in found.trials:
        assert trial.error is None
        assert trial.speed is not None
        assert trial.speed.value > 0
        assert trial.sqnr_db is not None
    assert found.held_back == 6


def test_the_best_is_written_and_runs(tuned: tuple[octavo.Tuned, Path]) -> None:
    found, path = tuned
    assert found.met
    assert found.best is not None
    assert octavo.inspect(path)
    assert found.best in found.front() or len(found.front()) >= 1
    assert "chosen: " in str(found)
    assert json.loads(json.dumps(found.to_dict()))["best"] == found.best.name


def test_nothing_is_written_where_nothing_will_do(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes((DEMO / "model.onnx").read_bytes())
    np.savez(tmp_path / "calib.npz", image=np.concatenate([sample["image"] for sample in images(8)]))
    code = main(
        ["tune", str(source), "-o", str(tmp_path / "out.onnx"), "--data", str(tmp_path / "calib.npz"),
         "--min-sqnr", "200", "--seconds", "0.05", "--quiet"]
    )  # fmt: skip
    assert code == 1
    assert not (tmp_path / "out.onnx").exists()
    assert (tmp_path / "out.best.onnx").exists()


def test_without_data_only_what_needs_none_is_tried() -> None:
    weights = {"w": np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["y"], "product")]
    source = model(nodes, [tensor("x", [4, 16])], [tensor("y", None)], weights)
    found = octavo.tune(source, seconds=0.02, demands=Demands(min_speed=0.0))
    assert [trial.name for trial in found.trials] == ["dynamic"]


def test_one_sample_is_too_few() -> None:
    with pytest.raises(octavo.DataError, match="two samples"):
        octavo.tune(DEMO / "model.onnx", images(1))


def trial(name: str, speed: float, decibels: float, error: str | None = None) -> Trial:
    candidate = Candidate(name, octavo.W8A8, "")
    measured = None if error else Ratio(speed, speed, speed)
    return Trial(candidate, None, decibels, None, measured, 100, error)


def test_of_like_speeds_the_most_faithful_is_chosen() -> None:
    found = choose([trial("a", 1.70, 20), trial("b", 1.68, 30), trial("c", 1.2, 50)], Demands(), 4, 400)
    assert found.best is not None
    assert found.best.name == "b"


def test_speeds_whose_intervals_meet_count_as_the_same() -> None:
    noisy = replace(trial("noisy", 2.9, 30), speed=Ratio(2.9, 0.6, 3.1))
    found = choose(
        [noisy, replace(trial("faithful", 1.5, 39), speed=Ratio(1.5, 1.2, 3.2))], Demands(), 4, 400
    )
    assert found.best is not None
    assert found.best.name == "faithful"


def test_too_slow_or_too_far_off_is_not_chosen() -> None:
    found = choose(
        [trial("slow", 0.9, 40), trial("wrong", 3.0, 5), trial("fair", 1.1, 20)], Demands(), 4, 400
    )
    assert found.best is not None
    assert (found.best.name, found.met) == ("fair", True)


def test_where_nothing_will_do_the_reason_names_each_trial() -> None:
    found = choose([trial("slow", 0.9, 40), trial("wrong", 3.0, 5)], Demands(), 4, 400)
    assert not found.met
    assert "slow: 0.90 ×" in found.reason
    assert "wrong: 5.0 dB" in found.reason


def test_the_front_leaves_out_what_is_beaten() -> None:
    found = choose([trial("a", 2.0, 30), trial("b", 1.5, 20), trial("c", 1.0, 50)], Demands(), 4, 400)
    assert [one.name for one in found.front()] == ["a", "c"]
    assert not choose([replace(trial("a", 2, 30))], Demands(min_speed=3), 4, 400).met
