"""The verbs give isolated what they give otherwise."""

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
from hostile.models import feeds, layer, written

import octavo
from octavo.cli.main import main
from octavo.errors import ModelError, RecipeError
from octavo.isolation import Isolated, verbs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="isolation needs a POSIX system")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    written(layer(), tmp_path)
    np.savez(tmp_path / "calib.npz", x=np.concatenate([one["x"] for one in feeds()]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_isolated_model_is_the_same_to_the_byte(folder: Path) -> None:
    octavo.quantize("model.onnx", feeds(), output="plain.onnx", threads=1, effort="plain")
    told: list[tuple[str, int, int | None]] = []
    outcome = octavo.isolated(memory="4GiB", seconds=300).quantize(
        "model.onnx",
        feeds(),
        output="isolated.onnx",
        threads=1,
        effort="plain",
        progress=lambda *how: told.append(how),
    )
    assert outcome.written == (folder / "isolated.onnx",)
    assert Path("isolated.onnx").read_bytes() == Path("plain.onnx").read_bytes()
    assert "MatMul" in str(outcome)
    assert outcome.data["kind"] == "quantization"
    assert told
    names = {"calib.npz", "isolated.onnx", "model.onnx", "plain.onnx"}
    assert {path.name for path in folder.iterdir()} == names


def test_the_command_line_answers_as_ever(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["quantize", "model.onnx", "--plain", "--data", "calib.npz", "--threads", "1", "--json"]
    assert main([*command, "-o", "plain.onnx"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main(["--isolate", *command, "-o", "isolated.onnx"]) == 0
    captured = capsys.readouterr()
    isolated = json.loads(captured.out)
    assert "Traceback" not in captured.err
    assert isolated.pop("written") == ["isolated.onnx"]
    assert plain.pop("written") == ["plain.onnx"]
    assert isolated == plain
    assert Path("isolated.onnx").read_bytes() == Path("plain.onnx").read_bytes()


def test_a_broken_model_is_its_own_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.onnx").write_bytes(b"\xff" * 100)
    assert main(["inspect", "broken.onnx", "--limits", "seconds=60"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("octavo: broken.onnx")
    assert main(["inspect", "broken.onnx", "--limits", "second=60"]) == 2
    assert "did you mean 'seconds'" in capsys.readouterr().err
    assert (
        main(["calibrate", "model.onnx", "--data", "calib.npz", "-o", "s", "--engine", "ray", "--isolate"])
        == 2
    )
    with pytest.raises(ModelError, match=r"broken\.onnx"):
        octavo.isolated(seconds=60).inspect("broken.onnx")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_reach_an_isolated_command(folder: Path, number: int, code: int) -> None:
    Path("slow.py").write_text(
        "import pathlib, time\n"
        "def feeds():\n"
        "    pathlib.Path('asleep').touch()\n"
        "    time.sleep(600)\n"
        "    yield {}\n"
    )
    command = ["quantize", "model.onnx", "-o", "out.onnx", "--data", "slow:feeds", "--plain", "--isolate"]
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", *command], stderr=subprocess.PIPE, cwd=folder, text=True
    )
    while not Path("asleep").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == code, said
    assert "Traceback" not in said
    left = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert left == {"model.onnx", "calib.npz", "slow.py", "asleep"}


def _call(verb: str, *arguments: Any, **options: Any) -> dict[str, Any]:
    made = verbs.work(
        {"verb": verb, "arguments": arguments, "options": options, "progress": False}, lambda message: None
    )
    json.dumps(made, default=str)
    assert made["text"]
    return made


def test_every_verb_gives_text_data_and_files(folder: Path) -> None:
    data = feeds()
    made = _call(
        "quantize", "model.onnx", data, output="q.onnx", threads=1, external_data=True, effort="plain"
    )
    assert made["written"] == [str(folder / "q.onnx"), str(folder / "q.onnx.data")]
    made = _call("prepare", "model.onnx", None, output="p.onnx")
    assert made["written"] == [str(folder / "p.onnx")]
    onnx.checker.check_model("p.onnx")
    made = _call("calibrate", "model.onnx", None, data, output="m.stats", threads=1)
    assert octavo.load_stats("m.stats").samples == len(data)
    made = _call("plan", "model.onnx", None, output="plan.json")
    assert octavo.Plan.from_dict(made["data"]).to_dict() == octavo.Plan.load("plan.json").to_dict()
    assert _call("inspect", "q.onnx")["data"]
    assert _call("lint", "q.onnx")["data"]
    assert _call("compare", "model.onnx", "q.onnx", data, threads=1)["data"]
    assert _call("doctor", "model.onnx", data)["data"]


def test_the_handle_has_the_verbs_that_run_or_read_models() -> None:
    for name in vars(Isolated):
        if not name.startswith("_"):
            assert name == "limits" or hasattr(octavo, name)


def test_an_unknown_option_is_the_workers_error(folder: Path) -> None:
    with pytest.raises(octavo.IsolationError, match="colour"):
        octavo.isolated().lint("model.onnx", colour=1)


def test_limits_are_checked_before_anything_starts() -> None:
    with pytest.raises(RecipeError, match="256MiB"):
        octavo.isolated(memory=1000)
