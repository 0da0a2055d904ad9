"""The entry points, used as a user of stock uses them; results are looked at by running and reading them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import TensorProto, numpy_helper
from quantizing import listed

import octavo.quantization as q
from octavo.quantization import CalibrationMethod, QuantFormat, QuantType, registry
from octavo.quantization.onnx_quantizer import ONNXQuantizer
from octavo.quantization.quantize import QuantConfig, check_static_quant_arguments
from quantization.graphs import CASES, ROWS, conv_then, gemm, matmul_then, residual, values
from quantization.peer import Reader, error, samples

OUT = "out.onnx"


def arrays(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def op_types(path: Path) -> set[str]:
    return {n.op_type for n in onnx.load(path).graph.node}


@pytest.mark.parametrize("as_path", [True, False])
@pytest.mark.parametrize("quant_format", list(QuantFormat))
def test_static_from_a_path_and_from_memory(quant_format: QuantFormat, as_path: bool, tmp_path: Path) -> None:
    made = residual()
    onnx.save(made, tmp_path / "m.onnx")
    source = str(tmp_path / "m.onnx") if as_path else made
    q.quantize_static(
        source,
        str(tmp_path / OUT),
        Reader(samples(made)),
        quant_format,
        activation_type=QuantType.QUInt8,
        calibration_providers=["CPUExecutionProvider"],
    )
    assert error(made, onnx.load(tmp_path / OUT)) < 0.15


def test_a_model_may_be_replaced_by_its_quantized_self(tmp_path: Path) -> None:
    onnx.save(gemm(), tmp_path / "m.onnx")
    q.quantize_dynamic(tmp_path / "m.onnx", tmp_path / "m.onnx")
    assert "MatMulInteger" in op_types(tmp_path / "m.onnx")


def test_scales_and_zero_points_lie_in_typed_fields_zero_point_first(tmp_path: Path) -> None:
    made = gemm()
    q.quantize_static(made, tmp_path / OUT, Reader(samples(made)), activation_type=QuantType.QUInt8)
    stored = {t.name: t for t in onnx.load(tmp_path / OUT).graph.initializer}
    assert len(stored["x_scale"].float_data) == 1
    assert len(stored["x_zero_point"].int32_data) == 1
    names = list(stored)
    assert names.index("x_zero_point") < names.index("x_scale")
    assert stored["w_quantized"].raw_data


def test_the_bias_of_a_second_layer_is_named_after_the_first(tmp_path: Path) -> None:
    made = CASES["shared bias"]()
    q.quantize_static(made, tmp_path / OUT, Reader(samples(made)), activation_type=QuantType.QUInt8)
    assert {"b_quantized", "b0_quantized"} <= set(arrays(tmp_path / OUT))


def test_dynamic_runs_and_names_its_parameters(tmp_path: Path) -> None:
    made = matmul_then("Relu")
    q.quantize_dynamic(made, tmp_path / OUT)
    assert {"w_scale", "w_zero_point", "w_quantized"} == set(arrays(tmp_path / OUT))
    assert error(made, onnx.load(tmp_path / OUT)) < 0.2


def test_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    made = model(
        [node("MatMul", ["x", "w"], ["y"], "m")],
        [tensor("x", (1, 64))],
        [tensor("y", None)],
        {"w": values(64, 64)},
    )
    q.quantize_dynamic(made, tmp_path / OUT, use_external_data_format=True)
    assert listed(tmp_path) == [OUT, f"{OUT}.data"]


@pytest.mark.parametrize("method", ["MinMax", "Entropy", "Percentile"])
def test_a_calibration_cache_serves_a_second_run_without_data(method: str, tmp_path: Path) -> None:
    made, cache = residual(), tmp_path / "cache.json"
    wanted: Any = {
        "activation_type": QuantType.QUInt8,
        "calibrate_method": CalibrationMethod[method],
        "calibration_cache_path": cache,
    }
    q.quantize_static(made, tmp_path / "a.onnx", Reader(samples(made)), **wanted)
    q.quantize_static(made, tmp_path / "b.onnx", **wanted)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    other = {**wanted, "calibrate_method": CalibrationMethod.Distribution}
    with pytest.raises(ValueError, match="was made with"):
        q.quantize_static(made, tmp_path / "c.onnx", **other)


def test_neither_data_nor_cache_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="calibration_data_reader"):
        q.quantize_static(gemm(), tmp_path / OUT)
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        q.quantize_static(gemm(), tmp_path / OUT, calibration_cache_path=tmp_path / "none.json")


@pytest.mark.parametrize(
    "quant_format, activation, weight",
    [
        ("QDQ", "QInt8", "QUInt8"),
        ("QDQ", "QFLOAT8E4M3FN", "QInt8"),
        ("QOperator", "QUInt16", "QInt8"),
        ("QOperator", "QUInt8", "QInt4"),
    ],
)
def test_types_that_do_not_go_together(quant_format: str, activation: str, weight: str) -> None:
    with pytest.raises(ValueError, match="choose"):
        check_static_quant_arguments(QuantFormat[quant_format], QuantType[activation], QuantType[weight])


def test_float8_needs_the_distribution(tmp_path: Path) -> None:
    kind = QuantType.QFLOAT8E4M3FN
    with pytest.raises(ValueError, match="Distribution"):
        q.quantize_static(gemm(), tmp_path / OUT, Reader([]), activation_type=kind, weight_type=kind)


def test_slow_choices_are_said_once(tmp_path: Path) -> None:
    made = conv_then("Relu")
    with pytest.warns(UserWarning, match="QUInt8"):
        q.quantize_static(made, tmp_path / OUT, Reader(samples(made)))
    with pytest.warns(UserWarning, match="leave Conv out"):
        q.quantize_dynamic(made, tmp_path / OUT)


def test_nothing_to_quantize_is_a_warning_and_a_copy(tmp_path: Path) -> None:
    made = gemm()
    with pytest.warns(UserWarning, match="Nothing"):
        q.quantize_dynamic(made, tmp_path / OUT, op_types_to_quantize=["Conv"])
    assert error(made, onnx.load(tmp_path / OUT)) == 0.0


def test_the_configurations(tmp_path: Path) -> None:
    made = residual()
    static = q.StaticQuantConfig(
        Reader(samples(made)), activation_type=QuantType.QUInt8, per_channel=True, nodes_to_exclude=["two"]
    )
    q.quantize(made, tmp_path / OUT, static)
    stored = arrays(tmp_path / OUT)
    assert stored["w_scale"].shape == (4,)
    assert "w2_scale" not in stored
    q.quantize(
        made,
        tmp_path / OUT,
        q.DynamicQuantConfig(weight_type=QuantType.QUInt8, op_types_to_quantize=["MatMul"]),
    )
    assert arrays(tmp_path / OUT)["v_quantized"].dtype == np.uint8
    with pytest.raises(TypeError, match="quant_config"):
        q.quantize(made, tmp_path / OUT, QuantConfig())


def test_get_qdq_config_takes_every_operator_and_a_predicate(tmp_path: Path) -> None:
    made = CASES["Tanh"]()
    config = q.get_qdq_config(
        made,
        Reader(samples(made)),
        calibrate_args={"moving_average": True, "averaging_constant": 0.2},
        nodes_to_exclude=lambda _, node: node.op_type == "Mul",
        min_real_range=1e-3,
        tensor_quant_overrides={"x": [{"symmetric": True}]},
    )
    assert config.extra_options["ForceQuantizeNoInputCheck"] is True
    assert config.extra_options["CalibMovingAverageConstant"] == 0.2
    assert config.op_types_to_quantize == ["Conv", "Tanh"]
    assert config.nodes_to_exclude == ["last"]
    q.quantize(made, tmp_path / OUT, config)
    stored = arrays(tmp_path / OUT)
    assert "u_scale" in stored
    assert "y_scale" not in stored
    assert stored["x_zero_point"] == 128


def ranges(made: onnx.ModelProto) -> q.TensorsData:
    names = {n for node_ in made.graph.node for n in (*node_.input, *node_.output)}
    held = {t.name for t in made.graph.initializer}
    return q.TensorsData(CalibrationMethod.MinMax, {n: (np.float32(-4), np.float32(6)) for n in names - held})


def test_the_qdq_quantizer_by_position() -> None:
    made = residual()
    before = made.SerializeToString()
    quantizer = q.QDQQuantizer(
        made,
        True,
        False,
        QuantType.QInt8,
        QuantType.QUInt8,
        ranges(made),
        [],
        ["two"],
        ["Conv", "Gemm", "Relu"],
        {},
    )
    result = quantizer.quantize_model()
    assert result is quantizer.model.model
    assert made.SerializeToString() == before
    stored = {t.name: numpy_helper.to_array(t) for t in result.graph.initializer}
    assert stored["x_scale"] == pytest.approx(10 / 255)
    assert stored["w_scale"].shape == (4,)
    assert "w2_scale" not in stored
    assert any(n.op_type == "Relu" for n in result.graph.node)  # a range from -4 on does not do its work


def test_the_onnx_quantizer_by_position() -> None:
    made = residual()
    static = ONNXQuantizer(
        made, False, False, q.QuantizationMode.QLinearOps, True, QuantType.QInt8, QuantType.QUInt8,
        ranges(made), [], [],
        ["Conv", "Gemm"], {},
    )  # fmt: skip
    assert {n.op_type for n in static.quantize_model().graph.node} >= {"QLinearConv", "QGemm"}
    dynamic = ONNXQuantizer(
        made, False, False, q.QuantizationMode.IntegerOps, False, QuantType.QInt8, QuantType.QUInt8,
        None, [], [], ["Conv"], {},
    )  # fmt: skip
    assert "ConvInteger" in {n.op_type for n in dynamic.quantize_model().graph.node}


def test_a_missing_range_names_the_tensor() -> None:
    made = gemm()
    given = q.TensorsData(CalibrationMethod.MinMax, {"x": (np.float32(-1), np.float32(1))})
    quantizer = q.QDQQuantizer(
        made, False, False, QuantType.QInt8, QuantType.QUInt8, given, [], [], ["Gemm"], {}
    )
    with pytest.raises(ValueError, match="'y'"):
        quantizer.quantize_model()


def test_questions_that_a_quantizer_answers() -> None:
    made = gemm()
    quantizer = q.QDQQuantizer(
        made, True, False, QuantType.QInt8, QuantType.QUInt8, ranges(made), [], [], ["Gemm"], {}
    )
    assert quantizer.weight_qType == TensorProto.INT8
    assert quantizer.activation_qType == TensorProto.UINT8
    assert quantizer.is_weight_symmetric(TensorProto.INT8)
    assert quantizer.is_input_a_initializer("w")
    assert quantizer.is_valid_quantize_weight("w")
    assert quantizer.is_tensor_per_channel("w", 1) == (True, 1)
    assert quantizer.should_quantize_node(made.graph.node[0])
    params = quantizer.calc_graph_quant_params()["x"].original
    assert params["scale"] == pytest.approx(10 / 255)
    assert params["quant_type"] == TensorProto.UINT8


def test_single_tensors_by_the_quantizer() -> None:
    made = gemm()
    quantizer = q.QDQQuantizer(
        made, False, False, QuantType.QInt8, QuantType.QUInt8, ranges(made), [], [], ["Gemm"], {}
    )
    names = quantizer.quantize_bias_static_impl("b", np.float32([0.1]), np.float32([0.2]))
    assert names[:3] == ("b_quantized", "b_quantized_scale", "b_quantized_zero_point")
    weight = quantizer.model.get_initializer("w")
    assert weight is not None
    assert quantizer.quantize_initializer_impl(weight, TensorProto.INT8) == (
        "w_quantized",
        "w_zero_point",
        "w_scale",
    )
    stored = {t.name: numpy_helper.to_array(t) for t in quantizer.model.initializer()}
    bias = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}["b"]
    np.testing.assert_allclose(stored["b_quantized"] * np.float32(0.02), bias, atol=0.011)


def test_a_tensor_requested_by_name_is_quantized() -> None:
    made = CASES["Tanh"]()
    quantizer = q.QDQQuantizer(
        made, False, False, QuantType.QInt8, QuantType.QUInt8, ranges(made), [], [], ["Conv"], {}
    )
    quantizer.quantize_activation_tensor("u")
    assert quantizer.is_tensor_quantized("u")
    assert "u_scale" in {t.name for t in quantizer.quantize_model().graph.initializer}


def test_a_weight_requested_by_name_is_quantized_along_its_axis() -> None:
    made = CASES["tied weight"]()
    quantizer = q.QDQQuantizer(
        made, False, False, QuantType.QInt8, QuantType.QUInt8, ranges(made), [], [], ["Exp"], {}
    )
    quantizer.quantize_weight_tensor_per_channel("w", 1)
    stored = {t.name: numpy_helper.to_array(t) for t in quantizer.quantize_model().graph.initializer}
    assert stored["w_scale"].shape == (8,)
    assert stored["w_quantized"].dtype == np.int8
    with pytest.raises(ValueError, match="float initializer"):
        quantizer.quantize_weight_tensor("x")


def test_types_that_the_onnx_quantizer_knows() -> None:
    made = onnx.shape_inference.infer_shapes(gemm())
    quantizer = ONNXQuantizer(
        made, False, False, q.QuantizationMode.IntegerOps, False, QuantType.QInt8, QuantType.QUInt8,
        None, [], [], ["MatMul"], {},
    )  # fmt: skip
    assert quantizer.get_tensor_type("w") == TensorProto.FLOAT
    assert quantizer.is_float_tensor("x")
    assert not quantizer.has_QDQ_nodes()
    assert quantizer.contains_tensor("y")
    with pytest.raises(RuntimeError, match="nowhere"):
        quantizer.get_tensor_type("nowhere", mandatory=True)


def test_registries_say_what_a_node_becomes() -> None:
    made = gemm()
    quantizer = ONNXQuantizer(
        made, False, False, q.QuantizationMode.QLinearOps, True, QuantType.QInt8, QuantType.QUInt8,
        ranges(made), [], [], ["Gemm"], {},
    )  # fmt: skip
    found = registry.CreateOpQuantizer(quantizer, made.graph.node[0])
    assert (type(found).__name__, found.should_quantize()) == ("QLinearGemm", True)
    assert type(registry.CreateQDQQuantizer(quantizer, made.graph.node[0])).__name__ == "QDQGemm"
    default = registry.CreateDefaultOpQuantizer(quantizer, made.graph.node[0])
    assert type(default).__name__ == "QuantOperatorBase"
    with pytest.raises(NotImplementedError, match=r"quantize_model\(\)"):
        found.quantize()


def test_quantize_is_the_function_and_stays_it() -> None:
    import octavo.quantization.quantize  # noqa: F401

    assert callable(q.quantize)
    assert set(q.__all__) == set(dir(q))


def test_a_type_that_cannot_be_inferred(tmp_path: Path) -> None:
    nodes = [
        node("Mystery", ["x"], ["h"], "mystery", domain="nowhere"),
        node("MatMul", ["h", "w"], ["t"], "product"),
        node("Mystery", ["t"], ["y"], "another", domain="nowhere"),
    ]
    made = model(nodes, [tensor("x", ROWS)], [tensor("y", ROWS)], {"w": values(8, 8)}, domains={"nowhere": 1})
    with pytest.raises(RuntimeError, match="'h'"):
        q.quantize_dynamic(made, tmp_path / OUT)
    q.quantize_dynamic(made, tmp_path / OUT, extra_options={"DefaultTensorType": TensorProto.FLOAT})
    assert "MatMulInteger" in op_types(tmp_path / OUT)


def test_a_configuration_for_weights_alone(tmp_path: Path) -> None:
    from octavo.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig

    made = model(
        [node("MatMul", ["x", "w"], ["y"], "m")],
        [tensor("x", (1, 64))],
        [tensor("y", None)],
        {"w": values(64, 64)},
    )
    q.quantize(made, tmp_path / OUT, DefaultWeightOnlyQuantConfig(block_size=32))
    assert op_types(tmp_path / OUT) == {"MatMulNBits"}
    assert listed(tmp_path) == [OUT, f"{OUT}.data"]
