"""``quant_pre_process`` and its command line; the result is loaded and run."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import conv_net, model, node, tensor

from octavo.errors import ModelError, OutputError, RecipeError
from octavo.model.runtime.session import Session
from octavo.quantization import preprocess
from octavo.quantization._command import exit_code
from octavo.quantization.shape_inference import quant_pre_process

FEEDS = {"x": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    onnx.save(conv_net(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def ops(path: Path) -> list[str]:
    return [n.op_type for n in onnx.load(path).graph.node]


def same(path: Path, other: Path) -> None:
    results = [Session.open(p).run(FEEDS)["y"] for p in (path, other)]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_model_is_optimized_has_shapes_and_says_so(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.onnx"
    quant_pre_process(source, out)
    assert "BatchNormalization" not in ops(out)
    proto = onnx.load(out)
    assert {e.key for e in proto.metadata_props} == {"onnx.quant.pre_process"}
    assert {v.name for v in proto.graph.value_info}
    same(source, out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "p.onnx"]


def test_model_may_be_a_proto_or_the_older_keyword(source: Path, tmp_path: Path) -> None:
    quant_pre_process(conv_net(), tmp_path / "a.onnx")
    quant_pre_process(input_model_path=str(source), output_model_path=str(tmp_path / "b.onnx"))
    same(tmp_path / "a.onnx", tmp_path / "b.onnx")


def test_missing_or_unknown_arguments_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="give output_model_path"):
        quant_pre_process(source)
    with pytest.raises(RecipeError, match="give input_model"):
        quant_pre_process(output_model_path=tmp_path / "o.onnx")
    with pytest.raises(TypeError, match="no argument 'colour'"):
        quant_pre_process(source, tmp_path / "o.onnx", colour="blue")


def test_old_opset_and_upsample_are_modernized(tmp_path: Path) -> None:
    proto = model(
        [node("Upsample", ["x", "s"], ["u"], "up", mode="nearest"), node("Relu", ["u"], ["y"], "r")],
        [tensor("x", [2, 3, 8, 8])],
        [tensor("y", [2, 3, 16, 16])],
        {"s": np.float32([1, 1, 2, 2])},
        opset=9,
    )
    onnx.save(proto, tmp_path / "old.onnx")
    quant_pre_process(tmp_path / "old.onnx", tmp_path / "new.onnx")
    found = onnx.load(tmp_path / "new.onnx")
    assert found.opset_import[0].version >= 11
    assert "Resize" in {n.op_type for n in found.graph.node}
    out = Session.open(tmp_path / "new.onnx").run(FEEDS)["y"]
    np.testing.assert_array_equal(out, np.maximum(FEEDS["x"], 0).repeat(2, 2).repeat(2, 3))


def test_symbolic_inference_is_left_alone_when_skipped(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from octavo.model.prepare import shapes

    monkeypatch.setattr(shapes, "infer_symbolically", lambda *_: pytest.fail("it was run"))
    monkeypatch.setattr(shapes, "lacks_ranks", lambda _: True)
    quant_pre_process(source, tmp_path / "o.onnx", skip_symbolic_shape=True, auto_merge=True)
    assert "onnxruntime.tools.symbolic_shape_infer" not in sys.modules
    same(source, tmp_path / "o.onnx")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_symbolic_inference_runs_with_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    from octavo.model.prepare import shapes

    def infer(model: object, settings: object = None) -> tuple[int, list[str]]:
        asked.append(settings)
        return 0, ["it stopped"]

    monkeypatch.setattr(shapes, "infer_symbolically", infer)
    quant_pre_process(conv_net(), tmp_path / "o.onnx")
    assert asked == []
    quant_pre_process(conv_net(), tmp_path / "o.onnx", auto_merge=True, int_max=99, guess_output_rank=True)
    assert asked == [{"auto_merge": True, "int_max": 99, "guess_output_rank": True, "verbose": 0}]


def test_real_symbolic_inference_fills_in_ranks(tmp_path: Path) -> None:
    pytest.importorskip("sympy")
    quant_pre_process(conv_net(), tmp_path / "o.onnx", auto_merge=True)
    assert onnx.load(tmp_path / "o.onnx").graph.value_info


def test_what_a_step_could_not_do_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from octavo.model.prepare import shapes

    monkeypatch.setattr(shapes, "infer_symbolically", lambda *_: (0, ["it stopped"]))
    with caplog.at_level(logging.WARNING):
        quant_pre_process(conv_net(), tmp_path / "o.onnx", auto_merge=True)
    assert "it stopped" in caplog.text


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"all_tensors_to_one_file": True}, ["o.onnx.data"]),
        ({"external_data_location": "weights.bin"}, ["weights.bin"]),
        ({}, ["o.onnx.0.data", "o.onnx.1.data"]),
    ],
)
def test_weights_lie_beside_in_the_files_requested(
    tmp_path: Path, options: dict[str, Any], names: list[str]
) -> None:
    out = tmp_path / "o.onnx"
    sizes = []
    for _ in range(2):
        quant_pre_process(
            conv_net(), out, True, save_as_external_data=True, external_data_size_threshold=100, **options
        )
        sizes.append({p.name: p.stat().st_size for p in tmp_path.iterdir()})
    assert sorted(sizes[0]) == sorted(["o.onnx", *names])
    assert sizes[0] == sizes[1], "a second run replaces, and does not append"
    expected = Session.open(conv_net().SerializeToString()).run(FEEDS)["y"]
    np.testing.assert_allclose(Session.open(out).run(FEEDS)["y"], expected, rtol=1e-5)


def test_weights_file_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="plain file name"):
        quant_pre_process(
            conv_net(), tmp_path / "o.onnx", save_as_external_data=True, external_data_location="../w.bin"
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ([], False),
        (["--skip_optimization"], True),
        (["--skip_optimization", "True"], True),
        (["--skip_optimization", "False"], False),
        (["--skip_optimization=false"], False),
    ],
)
def test_flags_mean_what_they_say(source: Path, tmp_path: Path, flags: list[str], kept: bool) -> None:
    out = tmp_path / "o.onnx"
    preprocess.main(["--input", str(source), "--output", str(out), *flags])
    assert ("BatchNormalization" in ops(out)) == kept
    same(source, out)


def test_every_flag_is_known() -> None:
    text = (
        "--input a --output b --skip_optimization False --skip_onnx_shape True --skip_symbolic_shape"
        " --auto_merge --int_max 7 --guess_output_rank --verbose 2 --save_as_external_data"
        " --all_tensors_to_one_file --external_data_location w --external_data_size_threshold 5"
    )
    options = preprocess.parse_arguments(text.split())
    assert vars(options) == {
        "input": "a",
        "output": "b",
        "skip_optimization": False,
        "skip_onnx_shape": True,
        "skip_symbolic_shape": True,
        "auto_merge": True,
        "int_max": 7,
        "guess_output_rank": True,
        "verbose": 2,
        "save_as_external_data": True,
        "all_tensors_to_one_file": True,
        "external_data_location": "w",
        "external_data_size_threshold": 5,
    }


def test_command_fails_with_a_sentence_and_a_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = ["--input", str(tmp_path / "none.onnx"), "--output", str(tmp_path / "o.onnx")]
    with pytest.raises(ModelError, match="There is no model at"):
        preprocess.main(missing)
    assert exit_code(lambda: preprocess.main(missing), "preprocess") == 1
    assert "none.onnx." in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        preprocess.main(["--input", "m.onnx"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit):
        preprocess.main(["--input", "a", "--output", "b", "--auto_merge", "perhaps"])


def test_module_runs(source: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "octavo.quantization.preprocess",
        "--input",
        "m.onnx",
        "--output",
        "o.onnx",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    same(source, tmp_path / "o.onnx")
