"""A short run of every fuzzing harness."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="the limits of the harnesses are those of POSIX")

FUZZ = Path(__file__).resolve().parents[2] / "fuzz"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(FUZZ / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_harness_runs_without_a_finding(tmp_path: Path) -> None:
    done = _run("all", "--executions", "200", "--seed", "7", "--out", str(tmp_path / "fuzz.json"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    told = json.loads((tmp_path / "fuzz.json").read_text())
    assert told["findings"] == []
    assert {row["harness"] for row in told["harnesses"]} >= {"model", "external", "numpy_files",
            "statistics", "plan", "table", "recipe", "quantize"}  # fmt: skip
    for row in told["harnesses"]:
        assert row["executions"] >= 20, row
        assert row["lines"] > 50, row


def test_workers_are_started_and_their_executions_counted(tmp_path: Path) -> None:
    done = _run("table", "--seconds", "3", "--engine", "random", "--out", str(tmp_path / "fuzz.json"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (row,) = json.loads((tmp_path / "fuzz.json").read_text())["harnesses"]
    assert row["starts"] >= 1
    assert row["executions"] > 0


def test_a_run_that_ran_nothing_is_no_success() -> None:
    done = _run("table", "--seconds", "0")
    assert done.returncode == 2
    assert "no input was run by table" in done.stdout
