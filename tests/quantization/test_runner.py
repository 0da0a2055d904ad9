"""The static quantization runner: a model folder goes in, a model that runs comes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import TensorProto, numpy_helper

from octavo.errors import DataError, ModelError, RecipeError
from octavo.model.runtime.session import Session
from octavo.quantization import static_quantize_runner as runner
from octavo.quantization._command import exit_code
from octavo.quantization.quant_utils import QuantType

F32 = np.float32


def net() -> onnx.ModelProto:
    """Conv with bias, Relu, pooling, MatMul: large enough to be worth quantizing."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("GlobalAveragePool", ["r"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flat"),
        node("MatMul", ["f", "m"], ["y"], "mm"),
    ]
    arrays = {
        "w": rng.standard_normal((16, 3, 3, 3)).astype(F32) / 3,
        "b": rng.standard_normal(16).astype(F32),
        "m": rng.standard_normal((16, 32)).astype(F32) / 4,
    }
    return model(nodes, [tensor("x", [1, 3, 8, 8])], [tensor("y", [1, 32])], arrays)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(net(), tmp_path / "model.onnx")
    rng = np.random.default_rng(1)
    for number in (0, 1, 2, 10):
        inside = tmp_path / f"test_data_set_{number}"
        inside.mkdir()
        array = rng.standard_normal((1, 3, 8, 8)).astype(F32)
        array[0, 0, 0, 0] = number
        onnx.save_tensor(numpy_helper.from_array(array, "x"), inside / "input_0.pb")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def quantized(*arguments: str) -> onnx.ModelProto:
    """Run on bare file names, check the result against float, and return it."""
    runner.main(["-i", "model.onnx", "-o", "out.onnx", *arguments])
    feeds = runner.OnnxModelCalibrationDataReader("model.onnx").get_next()
    assert feeds is not None
    wanted, got = (Session.open(path).run(feeds)["y"] for path in ("model.onnx", "out.onnx"))
    assert np.abs(got - wanted).max() <= 0.25 * np.abs(wanted).max()
    return onnx.load("out.onnx")


def ops(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in proto.graph.node)


def types(proto: onnx.ModelProto) -> dict[str, int]:
    return {t.name: t.data_type for t in proto.graph.initializer}


def test_reader_gives_samples_in_the_order_of_their_numbers(folder: Path) -> None:
    reader = runner.OnnxModelCalibrationDataReader("model.onnx")
    assert [sample["x"][0, 0, 0, 0] for sample in reader] == [0, 1, 2, 10]
    assert len(reader) == 4
    reader.set_range(1, 3)
    assert [sample["x"][0, 0, 0, 0] for sample in reader] == [1, 2]
    assert reader.read_onnx_pb_data(folder / "test_data_set_0" / "input_0.pb").shape == (1, 3, 8, 8)


def test_reader_says_what_is_missing_or_broken(folder: Path, tmp_path: Path) -> None:
    (folder / "test_data_set_0" / "input_0.pb").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="read as a tensor"):
        runner.OnnxModelCalibrationDataReader("model.onnx").get_next()
    (folder / "test_data_set_0" / "input_0.pb").unlink()
    with pytest.raises(DataError, match="can't be read"):
        runner.OnnxModelCalibrationDataReader("model.onnx").get_next()
    (folder / "alone").mkdir()
    onnx.save(net(), folder / "alone" / "m.onnx")
    with pytest.raises(DataError, match="no folder test_data_set_N"):
        runner.OnnxModelCalibrationDataReader(folder / "alone" / "m.onnx")


def test_bare_file_names_and_defaults_give_a_qdq_model(folder: Path) -> None:
    found = quantized()
    assert ops(found)["QuantizeLinear"] >= 3
    assert types(found)["w_quantized"] == TensorProto.INT8
    assert types(found)["x_zero_point"] == TensorProto.UINT8
    assert types(found)["b_quantized"] == TensorProto.INT32


@pytest.mark.parametrize(
    ("arguments", "name", "kind"),
    [
        (["--activation_type", "qint8"], "x_zero_point", TensorProto.INT8),
        (["--activation_type", "quint16"], "x_zero_point", TensorProto.UINT16),
        (["--weight_type", "quint8"], "w_quantized", TensorProto.UINT8),
        (["--weight_type", "qint16", "--activation_type", "qint16"], "w_quantized", TensorProto.INT16),
    ],
)
def test_types_are_those_requested(folder: Path, arguments: list[str], name: str, kind: int) -> None:
    assert types(quantized(*arguments))[name] == kind


@pytest.mark.parametrize(
    ("arguments", "is_quantized"),
    [
        (["--quantize_bias"], True),
        (["--quantize_bias", "False"], False),
        (["--disable_quantize_bias"], False),
        (["--disable_quantize_bias", "False"], True),
    ],
)
def test_biases_are_quantized_unless_disabled(folder: Path, arguments: list[str], is_quantized: bool) -> None:
    assert ("b_quantized" in types(quantized(*arguments))) == is_quantized


def test_scales_per_channel_and_along_an_axis_of_choice(folder: Path) -> None:
    found = quantized("--per_channel", "--op_per_channel_axis", "MatMul", "1")
    sizes = {t.name: int(np.prod(t.dims)) for t in found.graph.initializer}
    assert (sizes["w_scale"], sizes["m_scale"]) == (16, 32)


def test_format_nodes_and_method(folder: Path) -> None:
    assert ops(quantized("--quant_format", "qoperator"))["QLinearConv"] == 1
    assert "w_quantized" not in types(quantized("--nodes_to_exclude", "conv"))
    assert "m_quantized" not in types(quantized("--nodes_to_quantize", "conv"))
    for method in ("entropy", "percentile"):
        quantized("--calibration_method", method)


def test_overrides_in_the_format_of_the_tool(folder: Path) -> None:
    (folder / "encoding.json").write_text('{"c": [{"scale": 0.005, "zero_point": 12}]}')
    flags = ["--tensor_quant_overrides", "encoding.json", "--qdq_keep_removable_activations"]
    long = ["--input_model_path", "model.onnx", "--output_quantized_model_path", "o.onnx"]
    runner.main([*long, *flags])
    found = {t.name: numpy_helper.to_array(t) for t in onnx.load("o.onnx").graph.initializer}
    assert (found["c_scale"], found["c_zero_point"]) == (F32(0.005), 12)


def test_overrides_of_types_ranges_and_conversions_are_translated(tmp_path: Path) -> None:
    (tmp_path / "o.json").write_text(
        json.dumps(
            {
                "a": [{"quant_type": "QInt16", "rmin": -1.0, "rmax": 2.0}],
                "b": [{"convert": {"quant_type": "quint8", "recv_nodes": ["n"]}}],
            }
        )
    )
    found = runner.get_tensor_quant_overrides(tmp_path / "o.json")
    assert found["a"] == [{"quant_type": QuantType.QInt16, "rmin": -1.0, "rmax": 2.0}]
    assert found["b"] == [{"convert": {"quant_type": QuantType.QUInt8, "recv_nodes": {"n"}}}]
    assert runner.get_tensor_quant_overrides(None) == {}


@pytest.mark.parametrize("content", ["{", "[]", '{"a": {}}', '{"a": []}', '{"a": [{"quant_type": "qint7"}]}'])
def test_damaged_overrides_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "o.json").write_text(content)
    with pytest.raises(RecipeError):
        runner.get_tensor_quant_overrides(tmp_path / "o.json")


def options(*arguments: str) -> dict[str, Any]:
    return runner.extra_options(runner.parse_arguments(["-i", "a", "-o", "b", *arguments]))


@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("--enable_subgraph", "EnableSubgraph"),
        ("--force_quantize_no_input_check", "ForceQuantizeNoInputCheck"),
        ("--matmul_const_b_only", "MatMulConstBOnly"),
        ("--add_qdq_pair_to_weight", "AddQDQPairToWeight"),
        ("--dedicated_qdq_pair", "DedicatedQDQPair"),
        ("--calib_tensor_range_symmetric", "CalibTensorRangeSymmetric"),
        ("--calib_moving_average", "CalibMovingAverage"),
        ("--use_qdq_contrib_ops", "UseQDQContribOps"),
        ("--qdq_keep_removable_activations", "QDQKeepRemovableActivations"),
        ("--qdq_disable_weight_adjust_for_int32_bias", "QDQDisableWeightAdjustForInt32Bias"),
    ],
)
def test_each_flag_sets_its_option_in_either_variant(flag: str, key: str) -> None:
    assert options(flag)[key] is True
    assert options(flag, "True")[key] is True
    assert not options(flag, "False").get(key)
    assert key not in options()


def test_flags_with_values_set_their_options() -> None:
    assert options()["MinimumRealRange"] == 0.0001
    assert options("--minimum_real_range", "0.5")["MinimumRealRange"] == 0.5
    assert options("--op_types_to_exclude_output_quantization", "Conv", "Relu")[
        "OpTypesToExcludeOutputQuantization"
    ] == ["Conv", "Relu"]
    axes = options("--op_per_channel_axis", "MatMul", "1", "--op_per_channel_axis", "Conv", "0")
    assert axes["QDQOpTypePerChannelSupportToAxis"] == {"MatMul": 1, "Conv": 0}
    with pytest.raises(RecipeError, match="not an integer"):
        options("--op_per_channel_axis", "MatMul", "one")


def test_every_flag_quantizes_a_model_that_runs(folder: Path) -> None:
    for flag in ("--add_qdq_pair_to_weight", "--dedicated_qdq_pair", "--use_qdq_contrib_ops"):
        quantized(flag)
    quantized("--calib_moving_average", "--calib_tensor_range_symmetric", "--force_quantize_no_input_check")


def test_main_raises_and_the_command_prints_a_sentence_with_an_exit_code(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, kind, code in (
        (["-i", "none.onnx", "-o", "o.onnx"], ModelError, 1),
        (
            ["-i", "model.onnx", "-o", "o.onnx", "--activation_type", "qint8", "--weight_type", "quint8"],
            ValueError,
            2,
        ),
    ):
        with pytest.raises(kind) as raised:
            runner.main(arguments)
        assert exit_code(lambda given=arguments: runner.main(given), "runner") == code  # type: ignore[misc]
        assert capsys.readouterr().err == f"runner: {raised.value}\n"
    with pytest.raises(SystemExit):
        runner.main(["-i", "model.onnx"])


def test_module_runs(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [
        sys.executable,
        "-m",
        "octavo.quantization.static_quantize_runner",
        "-i",
        "model.onnx",
        "-o",
        "o.onnx",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert (folder / "o.onnx").exists()
