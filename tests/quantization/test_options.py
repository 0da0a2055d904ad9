"""The keys of ``extra_options``: all of them are known, and each does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor
from onnx import TensorProto, numpy_helper

from octavo.core.recipe import Style
from octavo.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_dynamic, quantize_static
from octavo.quantization.translate import OPTIONS, Request, settings
from quantization.graphs import CASES, ROWS, gemm, matmul_then, residual, values
from quantization.peer import Reader, error, samples

KEYS = [
    "ActivationSymmetric",
    "ActivationRestrictedAsymmetric",
    "WeightSymmetric",
    "MinimumRealRange",
    "TensorQuantOverrides",
    "ForceQuantizeNoInputCheck",
    "EnableSubgraph",
    "MatMulConstBOnly",
    "DefaultTensorType",
    "extra.Sigmoid.nnapi",
    "AddQDQPairToWeight",
    "QuantizeBias",
    "OpTypesToExcludeOutputQuantization",
    "DedicatedQDQPair",
    "QDQOpTypePerChannelSupportToAxis",
    "UseQDQContribOps",
    "QDQKeepRemovableActivations",
    "QDQDisableWeightAdjustForInt32Bias",
    "BlockSize",
    "CalibTensorRangeSymmetric",
    "CalibMovingAverage",
    "CalibMovingAverageConstant",
    "CalibMaxIntermediateOutputs",
    "CalibPercentile",
    "CalibStridedMinMax",
    "SmoothQuant",
    "SmoothQuantAlpha",
    "SmoothQuantFolding",
]


def static(
    made: onnx.ModelProto, folder: Path, options: dict[str, Any], **more: Any
) -> dict[str, np.ndarray]:
    """The initializers after quantization; the model is out.onnx."""
    more.setdefault("activation_type", QuantType.QUInt8)
    quantize_static(made, folder / "out.onnx", Reader(samples(made)), extra_options=options, **more)
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(folder / "out.onnx").graph.initializer}


def count(folder: Path, op: str) -> int:
    return sum(n.op_type == op for n in onnx.load(folder / "out.onnx").graph.node)


def test_every_key_of_stock_has_a_row() -> None:
    assert sorted(OPTIONS) == sorted(KEYS)
    assert all(option.equivalent for option in OPTIONS.values())


def test_defaults_change_nothing() -> None:
    """A default that is passed is the same as none."""
    given = {key: option.default for key, option in OPTIONS.items()}
    for style in (Style.QDQ, Style.QOPERATOR, Style.INTEGER):
        plain = settings(Request(style, op_types=("MatMul",)))
        assert settings(Request(style, op_types=("MatMul",), options=given)).recipe == plain.recipe


def test_symmetric_activations_keep_the_relu(tmp_path: Path) -> None:
    found = static(residual(), tmp_path, {"ActivationSymmetric": True})
    assert found["x_zero_point"] == 128
    assert count(tmp_path, "Relu") == 2


def test_restricted_zero_points_lie_at_an_end_or_in_the_middle(tmp_path: Path) -> None:
    found = static(residual(), tmp_path, {"ActivationRestrictedAsymmetric": True})
    assert {int(v) for n, v in found.items() if n in ("x_zero_point", "r_zero_point", "u_zero_point")} == {
        0,
        128,
    }


def test_asymmetric_weights(tmp_path: Path) -> None:
    assert static(gemm(), tmp_path, {"WeightSymmetric": False})["w_zero_point"] != 0


def test_weights_with_a_scale_for_each_channel_are_symmetric_whatever_the_option_says(tmp_path: Path) -> None:
    found = static(gemm(), tmp_path, {"WeightSymmetric": False}, per_channel=True)
    assert found["w_zero_point"].size > 1
    assert not found["w_zero_point"].any()


def test_smallest_range(tmp_path: Path) -> None:
    assert static(gemm(), tmp_path, {"MinimumRealRange": 510.0})["x_scale"] == pytest.approx(2.0)


def test_float_weights_with_a_pair(tmp_path: Path) -> None:
    found = static(gemm(), tmp_path, {"AddQDQPairToWeight": True})
    assert "w" in found
    assert "w_quantized" not in found


def test_float_bias(tmp_path: Path) -> None:
    assert "b" in static(gemm(), tmp_path, {"QuantizeBias": False})


def test_bias_that_does_not_fit_raises_the_weights_scale_unless_told_not_to(tmp_path: Path) -> None:
    made = gemm()
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(values(8, 6) * np.float32(1e-8), "w"))
    raised = static(made, tmp_path, {})["w_scale"]
    left = static(made, tmp_path, {"QDQDisableWeightAdjustForInt32Bias": True})["w_scale"]
    assert raised > left


def test_nnapi_sigmoid(tmp_path: Path) -> None:
    found = static(
        CASES["Sigmoid"](), tmp_path, {"extra.Sigmoid.nnapi": True}, quant_format=QuantFormat.QOperator
    )
    assert found["u_scale"] == pytest.approx(1 / 256)
    assert found["u_zero_point"] == 0


def test_the_runtimes_own_domain(tmp_path: Path) -> None:
    static(gemm(), tmp_path, {"UseQDQContribOps": True})
    made = onnx.load(tmp_path / "out.onnx")
    assert {n.domain for n in made.graph.node if n.op_type.endswith("quantizeLinear")} <= {"com.microsoft"}
    assert error(gemm(), made) < 0.2


def test_percentile_and_moving_average_narrow_the_range(tmp_path: Path) -> None:
    made = residual()
    whole = static(made, tmp_path, {})["x_scale"]
    method = {"calibrate_method": CalibrationMethod.Percentile}
    assert static(made, tmp_path, {"CalibPercentile": 90.0}, **method)["x_scale"] < whole
    assert (
        static(made, tmp_path, {"CalibMovingAverage": True, "CalibMaxIntermediateOutputs": 1})["x_scale"]
        < whole
    )


@pytest.mark.parametrize("stride", [1, 3])
def test_strides_see_every_sample(stride: int, tmp_path: Path) -> None:
    made = residual()
    assert (
        static(made, tmp_path, {"CalibStridedMinMax": stride})["x_scale"]
        == static(made, tmp_path, {})["x_scale"]
    )


def test_strides_that_do_not_divide_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="evenly"):
        static(residual(), tmp_path, {"CalibStridedMinMax": 2})


def test_subgraphs_when_requested(tmp_path: Path) -> None:
    def branch(name: str) -> onnx.GraphProto:
        return graph(
            [node("MatMul", ["x", "w"], [f"{name}_y"], name)], [], [tensor(f"{name}_y", ROWS)], name=name
        )

    nodes = [node("If", ["c"], ["y"], "if", then_branch=branch("yes"), else_branch=branch("no"))]
    inputs = [tensor("x", ROWS), tensor("c", [], TensorProto.BOOL)]
    made = model(nodes, inputs, [tensor("y", ROWS)], {"w": values(8, 8)})

    def products(options: dict[str, Any]) -> int:
        quantize_dynamic(made, tmp_path / "out.onnx", extra_options=options)
        body = onnx.load(tmp_path / "out.onnx").graph
        return sum(n.op_type == "MatMulInteger" for i in body.node for a in i.attribute for n in a.g.node)

    with pytest.warns(UserWarning, match="Nothing"):
        assert products({}) == 0
    assert products({"EnableSubgraph": True}) == 2
    assert error(made, onnx.load(tmp_path / "out.onnx")) < 0.3


def test_outputs_of_some_op_types_stay_float(tmp_path: Path) -> None:
    assert "y_scale" not in static(gemm(), tmp_path, {"OpTypesToExcludeOutputQuantization": ["Gemm"]})


def test_matmul_of_two_activations_stays_float_in_qoperator(tmp_path: Path) -> None:
    made = CASES["MatMul of two activations"]()
    with pytest.warns(UserWarning, match="Nothing"):
        static(made, tmp_path, {"MatMulConstBOnly": True}, quant_format=QuantFormat.QOperator)
    assert count(tmp_path, "MatMul") == 1


def test_blocks_of_four_bit_weights(tmp_path: Path) -> None:
    found = static(matmul_then("Relu"), tmp_path, {"BlockSize": 4}, weight_type=QuantType.QInt4)
    assert found["w_scale"].shape == (2, 8)


@pytest.mark.parametrize(
    "options",
    [
        {"QuantizeBias": False},
        {"UseQDQContribOps": True},
        {"AddQDQPairToWeight": True},
        {"DedicatedQDQPair": True},
        {"OpTypesToExcludeOutputQuantization": ["Conv"]},
        {"QDQKeepRemovableActivations": True},
        {"QDQDisableWeightAdjustForInt32Bias": True},
        {"BlockSize": 8},
        {"QDQOpTypePerChannelSupportToAxis": {"Conv": 1}},
    ],
    ids=str,
)
def test_options_of_qdq_change_nothing_in_the_other_formats(options: dict[str, Any], tmp_path: Path) -> None:
    style = {"quant_format": QuantFormat.QOperator, "per_channel": True}
    plain, given = (static(residual(), tmp_path, chosen, **style) for chosen in ({}, options))
    assert plain.keys() == given.keys()
    assert all(np.array_equal(plain[name], given[name]) for name in plain)
    assert not any(
        n.domain == "com.microsoft" and n.op_type == "QuantizeLinear"
        for n in onnx.load(tmp_path / "out.onnx").graph.node
    )


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt16])
def test_zero_points_are_restricted_for_uint8_only(kind: QuantType, tmp_path: Path) -> None:
    made = [
        static(residual(), tmp_path, options, activation_type=kind)
        for options in ({}, {"ActivationRestrictedAsymmetric": True})
    ]
    assert all(np.array_equal(made[0][name], made[1][name]) for name in made[0])
