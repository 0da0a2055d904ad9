"""Defects of the stock package that the drop-in does not have; each test is named after the fact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import TensorProto, helper, numpy_helper
from quantizing import listed, run

from octavo.errors import DataError
from octavo.quantization import (
    QuantFormat,
    QuantType,
    get_qdq_config,
    quantize,
    quantize_dynamic,
    quantize_static,
)
from octavo.quantization._errors import QuantizationWarning
from quantization.graphs import IMAGE, ROWS, conv_then, gemm, matmul_then, scalar, values, where
from quantization.peer import Reader, error, samples

FORMATS = pytest.mark.parametrize("quant_format", list(QuantFormat))
OUT = "out.onnx"


def static(float_model: onnx.ModelProto | Path, folder: Path, **more: Any) -> onnx.ModelProto:
    """The model after quantize_static."""
    loaded = float_model if isinstance(float_model, onnx.ModelProto) else onnx.load(float_model)
    more.setdefault("activation_type", QuantType.QUInt8)
    quantize_static(float_model, folder / OUT, Reader(samples(loaded)), **more)
    return onnx.load(folder / OUT)


def ops(quantized: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in quantized.graph.node]


@FORMATS
def test_2_a_clip_whose_bounds_exclude_zero_stays(quant_format: QuantFormat, tmp_path: Path) -> None:
    made = matmul_then("Clip", ["lo", "hi"], {"lo": scalar(1), "hi": scalar(2)})
    result = static(made, tmp_path, quant_format=quant_format)
    assert "Clip" in ops(result)
    assert error(made, result) < 0.1


def _residual_relu() -> onnx.ModelProto:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "product"),
        node("Relu", ["m"], ["r"], "relu"),
        node("Add", ["m", "r"], ["y"], "add"),
    ]
    return model(nodes, [tensor("x", ROWS)], [tensor("y", ROWS)], {"w": values(8, 8)})


@FORMATS
def test_3_a_relu_stays_where_its_input_has_another_reader(quant_format: QuantFormat, tmp_path: Path) -> None:
    made = _residual_relu()
    result = static(made, tmp_path, quant_format=quant_format)
    assert "Relu" in ops(result)
    assert error(made, result) < 0.5


def test_9_external_data_does_not_grow_when_written_again(tmp_path: Path) -> None:
    made = model(
        [node("MatMul", ["x", "w"], ["y"], "product")],
        [tensor("x", (1, 64))],
        [tensor("y", None)],
        {"w": values(64, 64)},
    )
    sizes = []
    for _ in range(3):
        static(made, tmp_path, use_external_data_format=True)
        sizes.append((tmp_path / f"{OUT}.data").stat().st_size)
    assert len(set(sizes)) == 1


def _transposed_int8_weight() -> onnx.ModelProto:
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["w"], "dq"),
        node("Transpose", ["w"], ["t"], "turn"),
        node("MatMul", ["x", "t"], ["y"], "product"),
    ]
    consts = {"q": np.arange(64, dtype=np.int8).reshape(8, 8), "s": scalar(0.1), "z": np.asarray(0, np.int8)}
    return model(nodes, [tensor("x", ROWS)], [tensor("y", ROWS)], consts)


def test_11_a_dequantized_weight_behind_a_transpose_ends(tmp_path: Path) -> None:
    made = _transposed_int8_weight()
    result = static(made, tmp_path, extra_options={"ForceQuantizeNoInputCheck": True})
    assert error(made, result) < 2.0


def test_11_get_qdq_config_ends_too(tmp_path: Path) -> None:
    made = _transposed_int8_weight()
    config = get_qdq_config(made, Reader(samples(made)))
    quantize(made, tmp_path / OUT, config)
    assert error(made, onnx.load(tmp_path / OUT)) < 2.0


@pytest.mark.parametrize(
    "more", [{}, {"nodes_to_exclude": ["op"]}, {"extra_options": {"ForceQuantizeNoInputCheck": True}}]
)
def test_12_where_behind_a_quantized_node(more: dict[str, Any], tmp_path: Path) -> None:
    made = where(True)
    result = static(made, tmp_path, quant_format=QuantFormat.QOperator, **more)
    assert error(made, result) < 0.3


@FORMATS
@pytest.mark.parametrize(
    "entry", [{"scale": 0.05, "zero_point": 3}, {"rmin": -3.0, "rmax": 3.0}, {"rmin": -4, "rmax": 4}]
)
def test_15_overrides_as_plain_numbers(
    entry: dict[str, Any], quant_format: QuantFormat, tmp_path: Path
) -> None:
    made = matmul_then("Sigmoid")
    result = static(
        made, tmp_path, quant_format=quant_format, extra_options={"TensorQuantOverrides": {"t": [entry]}}
    )
    found = {t.name: numpy_helper.to_array(t) for t in result.graph.initializer}
    assert found["t_scale"] == pytest.approx(entry.get("scale", (entry.get("rmax", 0) * 2) / 255))


@pytest.mark.parametrize("kind", [QuantType.QInt4, QuantType.QUInt4, QuantType.QInt16])
def test_16_types_without_a_kernel_are_refused_with_a_sentence(kind: QuantType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose"):
        quantize_dynamic(gemm(), tmp_path / OUT, weight_type=kind)
    with pytest.raises(ValueError, match="QDQ"):
        static(gemm(), tmp_path, weight_type=kind, quant_format=QuantFormat.QOperator)
    assert listed(tmp_path) == []


def test_17_nan_in_an_activation_names_the_tensor(tmp_path: Path) -> None:
    made = matmul_then("Sqrt")
    made.graph.node.append(node("Mul", ["u", "u"], ["v"], "square"))
    made.graph.output[0].name = "v"
    feeds = [{"x": -np.ones(ROWS, np.float32)}, {"x": np.ones(ROWS, np.float32)}]
    with pytest.raises(DataError, match=r"'u'.*NaN"):
        quantize_static(made, tmp_path / OUT, Reader(feeds))


def test_20_a_model_of_a_newer_ir_version_loads(tmp_path: Path) -> None:
    made = gemm()
    made.ir_version = onnx.IR_VERSION
    feeds = samples(gemm())
    quantize_static(made, tmp_path / OUT, Reader(feeds), activation_type=QuantType.QUInt8)
    run(onnx.load(tmp_path / OUT), feeds[0])


def test_21_nothing_is_written_beside_the_users_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, work = tmp_path / "models", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.chdir(work)
    onnx.save(gemm(), home / "m.onnx")
    home.chmod(0o555)
    try:
        static(home / "m.onnx", tmp_path)
        quantize_dynamic(home / "m.onnx", tmp_path / "d.onnx")
        assert listed(home) == ["m.onnx"]
        assert listed(work) == []
    finally:
        home.chmod(0o755)


def test_21_the_callers_options_stay_as_they_are(tmp_path: Path) -> None:
    options: dict[str, Any] = {}
    quantize_dynamic(gemm(), tmp_path / OUT, extra_options=options)
    assert options == {}
    given = {"TensorQuantOverrides": {"x": [{"symmetric": True}]}}
    static(gemm(), tmp_path, extra_options=given)
    assert given == {"TensorQuantOverrides": {"x": [{"symmetric": True}]}}


def test_21_importing_sets_up_no_logging_and_prints_nothing() -> None:
    code = (
        "import logging, octavo.quantization as q; [getattr(q, n) for n in q.__all__];"
        " print(logging.getLogger().handlers, logging.getLogger().level == logging.WARNING)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


def test_31_a_model_in_memory_stays_as_it_is(tmp_path: Path) -> None:
    made = conv_then("Relu")
    before = made.SerializeToString()
    static(made, tmp_path, use_external_data_format=True)
    quantize_dynamic(made, tmp_path / "d.onnx")
    assert made.SerializeToString() == before


@pytest.mark.parametrize("keep", [False, True])
def test_32_a_relu_whose_input_is_an_output_too(keep: bool, tmp_path: Path) -> None:
    made = matmul_then("Relu")
    made.graph.output.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, None))
    result = static(made, tmp_path, extra_options={"QDQKeepRemovableActivations": keep})
    assert error(made, result) < 0.2


def test_33_blocks_that_the_default_session_refuses_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(QuantizationWarning, match="blocks"):
        static(gemm(), tmp_path, extra_options={"BlockSize": 4})
    result = static(
        matmul_then("Relu"), tmp_path, weight_type=QuantType.QInt4, extra_options={"BlockSize": 4}
    )
    assert error(matmul_then("Relu"), result) < 1.5


def test_33_blocks_on_a_convolution_are_not_implemented(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError):
        static(conv_then("Relu"), tmp_path, weight_type=QuantType.QInt4, extra_options={"BlockSize": 4})


def test_34_an_excluded_where_stays_out(tmp_path: Path) -> None:
    made = where(True)
    result = static(
        made, tmp_path, nodes_to_exclude=["op"], extra_options={"ForceQuantizeNoInputCheck": True}
    )
    assert "y_scale" not in {t.name for t in result.graph.initializer}


def _constant_node() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Constant", [], ["w"], "const", value=numpy_helper.from_array(values(64, 64), "w")),
        node("MatMul", ["x", "w"], ["y"], "product"),
    ]
    return model(nodes, [tensor("x", (2, 64))], [tensor("y", None)])


def test_35_weights_in_constant_nodes_are_quantized(tmp_path: Path) -> None:
    made = _constant_node()
    result = static(made, tmp_path)
    assert {t.name: t.data_type for t in result.graph.initializer}["w_quantized"] == TensorProto.INT8
    quantize_dynamic(made, tmp_path / "d.onnx")
    assert "MatMulInteger" in ops(onnx.load(tmp_path / "d.onnx"))
    assert (tmp_path / OUT).stat().st_size < len(made.SerializeToString()) / 2


def test_36_scales_per_channel_raise_the_opset_that_they_need(tmp_path: Path) -> None:
    made = model(
        [node("Conv", ["x", "w"], ["y"], "conv")], [tensor("x", IMAGE)], [tensor("y", None)],
        {"w": values(4, 4, 3, 3)}, opset=12,
    )  # fmt: skip
    result = static(made, tmp_path, per_channel=True)
    assert result.opset_import[0].version >= 13
    assert error(made, result) < 0.3


def test_37_no_file_is_left_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    made = gemm()
    for method in ("MinMax", "Entropy", "Percentile"):
        from octavo.quantization import CalibrationMethod

        static(made, tmp_path, calibrate_method=CalibrationMethod[method])
    assert listed(work) == []


def test_a_scale_along_the_wrong_axis_is_refused(tmp_path: Path) -> None:
    """The runtime would compute something else: an error of 1.0 on a product of 8 × 8."""
    options = {"QDQOpTypePerChannelSupportToAxis": {"MatMul": 0}}
    with pytest.raises(ValueError, match="axis 1"):
        static(matmul_then("Relu"), tmp_path, per_channel=True, extra_options=options)


def test_a_bias_that_two_layers_share_is_right_in_both(tmp_path: Path) -> None:
    from quantization.graphs import shared_bias

    made = shared_bias()
    for quant_format in QuantFormat:
        result = static(made, tmp_path, quant_format=quant_format)
        assert error(made, result) < 3.0
        names = {t.name for t in result.graph.initializer if t.data_type == TensorProto.INT32}
        assert len({n for n in names if n.startswith("b") and n.endswith("_quantized")}) == 2
