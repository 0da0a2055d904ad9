"""The first generation of ``quantize``: modes, static and not, parameters by hand."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import run, weights

from octavo.quantization import DynamicQuantConfig, QuantizationMode, old_api, quantize

INTEGER, QLINEAR = QuantizationMode.IntegerOps, QuantizationMode.QLinearOps
INPUTS = {
    "x": [np.uint8(128), np.float32(0.03)],
    "r": [np.uint8(0), np.float32(0.025)],
    "f": [np.uint8(128), np.float32(0.04)],
}
OUTPUTS = {
    "c": [np.int8(0), np.float32(0.04)],
    "c2": [np.uint8(128), np.float32(0.04)],
    "y": [np.uint8(128), np.float32(0.1)],
}


def net() -> onnx.ModelProto:
    return model(
        [
            node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1] * 4),
            node("Relu", ["c"], ["r"], "relu"),
            node("Conv", ["r", "w2"], ["c2"], "conv2"),
            node("Flatten", ["c2"], ["f"], "flatten"),
            node("MatMul", ["f", "fc"], ["y"], "matmul"),
        ],
        [tensor("x", ["n", 3, 6, 6])],
        [tensor("y", ["n", 4])],
        {
            "w": weights(5, 3, 3, 3) * 0.2,
            "b": weights(5, seed=1),
            "w2": weights(6, 5, 3, 3, seed=2) * 0.15,
            "fc": weights(96, 4, seed=3) * 0.2,
        },
    )


def feeds() -> dict[str, np.ndarray]:
    return {"x": weights(2, 3, 6, 6, seed=4)}


def ops(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in proto.graph.node)


def options(mode: QuantizationMode, static: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"quantization_mode": mode, "static": static}
    if static:
        found["input_quantization_params"] = INPUTS
    if mode is QLINEAR:
        found["output_quantization_params"] = OUTPUTS
    return found


@pytest.mark.parametrize("signed", [False, True], ids=["u8u8", "u8s8"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("mode", [INTEGER, QLINEAR], ids=str)
def test_every_mode_gives_a_model_near_the_float_one(
    mode: QuantizationMode, static: bool, per_channel: bool, signed: bool
) -> None:
    made = quantize(net(), per_channel=per_channel, asymmetric_input_types=signed, **options(mode, static))
    assert isinstance(made, onnx.ModelProto)
    onnx.checker.check_model(made)
    found = ops(made)
    expected = ("ConvInteger", "MatMulInteger") if mode is INTEGER else ("QLinearConv", "QLinearMatMul")
    assert [found[op] for op in expected] == [2, 1]
    assert found["DynamicQuantizeLinear"] == (0 if static else 3)
    assert found["QuantizeLinear"] == (3 if static else 0)
    kinds = {
        t.data_type for t in made.graph.initializer if t.name.endswith("_quantized") and "b_" not in t.name
    }
    assert kinds == {onnx.TensorProto.INT8 if signed else onnx.TensorProto.UINT8}
    want = run(net(), feeds())["y"]
    assert np.abs(run(made, feeds())["y"] - want).max() < 0.08 * np.abs(want).max() + 0.1


def test_zero_point_comes_first_and_both_are_in_the_model() -> None:
    made = quantize(net(), **options(QLINEAR, True))
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    conv = next(n for n in made.graph.node if n.op_type == "QLinearConv")
    scale, zero, out_scale, out_zero = (stored[conv.input[i]] for i in (1, 2, 6, 7))
    assert (float(scale), int(zero)) == (float(np.float32(0.03)), 128)
    assert (float(out_scale), int(out_zero)) == (float(np.float32(0.04)), 128)  # int8 0 is uint8 128


def test_qlinear_results_are_those_of_the_rounded_float_model() -> None:
    """Independent: the float Conv on values rounded in numpy, rounded again."""
    proto = model(
        [node("Conv", ["x", "w"], ["y"], "conv")],
        [tensor("x", [1, 3, 5, 5])],
        [tensor("y", [1, 4, 3, 3])],
        {"w": weights(4, 3, 3, 3)},
    )
    outputs = {"y": [np.uint8(120), np.float32(0.15)]}
    x = weights(1, 3, 5, 5, seed=9)
    made = quantize(
        proto, quantization_mode=QLINEAR, static=True, asymmetric_input_types=True,
        input_quantization_params={"x": [np.uint8(128), np.float32(0.03)]},
        output_quantization_params=outputs,
    )  # fmt: skip
    w = weights(4, 3, 3, 3).astype(np.float64)
    step = np.abs(w).max() / 127
    rounded = np.clip(np.rint(x.astype(np.float64) / np.float32(0.03)), -128, 127) * np.float32(0.03)
    result = run(
        model(
            [node("Conv", ["x", "w"], ["y"], "conv")], [tensor("x", [1, 3, 5, 5])],
            [tensor("y", [1, 4, 3, 3])], {"w": (np.rint(w / step) * step).astype(np.float32)},
        ),
        {"x": rounded.astype(np.float32)},
    )["y"]  # fmt: skip
    want = np.clip(np.rint(result / np.float32(0.15)), -120, 135) * np.float32(0.15)
    assert np.abs(run(made, {"x": x})["y"] - want).max() <= 0.1501


def test_one_dictionary_may_speak_of_inputs_and_outputs() -> None:
    made = quantize(net(), quantization_mode=QLINEAR, static=True, quantization_params={**INPUTS, **OUTPUTS})
    assert ops(made)["QLinearConv"] == 2


def test_nodes_can_be_chosen() -> None:
    assert ops(quantize(net(), nodes_to_quantize=["matmul"]))["ConvInteger"] == 0
    assert ops(quantize(net(), nodes_to_exclude=["conv"]))["ConvInteger"] == 1
    assert ops(quantize(net(), op_types_to_quantize=["Conv"]))["MatMulInteger"] == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"nbits": 4}, "nbits=8"),
        ({"static": True}, "input_quantization_params"),
        ({"static": True, "input_quantization_params": {"x": INPUTS["x"]}}, "tensor 'r'.*'conv2'"),
        ({"quantization_mode": QLINEAR}, "tensor 'c', which node 'conv' makes"),
        ({"static": True, "input_quantization_params": {"X": INPUTS["x"]}}, "no such tensor"),
        (
            {"static": True, "input_quantization_params": {"x": [np.float32(0.03), np.uint8(128)]}},
            "zero point",
        ),
        ({"static": True, "input_quantization_params": {"x": [np.uint8(3)]}}, r"\[zero_point, scale\]"),
        ({"static": True, "input_quantization_params": {"x": [3, -0.5]}}, "positive"),
        ({"symmetric_activation": True}, "symmetric_activation"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_is_missing_or_wrong_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        quantize(net(), **wrong)


def test_the_caller_s_model_is_not_changed() -> None:
    proto = net()
    before = proto.SerializeToString()
    quantize(proto, True, 8, INTEGER)
    assert proto.SerializeToString() == before


def test_both_generations_share_the_name(tmp_path: Path) -> None:
    assert quantize(net(), tmp_path / "m.onnx", DynamicQuantConfig(op_types_to_quantize=["MatMul"])) is None
    assert ops(onnx.load(tmp_path / "m.onnx"))["MatMulInteger"] == 1
    assert isinstance(quantize(net()), onnx.ModelProto)
    assert list(inspect.signature(quantize).parameters) == ["model_input", "model_output", "quant_config"]
    assert list(inspect.signature(old_api.quantize).parameters)[:8] == [
        "model", "per_channel", "nbits", "quantization_mode", "static", "asymmetric_input_types",
        "input_quantization_params", "output_quantization_params",
    ]  # fmt: skip
    with pytest.raises(TypeError, match=r"ModelProto"):
        quantize("model.onnx")
