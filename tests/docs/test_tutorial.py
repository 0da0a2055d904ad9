"""The tutorial prints what it says: its commands are run in order and their output is compared."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from octavo.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "fashion_mnist"
RUN = re.compile(r"^```console\n\$ octavo ([^\n]*)\n```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pattern(shown: str) -> str:
    """Return a regular expression for output; ``…`` stands for any text, alone on a line for any lines."""
    parts = [r"(?:.*\n)*?" if line == "…" else _line(line) for line in shown.splitlines()]
    return "".join(parts)


def _line(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("…")) + r" *\n"


def test_the_tutorial_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.onnx", "calibration.npz", "test.npz"):
        shutil.copy(EXAMPLE / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    runs = RUN.findall((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    assert len(runs) >= 5
    for command, shown in runs:
        assert main(shlex.split(command)) == 0
        printed = capsys.readouterr().out
        assert re.fullmatch(pattern(shown), printed), f"octavo {command}\n{printed}"
