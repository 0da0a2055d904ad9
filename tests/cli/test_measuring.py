"""``octavo evaluate`` and ``octavo bench`` from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo.cli.main import main

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fashion_mnist"


@pytest.fixture
def measured(folder: Path) -> Path:
    """The model, a quantized copy, and labelled test images."""
    octavo.quantize("model.onnx", "calib.npz", output="int8.onnx", effort="plain")
    with np.load(EXAMPLE / "test.npz") as archive:
        np.savez("test.npz", pixels=archive["pixels"][:80], labels=archive["labels"][:80])
    return folder


EVALUATE = ["evaluate", "model.onnx", "--data", "test.npz", "--scale", "255", "--engine", "serial"]


def test_evaluate_one_model(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EVALUATE, "--per-class", "3"]) == 0
    out = capsys.readouterr().out
    assert "classification on 80 samples" in out
    assert "top1" in out
    assert "7 more" in out


def test_evaluate_holds_the_second_model_against_the_first(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "model.onnx", "int8.onnx", *EVALUATE[2:], "--json", "--report", "r.md"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["against"]) == ("int8.onnx", "model.onnx")
    top1 = answer["differences"][0]
    assert top1["low"] <= top1["value"] <= top1["high"]
    assert "| top1 |" in Path("r.md").read_text(encoding="utf-8")
    assert "## By class" in Path("r.md").read_text(encoding="utf-8")


def test_agreement_takes_calibration_data(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", "model.onnx", "int8.onnx", "--task", "agreement", "--data", "calib.npz"]
    assert main([*command, "--engine", "serial", "--batch", "4", "--report", "r.json"]) == 0
    assert "agreement on 16 samples" in capsys.readouterr().out
    assert json.loads(Path("r.json").read_text())["task"] == "agreement"


def test_a_metric_of_a_file_takes_the_scale(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("metrics.py").write_text(
        "def hit(outputs, label):\n    return next(iter(outputs.values())).argmax() == label\n"
    )
    command = ["evaluate", "model.onnx", "--data", "test.npz", "--task", "metrics.py:hit", "--json"]
    assert main([*command, "--scale", "255"]) == 0
    right = json.loads(capsys.readouterr().out)["scores"][0]["value"]
    assert main([*EVALUATE, "--json"]) == 0
    assert right == json.loads(capsys.readouterr().out)["scores"][0]["value"]
    assert main(command) == 1
    assert "--scale 255" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--task", "detect"], 2, "did you mean 'detection'"),
        (["--annotations", "a.json"], 2, "has no option 'annotations'; the task detection has it"),
        (["--column", "text"], 2, "--columns TEXT,LABEL"),
        (["--labels", "no.csv"], 1, "no labels file"),
        (["--report", "r.pdf"], 2, "the suffix says"),
    ],
)
def test_wrong_requests_are_one_sentence(
    flags: list[str], code: int, words: str, measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*EVALUATE, *flags]) == code
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_bench_prints_and_reports(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "model.onnx", "int8.onnx", "--data", "calib.npz", "--batch", "4", "--seconds", "0.05"]
    assert main([*command, "--threads", "1", "--no-memory", "--report", "b.md", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["batch"], answer["threads"], len(answer["models"])) == (4, 1, 2)
    text = Path("b.md").read_text(encoding="utf-8")
    assert "× as fast" in text
    assert "## Time by op type" in text


def test_bench_of_one_model_as_text(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("int8.onnx", "copy.onnx")
    assert main(["bench", "copy.onnx", "--seconds", "0.05", "--no-memory", "--report", "b.txt"]) == 0
    assert capsys.readouterr().out.startswith("model: copy.onnx")
    assert "latency" in Path("b.txt").read_text(encoding="utf-8")
