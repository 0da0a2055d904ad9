"""``octavo quantize`` with data and no recipe: the automatic choice, from command line to files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tuning.nets import conv_and_linear, samples

import octavo
from octavo.cli.main import main
from octavo.evaluation.timing.latency import Ratio
from octavo.tuning import runner

AUTO = [
    "quantize",
    "model.onnx",
    "-o",
    "out.onnx",
    "--data",
    "calib.npz",
    "--engine",
    "serial",
    "--threads",
    "1",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a small model, its data and a task; all speeds are the same."""
    onnx.save(conv_and_linear(), tmp_path / "model.onnx")
    images = np.concatenate([sample["x"] for sample in samples(12)])
    np.savez(tmp_path / "calib.npz", x=images)
    (tmp_path / "task.py").write_text(
        "def first(outputs, label):\n    return float(next(iter(outputs.values())).argmax() == 0)\n"
    )
    monkeypatch.chdir(tmp_path)
    speed(monkeypatch, 1.5)
    return tmp_path


def speed(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """Take the timer's place: these tests are not about the machine they run on."""
    found = Ratio(times, times, times)
    monkeypatch.setattr(runner, "speeds", lambda _, models, *rest, **more: [found] * len(models))


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ("--data calib.npz", {"data": "calib.npz"}),
        ("--data calib.npz --effort plain", {"data": "calib.npz", "effort": "plain"}),
        ("--data calib.npz --effort standard", {"data": "calib.npz", "effort": "standard"}),
        ("--data calib.npz --effort search", {"data": "calib.npz", "effort": "search"}),
        ("", {}),
        ("--data calib.npz --recipe w8a8", {"data": "calib.npz", "recipe": "w8a8"}),
        (
            "--data calib.npz --recipe r.yaml --target ort-cpu --exclude op:Relu",
            {"data": "calib.npz", "recipe": "r.yaml", "target": "ort-cpu", "exclude": "op:Relu"},
        ),
        (
            "--data calib.npz --method mse --weights uint8 --per tensor",
            {"data": "calib.npz", "method": "mse", "weights": "uint8", "per": "tensor"},
        ),
        ("--data calib.npz --no-prepare", {"data": "calib.npz", "prepare": None}),
        ("--data calib.npz --no-verify", {"data": "calib.npz", "verify": False}),
        ("--data calib.npz --target tensorrt", {"data": "calib.npz", "target": "tensorrt"}),
    ],
    ids=lambda value: value or "no data" if isinstance(value, str) else "",
)
def test_the_command_and_the_function_give_the_same_bytes(
    flags: str, keywords: dict[str, Any], folder: Path
) -> None:
    Path("r.yaml").write_text("base: W8A8\ntarget: tensorrt\n")
    command = "quantize model.onnx -o out.onnx --engine serial --threads 1 --quiet"
    assert main(f"{command} {flags}".split()) == 0
    octavo.quantize("model.onnx", output="same.onnx", engine="serial", threads=1, **keywords)
    assert Path("out.onnx").read_bytes() == Path("same.onnx").read_bytes()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_best_of_several_ways_is_written_with_the_table_of_what_was_tried(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = names(folder)
    assert main(AUTO) == 0
    said = capsys.readouterr().out
    for name in ("static", "mixed", "dynamic"):
        assert name in said
    assert "chosen: " in said
    assert "written: out.onnx" in said
    assert names(folder) - before == {"out.onnx"}
    assert octavo.inspect("out.onnx")


def test_json_and_reports_hold_trials_front_and_layers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*AUTO, "--effort", "search", "--json", "--quiet", "--report", "r.html"]) == 0
    tuning = json.loads(capsys.readouterr().out)["tuning"]
    assert len(tuning["trials"]) >= 5
    assert tuning["front"]
    assert tuning["layers"]
    page = Path("r.html").read_text(encoding="utf-8")
    assert '<template id="front-0">' in page
    assert "http://" not in page[page.index("<template") : page.index("</template>")].replace(
        "http://www.w3.org/2000/svg", ""
    )


@pytest.mark.parametrize("suffix", ["json", "md", "txt"])
def test_a_report_of_any_kind_tells_what_was_tried(suffix: str, folder: Path) -> None:
    assert main([*AUTO, "--time-limit", "0", "--quiet", "--report", f"r.{suffix}"]) == 0
    assert "dynamic" in Path(f"r.{suffix}").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "flags", [["--plain"], ["--per", "tensor"], ["--format", "qoperator"], ["--no-verify"]]
)
def test_what_fixes_the_recipe_tries_nothing(
    flags: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*AUTO, *flags]) == 0
    assert "tried" not in capsys.readouterr().out


def test_a_target_that_does_not_run_here_is_not_measured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*AUTO, "--target", "tensorrt"]) == 0
    assert "tried" not in capsys.readouterr().out


@pytest.mark.parametrize("demand", [["--min-sqnr", "300"], ["--min-speed", "50"]])
def test_where_nothing_meets_the_promise_the_best_has_another_name(
    demand: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out.onnx").write_text("old")
    assert main([*AUTO, "--time-limit", "0", *demand]) == 1
    assert Path("out.onnx").read_text() == "old"
    assert octavo.inspect("out.best.onnx")
    assert "no trial meets the requirements" in capsys.readouterr().out


def test_slower_than_float_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speed(monkeypatch, 0.8)
    assert main([*AUTO, "--time-limit", "0"]) == 1
    said = capsys.readouterr().err
    assert "slower than float on this machine: 0.80 ×" in said
    assert "--min-speed 0" in said
    assert not Path("out.onnx").exists()
    assert main([*AUTO, "--time-limit", "0", "--min-speed", "0"]) == 0
    assert Path("out.onnx").exists()


def test_slower_than_float_is_said_without_data_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from octavo.tuning import measure

    monkeypatch.setattr(measure, "quick_speed", lambda *_: 0.5)
    assert main(["quantize", "model.onnx", "-o", "out.onnx"]) == 0
    assert "slower than float on this machine: 0.50 ×" in capsys.readouterr().err


def test_a_task_counts_where_a_largest_drop_is_given(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load("calib.npz") as archive:
        np.savez("val.npz", x=archive["x"], labels=np.zeros(12, np.int64))
    task = [
        "--evaluate",
        "task.py:first",
        "--evaluate-data",
        "val.npz",
        "--min-sqnr",
        "0",
        "--time-limit",
        "0",
        "--json",
    ]
    assert main([*AUTO, *task, "--max-drop", "100%"]) == 0
    trials = json.loads(capsys.readouterr().out)["tuning"]["trials"]
    assert trials[0]["score"]["name"] == "first"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max-drop", "0.5%"], "--evaluate"),
        (["--max-drop", "much", "--evaluate", "classification"], "0.5%"),
        (["--time-limit", "20", "--plain"], "--time-limit"),
        (["--time-limit", "2", "--method", "mse"], "--time-limit"),
        (["--min-sqnr", "20", "--target", "tensorrt"], "can't be combined"),
        (["--evaluate", "agreement", "--max-drop", "1%"], "--min-sqnr"),
        (["--exclude", "cnov"], "matches no node"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_request_is_one_sentence_and_leaves_nothing(
    flags: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = names(folder)
    assert main([*AUTO, *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("octavo: ")
    assert said in error
    assert names(folder) == before


def test_a_demand_without_data_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "model.onnx", "-o", "out.onnx", "--min-sqnr", "20"]) == 2
    assert "--data" in capsys.readouterr().err


def test_random_data_is_said_to_be_random(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*AUTO[:5], "random:4", "--engine", "serial", "--time-limit", "0", "--min-sqnr", "0"]
    assert main(words) == 0
    assert "random data" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("delay", [1.5, 4.0])
def test_an_interrupt_at_any_time_leaves_nothing(delay: float, folder: Path, tmp_path_factory: Any) -> None:
    before, scratch = names(folder), tmp_path_factory.mktemp("scratch")
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", *AUTO, "--min-speed", "0"],  # what it times here is noise
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    if process.wait(120) != 0:
        assert names(folder) - before <= {"out.onnx"}  # the signal may come after all was put in place
    assert names(scratch) <= {".ses"}  # the runtime's own telemetry
