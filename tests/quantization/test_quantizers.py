"""The methods by which others build on the quantizers: single tensors, nodes that go, the four modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import TensorProto, helper, numpy_helper
from quantizing import run

from octavo.quantization import CalibrationMethod, QDQQuantizer, QuantizationMode, QuantType, TensorsData
from octavo.quantization.onnx_quantizer import ONNXQuantizer
from octavo.quantization.qdq_quantizer import QDQBiasQuantInfo
from quantization.graphs import CASES, gemm, residual, values
from quantization.peer import error, samples

LOW, HIGH = np.float32(-4), np.float32(6)


def ranges(made: onnx.ModelProto) -> TensorsData:
    """Of every tensor, from what it is on some samples."""
    names = {n for node_ in made.graph.node for n in (*node_.input, *node_.output) if n}
    wanted = sorted(names - {t.name for t in made.graph.initializer})
    shown = onnx.ModelProto()
    shown.CopyFrom(made)
    have = {v.name for v in shown.graph.output} | {v.name for v in shown.graph.input}
    shown.graph.output.extend(helper.make_tensor_value_info(n, 1, None) for n in wanted if n not in have)
    found: dict[str, tuple[np.float32, np.float32]] = {}
    for feeds in samples(made):
        for name, array in {**feeds, **run(shown, feeds)}.items():
            low, high = found.get(name, (np.float32(0), np.float32(0)))
            found[name] = (np.float32(min(low, array.min())), np.float32(max(high, array.max())))
    return TensorsData(CalibrationMethod.MinMax, found)


def qdq(made: onnx.ModelProto, op_types: list[str], **more: Any) -> QDQQuantizer:
    options = more.pop("options", {})
    return QDQQuantizer(
        made, more.pop("per_channel", False), False, QuantType.QInt8, QuantType.QUInt8,
        ranges(made), [], [], op_types, options,
    )  # fmt: skip


def integers(
    made: onnx.ModelProto, mode: QuantizationMode, static: bool, op_types: list[str], **more: Any
) -> ONNXQuantizer:
    known = more.pop("known", ranges(made))
    return ONNXQuantizer(
        made, more.pop("per_channel", False), False, mode, static, QuantType.QInt8, QuantType.QUInt8, known,
        [], [], op_types, more.pop("options", {}),
    )  # fmt: skip


def stored(made: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}


def ops(made: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in made.graph.node]


# ---- QDQQuantizer


def test_a_layer_requested_tensor_by_tensor_is_the_layer_requested_by_its_type() -> None:
    made = gemm()
    by_type = qdq(made, ["Gemm"]).quantize_model()
    asked = qdq(made, ["Exp"])
    for name in ("x", "y"):
        asked.quantize_activation_tensor(name)
    asked.quantize_weight_tensor("w")
    asked.quantize_bias_tensor("gemm", "b", "x", "w")
    assert asked.bias_to_quantize["b"] == QDQBiasQuantInfo("gemm", "x", "w", 1.0)
    assert all(asked.is_tensor_quantized(n) for n in ("x", "w", "b", "y"))
    by_tensor = asked.quantize_model()
    assert sorted(ops(by_tensor)) == sorted(ops(by_type))
    want, got = stored(by_type), stored(by_tensor)
    assert want.keys() == got.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


def test_a_bias_needs_its_input_and_its_weight_quantized() -> None:
    asked = qdq(gemm(), ["Exp"])
    asked.quantize_bias_tensor("gemm", "b", "x", "w")
    with pytest.raises(ValueError, match="takes its scale from"):
        asked.quantize_model()


def test_a_bias_with_overrides_goes_by_them() -> None:
    asked = qdq(gemm(), ["Gemm"], options={"TensorQuantOverrides": {"b": [{"quant_type": QuantType.QInt8}]}})
    asked.quantize_bias_tensor("gemm", "b", "x", "w")
    assert "b" in asked.tensors_to_quantize
    assert stored(asked.quantize_model())["b_quantized"].dtype == np.int8


def test_an_output_with_the_parameters_of_its_input() -> None:
    made = CASES["Tanh"]()
    tanh = next(n for n in made.graph.node if n.op_type == "Tanh")
    asked = qdq(made, ["Conv"])
    asked.quantize_output_same_as_input(tanh.output[0], tanh.input[0], tanh.name)
    assert asked.tensors_to_quantize[tanh.output[0]].is_shared
    result = asked.quantize_model()
    pairs = {n.input[0]: n.input[1:] for n in result.graph.node if n.op_type == "QuantizeLinear"}
    assert pairs[tanh.output[0]] == pairs[tanh.input[0]]
    assert error(made, result) < 0.3


def test_a_relu_that_is_taken_out_by_hand() -> None:
    made = residual()
    relu = next(n for n in made.graph.node if n.op_type == "Relu")
    asked = qdq(made, ["Conv", "Gemm"])
    assert asked.try_replacing_upstream_output(relu.input[0], relu.output[0])
    asked.remove_node(relu)
    assert asked.nodes_to_remove == [relu]
    result = asked.quantize_model()
    assert ops(result).count("Relu") == ops(made).count("Relu") - 1
    assert error(made, result) < 0.3
    assert not asked.try_replacing_upstream_output("x", relu.output[0])  # an input of the graph


def test_nodes_are_removed_at_once_if_requested() -> None:
    asked = qdq(gemm(), ["Gemm"])
    asked.remove_node(asked.model.nodes()[0])
    asked.remove_nodes()
    assert list(asked.model.nodes()) == []


def test_a_bias_as_integers_at_once() -> None:
    made = gemm()
    asked = qdq(made, ["Gemm"])
    assert asked.quantize_bias_static("b", QDQBiasQuantInfo("gemm", "x", "w", 1.0)) == "b_quantized"
    found = stored(asked.model.model)
    np.testing.assert_allclose(
        found["b_quantized"] * found["b_quantized_scale"].astype(np.float64), stored(made)["b"], atol=1e-3
    )


def test_ranges_as_clamps_and_softmax_leave_them() -> None:
    made = residual()
    asked = qdq(made, ["Conv", "Gemm", "Relu", "Softmax"])
    relu = next(n for n in made.graph.node if n.op_type == "Relu")
    softmax = next(n for n in made.graph.node if n.op_type == "Softmax")
    assert asked.tensors_range[relu.input[0]].lowest < 0
    asked.adjust_tensor_ranges()
    assert asked.tensors_range[relu.input[0]].lowest == 0
    assert asked.tensors_range[softmax.output[0]].range_value == (0.0, 1.0)


# ---- ONNXQuantizer


@pytest.mark.parametrize("case", ["residual", "Tanh"])
def test_integer_operators_with_inputs_of_known_range(case: str) -> None:
    made = residual() if case == "residual" else CASES[case]()
    result = integers(made, QuantizationMode.IntegerOps, True, ["Conv"]).quantize_model()
    assert {"QuantizeLinear", "ConvInteger"} <= set(ops(result))
    assert "DynamicQuantizeLinear" not in ops(result)
    assert error(made, result) < 0.3


def test_integer_operators_without_ranges_name_the_tensor() -> None:
    with pytest.raises(ValueError, match="'x'"):
        integers(residual(), QuantizationMode.IntegerOps, True, ["Conv"], known=None).quantize_model()


def test_qlinear_operators_with_an_input_of_any_range() -> None:
    made = CASES["Tanh"]()
    conv = next(n for n in made.graph.node if n.op_type == "Conv")
    known = {conv.output[0]: ranges(made)[conv.output[0]]}
    result = integers(made, QuantizationMode.QLinearOps, False, ["Conv"], known=known).quantize_model()
    assert {"DynamicQuantizeLinear", "QLinearConv"} <= set(ops(result))
    assert error(made, result) < 0.3


def test_an_operator_written_by_hand() -> None:
    """What an own operator needs is made one by one; the rest of the model is quantized as ever."""
    made = model(
        [
            node("MatMul", ["x", "w"], ["m"], "by_hand"),
            node("Relu", ["m"], ["r"], "relu"),
            node("MatMul", ["r", "v"], ["y"], "usual"),
        ],
        [tensor("x", [2, 8])],
        [tensor("y", [2, 4])],
        {"w": values(8, 6), "v": values(6, 4)},
    )
    by_hand = next(n for n in made.graph.node if n.name == "by_hand")
    quantizer = integers(made, QuantizationMode.QLinearOps, True, ["MatMul"])
    assert quantizer.find_quantized_value("x") is None
    (x,), (x_zero,), (x_scale,), nodes = quantizer.quantize_activation(by_hand, [0])
    (w,), (w_zero,), (w_scale,), none = quantizer.quantize_weight(by_hand, [1])
    assert (x, x_scale, x_zero, w) == ("x_quantized", "x_scale", "x_zero_point", "w_quantized")
    assert [n.op_type for n in nodes] == ["QuantizeLinear"]
    assert none == []
    assert quantizer.quantize_activation(by_hand, [0])[3] == []  # made before
    assert quantizer.find_quantized_value("w").q_name == "w_quantized"
    params = quantizer.calculate_quantization_params()["m"]
    quantizer.model.initializer_extend(
        [
            numpy_helper.from_array(np.asarray(params["scale"]), "own_scale"),
            numpy_helper.from_array(np.asarray(params["zero_point"]), "own_zero"),
        ]
    )
    reads = [x, x_scale, x_zero, w, w_scale, w_zero, "own_scale", "own_zero"]
    quantizer.model.remove_node(by_hand)
    quantizer.add_new_nodes(
        [
            *nodes,
            helper.make_node("QLinearMatMul", reads, ["q"], "own"),
            helper.make_node("DequantizeLinear", ["q", "own_scale", "own_zero"], ["m"], "own_dq"),
        ]
    )
    result = quantizer.quantize_model()
    assert ops(result).count("QLinearMatMul") == 2
    assert error(made, result) < 0.3


def test_single_tensors_with_inputs_of_any_range() -> None:
    made = gemm()
    quantizer = integers(made, QuantizationMode.IntegerOps, False, ["MatMul"], known=None, per_channel=True)
    first = made.graph.node[0]
    (made_node,) = quantizer.quantize_activation(first, [0])[3]
    assert (made_node.op_type, list(made_node.output)) == (
        "DynamicQuantizeLinear",
        ["x_quantized", "x_scale", "x_zero_point"],
    )
    names = quantizer.quantize_weight(first, [1], op_level_per_channel=True, axis=-1)
    assert names[0] == ["w_quantized"]
    assert stored(quantizer.model.model)["w_scale"].shape == (made.graph.initializer[0].dims[1],)
    assert quantizer.find_quantized_value("w").axis == 1
    assert quantizer.calculate_quantization_params() is None


def test_a_bias_by_the_scales_of_input_and_weight() -> None:
    made = gemm()
    quantizer = integers(made, QuantizationMode.QLinearOps, True, ["Gemm"])
    quantizer.quantize_weight(made.graph.node[0], [1])
    assert quantizer.quantize_bias_static("b", "x", "w") == "b_quantized"
    found = stored(quantizer.model.model)
    assert found["b_quantized_scale"] == pytest.approx(
        quantizer.calculate_quantization_params()["x"]["scale"] * found["w_scale"]
    )
    assert quantizer.find_quantized_value("b").node_type == "DequantizeLinear"


@pytest.mark.parametrize("bias, needed", [(1.0, False), (1e6, True)])
def test_a_weights_scale_with_room_for_the_bias(bias: float, needed: bool) -> None:
    quantizer = integers(gemm(), QuantizationMode.QLinearOps, True, ["Gemm"])
    x, w = np.float32(1e-3), np.float32(1e-3)
    raised, scale = quantizer.adjust_single_weight_scale_if_needed(
        np.float32(bias), x, w, np.float32, "w", "b", np.float64(2**32 - 1), 1.0001
    )
    assert raised is needed
    assert bias / (float(x) * float(scale)) < 2**31


def test_graphs_inside_nodes_go_by_an_option() -> None:
    quantizer = integers(gemm(), QuantizationMode.IntegerOps, False, ["MatMul"], known=None)
    plain = helper.make_node("Relu", ["a"], ["b"])
    assert quantizer.quantize_node_with_sub_graph(plain) is plain
    inner = helper.make_graph([], "inner", [], [])
    loop = helper.make_node("If", ["c"], ["d"], name="choice", then_branch=inner, else_branch=inner)
    with pytest.raises(NotImplementedError, match="EnableSubgraph"):
        quantizer.quantize_node_with_sub_graph(loop)


def test_a_weight_by_itself() -> None:
    made = gemm()
    quantizer = integers(made, QuantizationMode.QLinearOps, True, ["Gemm"])
    weight = quantizer.initializers["w"]
    assert quantizer.quantize_initializer(weight, TensorProto.INT8) == (
        "w_quantized",
        "w_zero_point",
        "w_scale",
    )
    assert quantizer.find_initializer_in_path("w")
    other = integers(made, QuantizationMode.QLinearOps, True, ["Gemm"])
    other.quantize_weight_per_channel("w", TensorProto.INT8, 0, reduce_range=False)
    found = stored(other.model.model)
    np.testing.assert_allclose(
        found["w_quantized"] * found["w_scale"][:, None].astype(np.float64), stored(made)["w"], atol=0.02
    )


def test_a_node_that_a_subclass_refuses_stays_float() -> None:
    class Choosy(QDQQuantizer):
        def should_quantize_node(self, node: onnx.NodeProto) -> bool:
            return super().should_quantize_node(node) and node.name not in self.left

    made = gemm()
    names = [n.name for n in made.graph.node if n.op_type == "Gemm"]
    quantizer = Choosy(made, False, False, QuantType.QInt8, QuantType.QUInt8, ranges(made), [], [], ["Gemm"])
    quantizer.left = names
    quantizer.quantize_model()
    assert "QuantizeLinear" not in [n.op_type for n in quantizer.model.nodes()]
