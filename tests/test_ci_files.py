"""The files that other repositories use, the action and the pre-commit hook; and the rules of our own CI."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from octavo.cli.main import parse

ROOT = Path(__file__).resolve().parents[1]


def test_the_hook_runs_a_command_that_exists() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    words = [*shlex.split(hook["entry"])[1:], "--target", "ort-cpu", "a.onnx", "b.onnx"]
    assert parse(words).models == ["a.onnx", "b.onnx"]


def test_the_action_names_the_inputs_that_it_uses() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    text = str(action["runs"])
    assert action["runs"]["using"] == "composite"
    assert all(f"inputs.{name}" in text for name in action["inputs"])
    assert all("shell" in step or "uses" in step for step in action["runs"]["steps"])


def test_the_action_passes_words_as_they_were_quoted_and_ends_with_the_exit_code(tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 3\n", encoding="utf-8")
    python.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "COMMAND": "quantize model.onnx --exclude '/head/*'\n  --card \"my card.md\" $(exit 9)",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "RUNNER_TEMP": str(tmp_path),
    }
    script = action["runs"]["steps"][-1]["run"]
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    ran = subprocess.run([bash, "-e", "-c", script], env=environment, capture_output=True, text=True)
    assert ran.returncode == 3
    words = "<-m><octavo><quantize><model.onnx><--exclude></head/*><--card><my card.md><$(exit><9)>"
    assert words in (tmp_path / "summary.md").read_text(encoding="utf-8")


@pytest.fixture
def ci(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``scripts/ci.py`` as a module."""
    spec = importlib.util.spec_from_file_location("ci_stages", ROOT / "scripts" / "ci.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ci_stages", module)
    spec.loader.exec_module(module)
    return module


def _shell(text: str) -> tuple[str, ...]:
    return ("sh", "-c", text)


def test_a_stage_is_passed_failed_skipped_or_not_finished(
    ci: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    stages = [
        ci.Stage("passes", _shell("echo '7 passed, 1 skipped in 0.12s'"), 1, decides=True),
        ci.Stage("installs nothing", _shell("exit 1"), 1, install=(_shell("echo no network; exit 1"),)),
        ci.Stage("lacks something", _shell("exit 1"), 1, lacks=lambda: "there is no zoo"),
        ci.Stage("takes too long", _shell("sleep 60 & wait"), 1 / 60),
        ci.Stage("fails", _shell("echo '1 failed, 2 passed in 3.00s'; exit 1"), 1),
        ci.Stage("no such program", ("octavo-no-such-program",), 1),
    ]
    found = ci.run_stages(stages)
    assert [one.state for one in found] == [
        "passed",
        "skipped",
        "skipped",
        "not finished",
        "FAILED",
        "FAILED",
    ]
    failures = [ci.is_failure(stage, one) for stage, one in zip(stages, found, strict=True)]
    assert failures == [False, False, False, False, True, True]
    assert "no network" in found[1].note
    text = ci.table(found)
    assert "7 passed, 1 skipped in 0.12s" in text
    assert "there is no zoo" in text
    assert "7 passed" in capfd.readouterr().out


def test_the_table_says_why_tests_within_a_stage_were_skipped(ci: ModuleType) -> None:
    said = "echo 'SKIPPED [3] tests/a.py:7: there is no zoo'; echo '4 passed, 3 skipped in 0.12s'"
    found = ci.run_stages([ci.Stage("tests", _shell(said), 1)])
    assert ci.table(found).splitlines()[-1].split(maxsplit=2) == ["tests", "3", "there is no zoo"]


def test_a_stage_that_fails_once_is_run_again_and_the_table_says_so(ci: ModuleType, tmp_path: Path) -> None:
    once = _shell(f"[ -e {tmp_path}/seen ] || {{ touch {tmp_path}/seen; echo '1 failed in 1.00s'; exit 1; }}")
    (found,) = ci.run_stages([ci.Stage("page", once, 1)])
    assert found.state == ci.SECOND
    assert "the first failed: 1 failed" in found.note


def test_where_a_deciding_stage_fails_the_others_are_skipped(ci: ModuleType) -> None:
    stages = [
        ci.Stage("tests", _shell("exit 3"), 1, decides=True),
        ci.Stage("lint", _shell("sleep 60"), 1 / 60, decides=True),
        ci.Stage("docs", _shell("exit 0"), 1),
    ]
    found = ci.run_stages(stages)
    assert [one.state for one in found] == ["FAILED", "not finished", "skipped"]
    assert [ci.is_failure(s, one) for s, one in zip(stages, found, strict=True)] == [True, True, False]


def test_the_stages_begin_with_the_tests_and_the_lint(ci: ModuleType) -> None:
    assert [stage.name for stage in ci.STAGES if stage.decides] == ["tests", "lint"]
    assert [stage.decides for stage in ci.STAGES[:2]] == [True, True]
    assert "scripts/ci.py" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_smoke_run_has_every_benchmark() -> None:
    text = (ROOT / "benchmarks" / "smoke.py").read_text(encoding="utf-8")
    programs = {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")} - {"smoke"}
    assert not {name for name in programs if f'"{name}"' not in text}


def test_stages_test_this_tree_and_no_other(
    ci: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "MAKEFLAGS"):
        monkeypatch.setenv(name, "/elsewhere")
    show = "import os; print([n for n in ('PYTHONPATH', 'PYTHONHOME', 'MAKEFLAGS') if n in os.environ])"
    assert ci.run_command([sys.executable, "-c", show], 60.0) == (0, ["[]"])
    zoo = [stage.command[-1] for stage in ci.STAGES if "zoo" in stage.name or "benchmark" in stage.name]
    assert zoo == [f"ZOO={ci.ZOO}"] * 2


def test_output_that_nobody_reads_holds_no_stage_up(ci: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(ci, "print", lambda *words, **more: None, raising=False)
    monkeypatch.setattr(sys, "stdout", Gone())
    code, tail = ci.run_command([sys.executable, "-c", "print('x' * 70000); print('end')"], 60.0)
    monkeypatch.undo()
    assert (code, tail[-1]) == (0, "end")
