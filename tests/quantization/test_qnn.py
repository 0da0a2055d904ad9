"""Configurations and preparation for QNN, as users of the stock functions call them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import run, weights

from octavo.quantization import CalibrationMethod, QuantFormat, QuantType, quantize
from octavo.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model
from octavo.quantization.execution_providers.qnn.fusion_lpnorm import FusionLpNormalization
from octavo.quantization.execution_providers.qnn.fusion_spacetodepth import FusionSpaceToDepth
from octavo.quantization.execution_providers.qnn.mixed_precision_overrides_utils import (
    MixedPrecisionTensorQuantOverridesFixer,
    TensorTypeRequest,
)
from octavo.quantization.onnx_model import ONNXModel
from octavo.quantization.tensor_quant_overrides import QuantTypeInfo, TensorQuantOverridesHelper

U8, U16, I8, I16 = QuantType.QUInt8, QuantType.QUInt16, QuantType.QInt8, QuantType.QInt16


def net() -> onnx.ModelProto:
    return model(
        [
            node("MatMul", ["x", "w"], ["a"], "mm"),
            node("Sigmoid", ["a"], ["s"], "sig"),
            node("Tanh", ["s"], ["t"], "tanh"),
            node("LayerNormalization", ["t", "g", "b"], ["l"], "ln"),
            node("Add", ["l", "a"], ["d"], "add"),
            node("Cast", ["d"], ["e"], "cast", to=1),
            node("MatMul", ["e", "w2"], ["y"], "mm2"),
            node("Add", ["x", "x"], ["z"], "add2"),
        ],
        [tensor("x", [2, 8])],
        [tensor("y", [2, 4]), tensor("z", [2, 8])],
        {"w": weights(8, 8), "g": weights(8), "b": weights(8), "w2": weights(8, 4)},
    )


class Reader:
    def __init__(self, count: int = 4) -> None:
        self.items: Iterator[dict[str, Any]] = iter([{"x": weights(2, 8, seed=i)} for i in range(count)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.items, None)


def overrides(**settings: Any) -> dict[str, list[dict[str, Any]]]:
    config = get_qnn_qdq_config(net(), Reader(), **settings)
    found: dict[str, list[dict[str, Any]]] = config.extra_options["TensorQuantOverrides"]
    return found


def test_the_configuration_is_for_qdq_and_every_operator_but_cast() -> None:
    config = get_qnn_qdq_config(net(), Reader())
    assert config.quant_format is QuantFormat.QDQ
    assert config.calibrate_method is CalibrationMethod.MinMax
    assert sorted(config.op_types_to_quantize) == ["Add", "LayerNormalization", "MatMul", "Sigmoid", "Tanh"]
    assert config.extra_options["MinimumRealRange"] == 1e-4
    assert config.extra_options["WeightSymmetric"] is False
    assert "UseQDQContribOps" not in config.extra_options


def test_sixteen_bits_fix_the_results_of_sigmoid_and_tanh_and_keep_weights_at_eight() -> None:
    found = overrides(activation_type=U16)
    assert (float(found["s"][0]["scale"]), int(found["s"][0]["zero_point"])) == (1 / 65536, 0)
    assert (float(found["t"][0]["scale"]), int(found["t"][0]["zero_point"])) == (1 / 32768, 32768)
    assert {n: found[n][0]["quant_type"] for n in ("w", "w2", "g")} == {"w": U8, "w2": U8, "g": U8}
    signed = overrides(activation_type=I16, weight_type=I8)
    assert (float(signed["s"][0]["scale"]), int(signed["s"][0]["zero_point"])) == (1 / 32768, 0)
    assert signed["w"] == [{"quant_type": I8, "symmetric": True}]


def test_matmul_has_one_scale_even_per_channel() -> None:
    found = overrides(per_channel=True)
    assert found == {n: [{"quant_type": U8, "symmetric": False}] for n in ("w", "w2")}


def test_a_wide_tensor_makes_its_neighbours_convert() -> None:
    given = {"d": [{"quant_type": U16}]}
    before = copy.deepcopy(given)
    found = overrides(init_overrides=given)
    assert given == before
    assert found == {
        "d": [{"quant_type": U16}],
        "l": [{"quant_type": U8, "convert": {"quant_type": U16, "recv_nodes": {"add"}}}],
        "a": [{"quant_type": U8, "convert": {"quant_type": U16, "recv_nodes": {"add"}}}],
        "e": [{"quant_type": U16, "convert": {"quant_type": U8, "recv_nodes": {"mm2"}}}],
    }
    assert overrides(init_overrides=given, add_qtype_converts=False) == before


def test_an_input_of_its_own_type_is_converted_back_behind_its_readers() -> None:
    found = overrides(init_overrides={"x": [{"quant_type": U16}]})
    assert found["a"] == [{"quant_type": U16, "convert": {"quant_type": U8, "recv_nodes": {"add", "sig"}}}]
    assert found["z"] == [{"quant_type": U16}]
    assert found["w"] == [{"quant_type": U8, "symmetric": False}]


def test_the_fixer_says_what_each_end_of_a_tensor_wants() -> None:
    helper = TensorQuantOverridesHelper({"s": [{"quant_type": U16}]})
    fixer = MixedPrecisionTensorQuantOverridesFixer.create_from_model(helper, net(), U8)
    wanted = fixer.get_desired_tensor_types(U8, False)
    assert wanted == {
        "a": TensorTypeRequest(None, (QuantTypeInfo(U16), {"sig"})),
        "s": TensorTypeRequest(QuantTypeInfo(U16), (QuantTypeInfo(U16), {"tanh"})),
        "t": TensorTypeRequest(QuantTypeInfo(U16), None),
    }
    with pytest.raises(ValueError, match="nothing"):
        MixedPrecisionTensorQuantOverridesFixer.create_from_model(
            TensorQuantOverridesHelper({"nothing": [{"quant_type": U16}]}), net(), U8
        )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"activation_type": U16},
        {"init_overrides": {"d": [{"quant_type": U16}]}},
        {"per_channel": True, "weight_type": I8},
    ],
    ids=["default", "16-bit", "mixed", "channel"],
)
def test_a_configured_model_is_near_the_float_one(settings: dict[str, Any], tmp_path: Path) -> None:
    quantize(net(), tmp_path / "m.onnx", get_qnn_qdq_config(net(), Reader(), **settings))
    feeds = {"x": weights(2, 8, seed=1)}
    want, got = run(net(), feeds), run(str(tmp_path / "m.onnx"), feeds)
    assert np.abs(got["y"] - want["y"]).max() < 0.06 * np.abs(want["y"]).max()


def test_selection_symmetry_and_stride_are_passed_on() -> None:
    config = get_qnn_qdq_config(
        net(), Reader(), op_types_to_quantize=["MatMul"], nodes_to_exclude=["mm"], stride=2,
        weight_symmetric=True, keep_removable_activations=True, activation_symmetric=True,
        calibration_providers=["CPUExecutionProvider"],
    )  # fmt: skip
    assert (config.op_types_to_quantize, config.nodes_to_exclude) == (["MatMul"], ["mm"])
    chosen = ("CalibStridedMinMax", "WeightSymmetric", "QDQKeepRemovableActivations", "ActivationSymmetric")
    assert [config.extra_options[key] for key in chosen] == [2, True, True, True]
    assert config.calibration_providers == ["CPUExecutionProvider"]


# ---- preparation


def prepared(proto: onnx.ModelProto, tmp_path: Path, **settings: Any) -> onnx.ModelProto | None:
    target = tmp_path / "prepared.onnx"
    written = qnn_preprocess_model(proto, target, **settings)
    assert written == target.exists()
    return onnx.load(target) if written else None


def normalized(epsilon: float = 1e-12, expand: bool = True) -> onnx.ModelProto:
    nodes = [
        node("ReduceL2", ["x"], ["n"], "l2", axes=[-1], keepdims=1),
        node("Clip", ["n", "e"], ["c"], "clip"),
        *([node("Shape", ["x"], ["s"], "s"), node("Expand", ["c", "s"], ["ex"], "ex")] if expand else []),
        node("Div", ["x", "ex" if expand else "c"], ["y"], "div"),
    ]
    return model(nodes, [tensor("x", [2, 5])], [tensor("y", [2, 5])], {"e": np.float32(epsilon)})


@pytest.mark.parametrize("expand", [True, False])
def test_a_division_by_the_norm_is_one_operator(expand: bool, tmp_path: Path) -> None:
    made = prepared(normalized(expand=expand), tmp_path)
    assert made is not None
    assert [n.op_type for n in made.graph.node] == ["LpNormalization"]
    x = {"x": weights(2, 5)}
    assert np.allclose(run(made, x)["y"], run(normalized(), x)["y"], atol=1e-6)


def test_another_epsilon_is_another_operation(tmp_path: Path) -> None:
    assert prepared(normalized(1e-3), tmp_path) is None
    wrapped = ONNXModel(normalized(1e-3))
    assert FusionLpNormalization(wrapped, epsilon=1e-3).apply()
    assert [n.op_type for n in wrapped.nodes() if n.op_type != "Shape"] == ["LpNormalization"]


@pytest.mark.parametrize("perm", [[0, 3, 5, 1, 2, 4], [0, 1, 3, 5, 2, 4], [0, 5, 3, 1, 2, 4]], ids=str)
def test_blocks_moved_to_channels_are_one_operator(perm: list[int], tmp_path: Path) -> None:
    proto = model(
        [
            node("Reshape", ["x", "six"], ["r"], "r1"),
            node("Transpose", ["r"], ["t"], "t", perm=perm),
            node("Reshape", ["t", "four"], ["y"], "r2"),
        ],
        [tensor("x", [1, 3, 4, 6])],
        [tensor("y", [1, 12, 2, 3])],
        {"six": np.asarray([1, 3, 2, 2, 3, 2], np.int64), "four": np.asarray([1, 12, 2, 3], np.int64)},
    )
    made = prepared(proto, tmp_path)
    if perm[1] == 5:  # another order of the blocks
        assert made is None
        return
    assert made is not None
    assert made.graph.node[0].op_type == "SpaceToDepth"
    x = {"x": weights(1, 3, 4, 6)}
    assert np.array_equal(run(made, x)["y"], run(proto, x)["y"])
    assert FusionSpaceToDepth(ONNXModel(proto)).fused_op_type == "SpaceToDepth"


def relu(dims: list[Any], name: str = "r") -> onnx.ModelProto:
    made = model([node("Relu", ["x"], ["y"], name)], [tensor("x", dims)], [tensor("y", dims)])
    made.graph.node[0].name = name
    return made


def test_nothing_to_change_writes_nothing_and_unnamed_nodes_get_names(tmp_path: Path) -> None:
    assert prepared(relu([1, 3, 4, 4]), tmp_path) is None
    made = prepared(relu([1, 3, 4, 4], ""), tmp_path)
    assert made is not None
    assert made.graph.node[0].name == "qnn_preproc_node_0"


def test_borders_become_channels_last_and_shapes_numbers(tmp_path: Path) -> None:
    made = prepared(
        relu(["n", 3, "h", 4]), tmp_path, dynamic_input_shapes=[("x", "1,3,8,4")],
        inputs_to_make_channel_last=["x"], outputs_to_make_channel_last=["y"],
    )  # fmt: skip
    assert made is not None
    for value in (made.graph.input[0], made.graph.output[0]):
        assert [d.dim_value for d in value.type.tensor_type.shape.dim] == [1, 8, 4, 3]
    x = weights(1, 8, 4, 3)
    assert np.array_equal(run(made, {"x": x})["y"], np.maximum(x, 0))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"inputs_to_make_channel_last": ["X"]}, "no input 'X'"),
        ({"outputs_to_make_channel_last": ["z"]}, "no output 'z'"),
        ({"dynamic_input_shapes": [("x", "1,3,a,4")]}, "positive numbers"),
        ({"dynamic_input_shapes": [("x", "1,3")]}, "dimensions"),
        ({"dynamic_input_shapes": [("x", "1,5,8,4")]}, "can't be made 5"),
    ],
)
def test_wrong_borders_are_named(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        qnn_preprocess_model(relu(["n", 3, "h", 4]), tmp_path / "m.onnx", **settings)


def test_layer_norm_is_fused_where_asked_and_weights_may_lie_beside(tmp_path: Path) -> None:
    proto = model(
        [
            node("ReduceMean", ["x"], ["m"], "m", axes=[-1]),
            node("Sub", ["x", "m"], ["d"], "d"),
            node("Pow", ["d", "two"], ["p"], "p"),
            node("ReduceMean", ["p"], ["v"], "v", axes=[-1]),
            node("Add", ["v", "eps"], ["ve"], "ve"),
            node("Sqrt", ["ve"], ["sd"], "sd"),
            node("Div", ["d", "sd"], ["q"], "q"),
            node("Mul", ["q", "g"], ["qg"], "qg"),
            node("Add", ["qg", "b"], ["y"], "y"),
        ],
        [tensor("x", [2, 400])],
        [tensor("y", [2, 400])],
        {"two": np.float32(2), "eps": np.float32(1e-5), "g": weights(400), "b": weights(400, seed=1)},
    )
    assert prepared(proto, tmp_path) is None
    made = prepared(
        proto, tmp_path, fuse_layernorm=True, save_as_external_data=True, external_data_location="w.bin"
    )
    assert made is not None
    assert [n.op_type for n in made.graph.node] == ["LayerNormalization"]
    assert (tmp_path / "w.bin").exists()


def test_what_comes_behind_a_fused_gelu_is_quantized(tmp_path: Path) -> None:
    proto = model(
        [
            node("MatMul", ["x", "w"], ["h"], "first"),
            node("Div", ["h", "root"], ["a"], "a"),
            node("Erf", ["a"], ["e"], "e"),
            node("Add", ["e", "one"], ["f"], "f"),
            node("Mul", ["h", "f"], ["m"], "m"),
            node("Mul", ["m", "half"], ["g"], "g"),
            node("MatMul", ["g", "v"], ["k"], "second"),
            node("Tanh", ["k"], ["y"], "tanh"),
        ],
        [tensor("x", [2, 8])],
        [tensor("y", [2, 4])],
        {
            "w": weights(8, 8),
            "v": weights(8, 4),
            "root": np.float32(2**0.5),
            "one": np.float32(1),
            "half": np.float32(0.5),
        },
    )
    made = prepared(proto, tmp_path)
    assert made is not None
    assert [n.op_type for n in made.graph.node] == ["MatMul", "Gelu", "MatMul", "Tanh"]
    quantize(made, tmp_path / "q.onnx", get_qnn_qdq_config(made, Reader()))
    stored = {t.name for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert {"x_scale", "h_scale", "g_scale", "k_scale", "y_scale"} <= stored


def test_initializers_can_leave_the_inputs(tmp_path: Path) -> None:
    proto = relu([1, 3, 4, 4])
    proto.graph.node[0].op_type = "Add"
    proto.graph.node[0].input.append("k")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1), "k"))
    proto.graph.input.append(tensor("k", []))
    made = prepared(proto, tmp_path, exclude_initializer_from_input=True)
    assert made is not None
    assert [value.name for value in made.graph.input] == ["x"]


def test_signatures_are_those_of_stock() -> None:
    assert list(inspect.signature(get_qnn_qdq_config).parameters) == [
        "model_input", "calibration_data_reader", "calibrate_method", "activation_type", "weight_type",
        "per_channel", "init_overrides", "add_qtype_converts", "activation_symmetric", "weight_symmetric",
        "keep_removable_activations", "stride", "calibration_providers", "op_types_to_quantize",
        "nodes_to_exclude",
    ]  # fmt: skip
    assert list(inspect.signature(qnn_preprocess_model).parameters) == [
        "model_input", "model_output", "exclude_initializer_from_input", "fuse_layernorm",
        "save_as_external_data", "all_tensors_to_one_file", "external_data_location",
        "external_data_size_threshold",
        "external_data_convert_attribute", "inputs_to_make_channel_last", "outputs_to_make_channel_last",
        "dynamic_input_shapes",
    ]  # fmt: skip


@pytest.mark.peer
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"activation_type": "QUInt16"},
        {"activation_type": "QInt16", "weight_type": "QInt8"},
        {"per_channel": True},
        {"per_channel": True, "activation_type": "QUInt16", "weight_type": "QInt8"},
        *({"init_overrides": name} for name in ("a", "s", "t", "l", "d", "e", "x", "y")),
    ],
    ids=lambda settings: "-".join(str(v) for v in settings.values()) or "default",
)
def test_overrides_agree_with_stock(settings: dict[str, Any]) -> None:
    stock = pytest.importorskip("onnxruntime.quantization")
    qnn = pytest.importorskip("onnxruntime.quantization.execution_providers.qnn")

    def said(kind: Any, configure: Any) -> Any:
        made = {k: getattr(kind, v) if k.endswith("_type") else v for k, v in settings.items()}
        if "init_overrides" in made:
            made["init_overrides"] = {made["init_overrides"]: [{"quant_type": kind.QUInt16}]}
        options = configure(net(), Reader(), **made).extra_options
        return plain({**options, "op": None})

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, set):
            return sorted(value)
        return value.tolist() if isinstance(value, np.ndarray) else str(value)

    assert said(QuantType, get_qnn_qdq_config) == said(stock.QuantType, qnn.get_qnn_qdq_config)
