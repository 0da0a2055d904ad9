"""The verbs, from command line to files."""

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
import onnxruntime
import pytest

import octavo
from octavo.cli.main import main
from octavo.core.plan import Plan
from octavo.targets import target as find_target

STATIC = ["quantize", "model.onnx", "-o", "out.onnx", "--data", "calib.npz", "--plain"]


def op_types(path: str) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


def logits(path: str) -> Any:
    with np.load("calib.npz") as archive:
        images = archive["image"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"image": images})[0]


def test_quantize_writes_a_model_that_decides_as_the_float_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path("model.onnx").read_bytes()
    assert main(STATIC) == 0
    captured = capsys.readouterr()
    assert "Conv" in captured.out
    assert "quantized (uint8 × int8/channel, qdq)" in captured.out
    assert "written: out.onnx" in captured.out
    assert captured.err == ""
    assert sorted(path.name for path in folder.iterdir()) == ["calib.npz", "model.onnx", "out.onnx"]
    assert Path("out.onnx").stat().st_size < 0.5 * len(before)
    assert Path("model.onnx").read_bytes() == before
    assert (logits("model.onnx").argmax(1) == logits("out.onnx").argmax(1)).mean() >= 0.9


def test_json_is_all_that_stands_on_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STATIC, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["written"] == ["out.onnx"]
    assert answer["verified"] is True


@pytest.mark.parametrize(
    ("flag", "expected"),
    [("qdq", "DequantizeLinear"), ("qoperator", "QLinearConv")],
)
def test_the_format_is_the_one_requested(flag: str, expected: str, folder: Path) -> None:
    assert main([*STATIC, "--format", flag]) == 0
    assert expected in op_types("out.onnx")


def test_without_data_the_result_is_dynamic_and_a_remark_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "model.onnx", "-o", "out.onnx", "--plain"]) == 0
    assert "dynamic" in capsys.readouterr().err
    assert "DynamicQuantizeLinear" in op_types("out.onnx")


def test_dynamic_needs_no_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "model.onnx", "-o", "out.onnx", "--dynamic"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*STATIC, "--dynamic"]) == 2


@pytest.mark.parametrize("flags", [["--weights", "uint8"], ["--per", "tensor"], ["--activations", "int8"]])
def test_flags_change_the_recipe(flags: list[str], folder: Path) -> None:
    assert main([*STATIC, *flags]) == 0


def test_an_excluded_node_stays_float(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STATIC, "--exclude", "head", "--exclude", "op:Add"]) == 0
    assert "excluded by its name (head)" in capsys.readouterr().out


def test_a_pattern_without_match_is_a_wrong_request(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STATIC, "--exclude", "haed"]) == 2
    assert "'head'" in capsys.readouterr().err
    assert not Path("out.onnx").exists()


@pytest.mark.parametrize("way", ["same", "link", "hard link"])
def test_the_model_is_never_overwritten(way: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("model.onnx").read_bytes()
    output = "model.onnx" if way == "same" else "other.onnx"
    if way == "link":
        Path(output).symlink_to("model.onnx")
    elif way == "hard link":
        os.link("model.onnx", output)
    for arguments in (
        ["quantize", "model.onnx", "-o", output, "--dynamic"],
        ["prepare", "model.onnx", "-o", output],
    ):
        assert main(arguments) == 2
        assert "never overwritten" in capsys.readouterr().err
    assert main(["quantize", "model.onnx", "-o", "x.onnx", "--dynamic", "--report", "model.onnx"]) == 2
    assert Path("model.onnx").read_bytes() == before


@pytest.mark.parametrize("way", ["same", "link", "hard link"])
@pytest.mark.parametrize("plain", [True, False])
def test_an_input_of_the_run_is_never_overwritten(
    plain: bool, way: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path("calib.npz").read_bytes()
    output = "calib.npz" if way == "same" else "other.npz"
    if way == "link":
        Path(output).symlink_to("calib.npz")
    elif way == "hard link":
        os.link("calib.npz", output)
    more = ["--plain"] if plain else []
    for flags in (["-o", output], ["-o", "x.onnx", "--report", output]):
        arguments = ["quantize", "model.onnx", "--data", "calib.npz", *flags, *more]
        assert main(arguments) == 2
    Path("calib.npz.html").symlink_to("calib.npz")
    arguments = ["quantize", "model.onnx", "--data", "calib.npz", "-o", "x.onnx", "--report"]
    assert main([*arguments, "calib.npz.html", *more]) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert main(["calibrate", "model.onnx", "--data", "calib.npz", "-o", output]) == 2
    assert Path("calib.npz").read_bytes() == before
    assert not Path("x.onnx").exists()


def test_recipe_plan_and_statistics_are_never_overwritten(folder: Path) -> None:
    octavo.W8A8.save("recipe.yaml")
    octavo.plan("model.onnx").save("plan.json")
    assert main(["calibrate", "model.onnx", "--data", "calib.npz", "-o", "m.stats"]) == 0
    for flag, name in (("--recipe", "recipe.yaml"), ("--plan", "plan.json"), ("--stats", "m.stats")):
        before = Path(name).read_bytes()
        data = [] if flag == "--stats" else ["--data", "calib.npz"]
        assert main(["quantize", "model.onnx", "-o", name, flag, name, *data]) == 2
        assert Path(name).read_bytes() == before


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_an_output_that_is_not_a_regular_file_is_refused(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "pipe":
        os.mkfifo("out")
    elif kind == "folder":
        Path("out").mkdir()
    output = "/dev/full" if kind == "device" else "out"
    before = Path(output).stat()
    for arguments in (
        ["quantize", "model.onnx", "-o", output, "--data", "calib.npz"],
        ["quantize", "model.onnx", "-o", output, "--data", "calib.npz", "--plain"],
        ["quantize", "model.onnx", "-o", output, "--dynamic"],
        ["prepare", "model.onnx", "-o", output],
        ["plan", "model.onnx", "-o", output],
        ["calibrate", "model.onnx", "--data", "calib.npz", "-o", output],
    ):
        assert main(arguments) == 2, arguments
        assert "folder" in capsys.readouterr().err or kind != "folder"
    after = Path(output).stat()
    assert (before.st_mode, before.st_ino) == (after.st_mode, after.st_ino)


def test_an_explicit_target_wins_over_that_of_the_recipe(folder: Path) -> None:
    recipe = find_target("tensorrt").static_recipe
    recipe.save("recipe.yaml")
    flags = ["plan", "model.onnx", "--recipe", "recipe.yaml", "-o", "plan.json"]
    assert main(flags) == 0
    by_recipe = Plan.load("plan.json")
    assert main([*flags, "--target", "ort-cpu"]) == 0
    assert Plan.load("plan.json") == octavo.plan("model.onnx", recipe, target=find_target("ort-cpu"))
    assert Plan.load("plan.json") != by_recipe


def test_an_existing_output_is_replaced(folder: Path) -> None:
    Path("out.onnx").write_text("old")
    assert main(STATIC) == 0
    assert "QuantizeLinear" in op_types("out.onnx")


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["-o", "nowhere/out.onnx"], 1),
        (["-o", "."], 2),
        (["-o", "out.onnx", "--report", "r.pdf"], 2),
        (["-o", "out.onnx", "--report", "r.pdf"], 2),
        (["-o", "out.json", "--report", "out.json"], 2),
        (["-o", "out.onnx", "--recipe", "W9A9"], 2),
        (["-o", "out.onnx", "--recipe", "absent.yaml"], 2),
        (["-o", "out.onnx", "--target", "ort-gpu"], 2),
        (["-o", "out.onnx", "--weights", "int7"], 2),
        (["-o", "out.onnx", "--per", "row"], 2),
        (["-o", "out.onnx", "--method", "percentile:high"], 2),
        (["-o", "out.onnx", "--method", "median"], 2),
        (["-o", "out.onnx", "--op-types", ","], 2),
        (["-o", "out.onnx", "--op-types", "Convv"], 2),
        (["-o", "out.onnx", "--dynamic", "--method", "entropy"], 2),
        (["-o", "out.onnx", "--data", "absent.npz"], 1),
        (["-o", "out.onnx", "--plan", "absent.json"], 1),
        (["-o", "out.onnx", "--plan", "p.json", "--exclude", "head"], 2),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else str(value),
)
def test_a_wrong_request_fails_with_a_sentence_and_leaves_nothing(
    flags: list[str], code: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    data = [] if "--data" in flags or "--dynamic" in flags else ["--data", "calib.npz"]
    assert main(["quantize", "model.onnx", *flags, *data]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("octavo: ")
    assert captured.err.count("\n") == 1
    assert "unexpected" not in captured.err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("verb", ["quantize", "plan", "prepare", "inspect"])
def test_a_model_that_is_no_model_is_its_own_fault(
    verb: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.onnx").write_bytes(b"\x08\x07 no model at all")
    more = ["-o", "out.onnx"] if verb in ("quantize", "prepare") else []
    for name in ("broken.onnx", "absent.onnx"):
        assert main([verb, name, *more]) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("octavo: ")
        assert name in error


def test_reports_are_written_by_suffix(folder: Path) -> None:
    for name in ("r.md", "r.txt", "r.json"):
        assert main([*STATIC, "--report", name, "--quiet"]) == 0
    assert Path("r.md").read_text().startswith("# model.onnx → out.onnx")
    assert "measured by" in Path("r.txt").read_text()
    assert json.loads(Path("r.json").read_text())


def test_a_manifest_lies_beside_the_model_on_request(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*STATIC, "--manifest", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["written"]
    assert len(written) == 2
    assert all(Path(name).exists() for name in written)


def test_a_plan_can_be_saved_edited_and_carried_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model.onnx", "-o", "plan.json", "--exclude", "head"]) == 0
    assert "excluded by its name (head)" in capsys.readouterr().out
    plan = Plan.load("plan.json")
    assert "head" not in plan.nodes
    assert main([*STATIC, "--plan", "plan.json"]) == 0
    heads = [node for node in onnx.load("out.onnx").graph.node if node.name == "head"]
    floats = {tensor.name for tensor in onnx.load("out.onnx").graph.initializer if tensor.data_type == 1}
    assert heads[0].input[1] in floats


def test_plan_answers_in_json_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.iterdir())
    assert main(["plan", "model.onnx", "--json"]) == 0
    assert Plan.from_dict(json.loads(capsys.readouterr().out)).nodes
    assert main(["plan", "model.onnx", "--dynamic", "--tensors"]) == 0
    assert "while the model runs" in capsys.readouterr().out
    assert sorted(folder.iterdir()) == before


def test_prepare_writes_a_model_that_computes_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "model.onnx", "-o", "p.onnx"]) == 0
    assert "batch norm" in capsys.readouterr().out
    assert "BatchNormalization" not in op_types("p.onnx")
    np.testing.assert_allclose(logits("p.onnx"), logits("model.onnx"), atol=1e-4)
    assert (
        main(["prepare", "model.onnx", "-o", "q.onnx", "--skip-batch-norm", "--opset", "21", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["written"] == ["q.onnx"]
    assert "BatchNormalization" in op_types("q.onnx")
    assert onnx.load("q.onnx").opset_import[0].version == 21


def test_inspect_tells_float_from_quantized(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "model.onnx"]) == 0
    assert "int8" not in capsys.readouterr().out
    assert main([*STATIC, "--json"]) == 0
    capsys.readouterr()
    assert main(["inspect", "out.onnx"]) == 0
    text = capsys.readouterr().out
    assert "int8" in text
    assert "Conv" in text
    assert main(["inspect", "out.onnx", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_an_interrupt_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())

    def interrupted(*arguments: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(octavo, "quantize", interrupted)
    assert main(STATIC) == 130
    assert sorted(folder.iterdir()) == before
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("delay", [0.3, 1.0])
def test_a_signal_at_any_time_leaves_nothing_behind(
    number: int, code: int, delay: float, folder: Path
) -> None:
    before = sorted(folder.iterdir())
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", *STATIC], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(delay)
    process.send_signal(number)
    if process.wait(60) == 0:
        assert Path("out.onnx").exists()
    else:
        assert process.returncode in (code, -number)
        left = set(folder.iterdir()) - set(before)
        assert left <= {folder / "out.onnx"}  # the signal may come after the whole result was put in place
        if left:
            octavo.inspect(folder / "out.onnx")
