"""The entry point: exit codes, error sentences, streams, speed of --help."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo.cli import main as cli
from octavo.cli.main import VERBS, main, parse
from octavo.cli.selection import PRESET_NAMES
from octavo.errors import DataError, ModelError, OctavoError, OutputError, RecipeError, TableError


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "octavo", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def inspect(model: str) -> Any:
        raise error

    monkeypatch.setattr(octavo, "inspect", inspect, raising=False)


def test_help_answers_in_less_than_half_a_second() -> None:
    """Of processor time, interpreter start included: a test machine is busy with the other tests."""
    before = os.times()
    done = run("--help")
    after = os.times()
    taken = after.children_user + after.children_system - before.children_user - before.children_system
    assert done.returncode == 0
    assert taken < 0.5
    assert all(verb.name in done.stdout for verb in VERBS)


def test_help_imports_neither_onnx_nor_numpy_nor_rich() -> None:
    code = (
        "import sys\nfrom octavo.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'rich', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_help_with_examples_that_parse(verb: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb.name, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert verb.examples
    for example in verb.examples:
        assert example in text
        words = shlex.split(example)
        assert words[0] == "octavo"
        assert parse(words[1:]).verb in {one.name for one in VERBS}


def test_help_names_every_preset() -> None:
    from octavo.core.recipe import PRESETS

    assert tuple(PRESETS) == PRESET_NAMES


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("octavo ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to do"),
        (["quantise", "m.onnx"], "did you mean 'quantize'"),
        (["quantize"], "MODEL"),
        (["quantize", "m.onnx", "-o", "n.onnx", "--exlude", "a"], "did you mean '--exclude'"),
        (["quantize", "m.onnx", "-o", "n.onnx", "--samples", "0"], "too few"),
        (["quantize", "m.onnx", "-o", "n.onnx", "--format", "tflite"], "not an output format"),
        (["quantize", "m.onnx", "-o", "n.onnx", "--format", "qqd"], "did you mean 'qdq'"),
        (["quantize", "m.onnx", "-o", "n.onnx", "--effort", "ful"], "plain, standard, search"),
        (["ops", "Convv"], "did you mean 'Conv'"),
        (["targets", "ort-cpus"], "did you mean 'ort-cpu'"),
    ],
)
def test_wrong_requests_are_one_sentence_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("octavo: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RecipeError("r"), 2),
        (ModelError("m"), 1),
        (DataError("d"), 1),
        (TableError("t"), 1),
        (OutputError("o"), 1),
        (OctavoError("x"), 1),
        (ZeroDivisionError("z"), 70),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_exit_codes_follow_the_kind_of_error(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, error)
    assert main(["inspect", "model.onnx"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("octavo: ")
    assert "Traceback" not in captured.err


def test_an_unforeseen_error_advises_debug_and_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, ZeroDivisionError("z"))
    main(["inspect", "model.onnx"])
    assert "run again with --debug" in capsys.readouterr().err
    main(["inspect", "model.onnx", "--debug"])
    assert "Traceback" in capsys.readouterr().err


def test_common_flags_count_before_and_after_the_verb() -> None:
    for arguments in (["--json", "ops"], ["ops", "--json"]):
        options = parse(arguments)
        assert options.json
        assert not options.quiet


def test_names_in_errors_can_not_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, ModelError("The node '\x1b[2J\x1b]0;owned\x07a\nb\u202e' is wrong."))
    main(["inspect", "model.onnx"])
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "\u202e" not in said
    assert said.count("\n") == 1


def test_json_errors_are_json_on_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, ModelError("The model is broken."))
    assert main(["inspect", "model.onnx", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"] == {
        "type": "ModelError",
        "message": "The model is broken.",
        "exit_code": 1,
    }


def test_what_libraries_print_does_not_reach_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def inspect(model: str) -> Any:
        print("chatter")
        raise ModelError("m")

    monkeypatch.setattr(octavo, "inspect", inspect, raising=False)
    main(["inspect", "model.onnx", "--json"])
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert "chatter" in captured.err


def test_a_closed_pipe_is_silent() -> None:
    done = subprocess.run(
        f"{sys.executable} -m octavo ops --json | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""


def test_a_broken_pipe_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(answer: Any, as_json: bool) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(cli, "_print", broken)
    monkeypatch.setattr(cli, "_closed_pipe", lambda: cli.BROKEN_PIPE)
    assert main(["ops"]) == 141


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_terminal_encoding_will_do(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "octavo", "ops"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )
    assert done.returncode == 0


def test_ops_and_targets_answer_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--json"]) == 0
    ops = json.loads(capsys.readouterr().out)["ops"]
    assert any(
        op["op_type"] == "Conv" and op["lowerings"]["qoperator"]["op_type"] == "QLinearConv" for op in ops
    )
    assert main(["targets", "--json"]) == 0
    assert "ort-cpu" in [one["name"] for one in json.loads(capsys.readouterr().out)["targets"]]


def test_one_op_and_one_target_in_detail(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "conv"]) == 0
    assert "QLinearConv" in capsys.readouterr().out
    assert main(["targets", "ort-cpu"]) == 0
    assert "kept in float" in capsys.readouterr().out


def test_a_second_file_is_told_that_data_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "model.onnx", "calibration.npz"]) == 2
    assert "data is given with --data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "usage"),
    [
        ("quantize", "usage: octavo quantize MODEL [flags]"),
        ("compare", "usage: octavo compare FLOAT QUANTIZED --data DATA [flags]"),
        ("bench", "usage: octavo bench MODEL [QUANTIZED ...] [flags]"),
        ("targets", "usage: octavo targets [NAME] [flags]"),
    ],
)
def test_the_usage_of_a_verb_is_what_has_to_be_given(
    verb: str, usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert capsys.readouterr().out.startswith(usage + "\n")
