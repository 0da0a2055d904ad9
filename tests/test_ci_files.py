"""The files that other repositories use: the action and the pre-commit hook."""

from __future__ import annotations

import shlex
from pathlib import Path

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
