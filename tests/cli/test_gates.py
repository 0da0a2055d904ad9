"""Gates for CI: every verb that measures says which requirement is not met, in its exit code too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.cli.main import main
from octavo.evaluation.timing.latency import Ratio
from octavo.tuning import gates
from octavo.tuning.gates import Gate, check_gates
from octavo.tuning.requirements import Drop
from octavo.tuning.trial import Score


@pytest.fixture
def pair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model, a quantized copy, labels, and a speed that does not depend on the machine."""
    octavo.quantize("model.onnx", "calib.npz", output="int8.onnx", effort="plain")
    with np.load("calib.npz") as archive:
        np.savez("val.npz", image=archive["image"], labels=np.zeros(16, np.int64))

    monkeypatch.setattr(gates, "measured_speed", lambda *_: Ratio(1.5, 1.4, 1.6))
    return folder


VERBS = {
    "compare": ["compare", "model.onnx", "int8.onnx", "--data", "calib.npz", "--samples", "4"],
    "evaluate": ["evaluate", "model.onnx", "int8.onnx", "--task", "agreement", "--data", "calib.npz"],
    "bench": ["bench", "model.onnx", "int8.onnx", "--data", "calib.npz", "--seconds", "0.02", "--no-memory"],
    "quantize": ["quantize", "model.onnx", "-o", "out.onnx", "--data", "calib.npz", "--effort", "plain"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_gate_that_fails_is_named_in_text_json_and_exit_code(
    verb: str, pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*VERBS[verb], "--min-sqnr", "5", "--max-size", "0.5x"]) == 0
    assert "passed  min-sqnr 5 dB" in capsys.readouterr().out
    assert main([*VERBS[verb], "--min-sqnr", "300", "--max-size", "0.5", "--json"]) == 1
    said = capsys.readouterr()
    assert "requirement not met: --min-sqnr 300 dB at least, measured" in said.err
    found = {gate["name"]: gate["passed"] for gate in json.loads(said.out)["gates"]}
    assert found == {"min_sqnr": False, "max_size": True}


def test_the_drop_of_a_task_and_the_speed_are_gates_of_evaluate(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "model.onnx", "int8.onnx", "--data", "val.npz"]
    assert main([*command, "--max-drop", "100%", "--min-speed", "1.4"]) == 0
    assert main([*command, "--min-speed", "1.7"]) == 1
    assert "--min-speed 1.7 × float at least, measured 1.50 ×" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_a_speed_too_close_to_its_limit_is_undecided(
    verb: str, pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = octavo.bench
    monkeypatch.setattr(
        octavo, "bench", lambda *a, **k: replace(bench(*a, **k), ratios=(Ratio(1.5, 1.4, 1.6),))
    )
    Path("out.onnx").write_text("old")
    assert main([*VERBS[verb], "--min-speed", "1.55", "--max-size", "0.5", "--json"]) == 3
    said = capsys.readouterr()
    assert "requirement undecided: --min-speed 1.55 × float at least, measured 1.50 ×" in said.err
    states = {gate["name"]: (gate["passed"], gate["decided"]) for gate in json.loads(said.out)["gates"]}
    assert states == {"min_speed": (False, False), "max_size": (True, True)}
    assert main([*VERBS[verb], "--min-speed", "1.45", "--min-sqnr", "300"]) == 1
    assert "requirement not met: --min-sqnr 300" in capsys.readouterr().err
    assert Path("out.onnx").read_text() == "old"


def test_a_speed_that_leaves_its_limit_open_is_measured_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.evaluation.timing import bench as timing

    asked: list[float] = []

    def measured(*_: Any, seconds: float, **__: Any) -> SimpleNamespace:
        asked.append(seconds)
        half = 0.3 / seconds
        return SimpleNamespace(ratio=Ratio(1.5, 1.5 - half, 1.5 + half))

    monkeypatch.setattr(timing, "bench", measured)
    assert gates.measured_speed(Path("a"), Path("b"), None, 1, 1.3) == Ratio(1.5, 1.4, 1.6)
    found = gates.measured_speed(Path("a"), Path("b"), None, 1, 1.45)
    assert found is not None
    assert found.reaches(1.45)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("evaluate model.onnx --data val.npz --max-drop 1%", "FLOAT QUANTIZED"),
        ("evaluate model.onnx int8.onnx --data val.npz --min-sqnr 20", "--task agreement"),
        ("evaluate model.onnx int8.onnx --data calib.npz --task agreement --max-drop 1%", "--min-sqnr"),
        ("bench model.onnx --min-speed 2", "FLOAT QUANTIZED"),
        ("bench model.onnx int8.onnx --seconds 0.02 --no-memory --no-profile --min-sqnr 2", "--data"),
        ("compare model.onnx int8.onnx --data calib.npz --max-drop 1%", "task"),
        ("quantize model.onnx -o o.onnx --effort plain --min-sqnr 2", "--data"),
        ("quantize model.onnx -o o.onnx --target tensorrt --data calib.npz --min-sqnr 2", "tensorrt"),
    ],
)
def test_a_gate_that_can_not_be_measured_is_refused(
    command: str, said: str, pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    assert said in capsys.readouterr().err


def test_a_recipe_that_misses_a_requirement_goes_to_another_name(pair: Path) -> None:
    Path("out.onnx").write_text("old")
    assert main([*VERBS["quantize"], "--min-sqnr", "300"]) == 1
    assert Path("out.onnx").read_text() == "old"
    result = octavo.quantize("model.onnx", "calib.npz", output="same.onnx", recipe="W8A8", min_sqnr=300)
    assert not result.met
    assert not Path("same.onnx").exists()
    assert octavo.inspect("same.best.onnx")
    kept = octavo.quantize("model.onnx", "calib.npz", output="same.onnx", recipe="W8A8", min_sqnr=5)
    assert kept.met
    assert octavo.inspect("same.onnx")


def test_fidelity_is_that_of_the_runtime(pair: Path) -> None:
    import onnxruntime as ort

    with np.load("calib.npz") as archive:
        images = archive["image"]
    signal = noise = 0.0
    sessions = [ort.InferenceSession(name) for name in ("model.onnx", "int8.onnx")]
    for image in images:
        x, y = (one.run(None, {"image": image[None]})[0].astype(np.float64) for one in sessions)
        signal, noise = signal + (x**2).sum(), noise + ((x - y) ** 2).sum()
    (gate,) = check_gates("model.onnx", "int8.onnx", {"min_sqnr": 1.0}, data="calib.npz")
    assert gate.value == pytest.approx(10 * np.log10(signal / noise), abs=1e-6)


@pytest.mark.parametrize(
    ("limit", "value", "passed"),
    [("1%", 0.7921, True), ("1%", 0.79, False), ("0.01", 0.791, True), ("0.01", 0.78, False)],
)
def test_a_drop_is_a_share_or_an_amount(limit: str, value: float, passed: bool) -> None:
    found: Gate = gates.drop_gate(Drop.parse(limit), Score("top1", value, 0.8, percent=True))
    assert found.passed is passed


def test_unknown_requirements_are_named() -> None:
    with pytest.raises(octavo.RecipeError, match="did you mean 'min_sqnr'"):
        octavo.tune("model.onnx", requirements={"min_snr": 3})


def test_a_card_says_what_from_what_and_how(pair: Path) -> None:
    assert main([*VERBS["quantize"], "--card", "card.md", "--min-sqnr", "5"]) == 0
    card = Path("card.md").read_text(encoding="utf-8")
    for word in ("# out.onnx", "model.onnx", "int8", "16 samples", "min-sqnr", "met", "onnxruntime"):
        assert word in card
    command: Any = card.split("$ octavo ")[1].splitlines()[0]
    assert main(command.split()) == 0


def test_the_card_of_compressed_weights_speaks_of_no_quantized_activations(pair: Path) -> None:
    assert (
        main(["quantize", "model.onnx", "-o", "small.onnx", "--compressed", "all", "--card", "small.md"]) == 0
    )
    card = Path("small.md").read_text(encoding="utf-8")
    assert "stored as int8" in card
    assert "| activations | float |" in card
