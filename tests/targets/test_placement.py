"""What was measured about ONNX Runtime's CPU, as the planner follows it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import model, node, tensor
from quantizing import error, feeds_for, ops, reason, weights

import octavo
from octavo.model.runtime.session import optimized

STYLES = {
    "qdq": octavo.W8A8,
    "qoperator": octavo.W8A8.but(style=octavo.Style.QOPERATOR),
    "dynamic": octavo.W8,
}


def encoder() -> onnx.ModelProto:
    """A linear layer, a residual Add and a LayerNormalization, of fixed shape."""
    return model(
        [
            node("MatMul", ["x", "w"], ["product"], "MatMul"),
            node("Add", ["product", "b"], ["layer"], "Bias"),
            node("Add", ["layer", "x"], ["sum"], "Residual"),
            node("LayerNormalization", ["sum", "gamma", "beta"], ["y"], "Norm", axis=-1),
        ],
        [tensor("x", [1, 8, 32])],
        [tensor("y", [1, 8, 32])],
        {
            "w": weights(32, 32) / 6,
            "b": weights(32),
            "gamma": np.ones(32, np.float32),
            "beta": np.zeros(32, np.float32),
        },
    )


def image(size: int | str) -> onnx.ModelProto:
    """Conv of 27 products, depthwise Conv, 1x1 Conv, 1x1 Conv of 8 products."""
    return model(
        [
            node("Conv", ["x", "w0"], ["a"], "First", pads=[1, 1, 1, 1]),
            node("Conv", ["a", "w1"], ["b"], "Depthwise", pads=[1, 1, 1, 1], group=16),
            node("Conv", ["b", "w2"], ["c"], "Narrow"),
            node("Conv", ["c", "w3"], ["y"], "Thin"),
        ],
        [tensor("x", [1, 3, size, size])],
        [tensor("y", [1, 16, size, size])],
        {
            "w0": weights(16, 3, 3, 3),
            "w1": weights(16, 1, 3, 3),
            "w2": weights(8, 16, 1, 1),
            "w3": weights(16, 8, 1, 1),
        },
    )


@pytest.mark.parametrize("style", STYLES)
def test_a_residual_add_is_not_joined_with_the_norm_behind_it(style: str) -> None:
    proto = encoder()
    result = octavo.quantize(proto, feeds_for(proto), recipe=STYLES[style], target="ort-cpu-vnni")
    runs = ops(optimized(result.model))
    assert runs["LayerNormalization"] == 1
    assert not runs["SkipLayerNormalization"]
    assert error(result, proto, feeds_for(proto)) < 0.05


def test_an_excluded_add_stays_an_add() -> None:
    proto = encoder()
    recipe = octavo.W8A8.but(exclude=("Residual",))
    result = octavo.quantize(proto, feeds_for(proto), recipe=recipe, target="ort-cpu-vnni")
    assert not ops(result)["Sum"]


def test_targets_other_than_the_cpu_keep_the_add() -> None:
    plan = octavo.plan(encoder(), target="openvino")
    assert "Residual" not in plan.barriers


def test_the_first_conv_of_a_large_image_stays_float_if_it_is_thin() -> None:
    plan = octavo.plan(image(64), target="ort-cpu-vnni")
    assert reason(plan, "First").startswith("first Conv")
    assert reason(plan, "Depthwise").startswith("depthwise")
    assert set(plan.nodes) == {"Narrow", "Thin"}


def test_an_image_of_open_size_is_taken_to_be_large() -> None:
    assert set(octavo.plan(image("side"), target="ort-cpu-vnni").nodes) == {"Narrow", "Thin"}


def test_in_a_small_image_every_conv_is_quantized() -> None:
    plan = octavo.plan(image(16), target="ort-cpu-vnni")
    assert set(plan.nodes) == {"First", "Depthwise", "Narrow", "Thin"}


def test_with_many_threads_thin_first_layers_are_quantized_and_adds_stay() -> None:
    few = octavo.plan(image(64), target="ort-cpu-vnni", threads=11)
    many = octavo.plan(image(64), target="ort-cpu-vnni", threads=12)
    assert "First" not in few.nodes
    assert set(many.nodes) == {"First", "Depthwise", "Narrow", "Thin"}
    assert "Residual" in octavo.plan(encoder(), target="ort-cpu-vnni", threads=2).barriers
    assert "Residual" not in octavo.plan(encoder(), target="ort-cpu-vnni", threads=16).barriers


def test_quantize_takes_the_rules_for_its_threads() -> None:
    proto = image(64)
    samples = feeds_for(proto)
    result = octavo.quantize(proto, samples, target="ort-cpu-vnni", threads=12, effort="plain")
    assert "First" in result.plan.nodes
    assert error(result, proto, samples) < 0.05


@pytest.mark.parametrize("name", ["openvino", "ort-cpu-arm64", "web", "qnn"])
def test_sheets_that_were_not_measured_with_many_threads_have_one_set_of_rules(name: str) -> None:
    sheet = octavo.targets.target(name)
    assert sheet.at(64) is sheet


def test_a_mean_of_squares_stays_what_the_runtime_makes_a_norm_of() -> None:
    proto = model(
        [
            node("Pow", ["x", "two"], ["squares"]),
            node("ReduceMean", ["squares"], ["mean"], axes=[-1]),
            node("Add", ["mean", "tiny"], ["more"]),
            node("Sqrt", ["more"], ["root"]),
            node("Div", ["one", "root"], ["inverse"]),
            node("Mul", ["x", "inverse"], ["even"]),
            node("Mul", ["even", "gamma"], ["norm"]),
            node("MatMul", ["norm", "w"], ["y"]),
        ],
        [tensor("x", [1, 8, 32])],
        [tensor("y", [1, 8, 32])],
        {
            "two": np.float32([2]),
            "tiny": np.float32([1e-5]),
            "one": np.float32([1]),
            "gamma": np.ones(32, np.float32),
            "w": weights(32, 32),
        },
    )
    result = octavo.quantize(proto, recipe=octavo.W8)
    assert isinstance(result.model, ir.Model)
    assert ops(optimized(result.model))["SimplifiedLayerNormalization"] == 1


def distances(opset: int) -> onnx.ModelProto:
    """A detector's head: Conv, a Softmax over an axis with two behind it, Conv."""
    return model(
        [
            node("Conv", ["x", "w0"], ["a"], "First"),
            node("Reshape", ["a", "shape"], ["b"], "Reshape"),
            node("Softmax", ["b"], ["c"], "Softmax", axis=1),
            node("Conv", ["c", "w1"], ["y"], "Sum"),
        ],
        [tensor("x", [1, 32, 4, 4])],
        [tensor("y", [1, 16, 4, 16])],
        {"w0": weights(64, 32, 1, 1) / 6, "w1": weights(16, 16, 1, 1), "shape": np.int64([1, 16, 4, 16])},
        opset=opset,
    )


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("style", ["qdq", "qoperator"])
def test_a_softmax_over_an_inner_axis_is_written_out(style: str, opset: int) -> None:
    proto = distances(opset)
    result = octavo.quantize(proto, feeds_for(proto), recipe=STYLES[style], target="ort-cpu-vnni")
    found = ops(result)
    assert not found["Softmax"]
    assert found["Exp"] == found["Div"] == found["ReduceMax"] == 1
    assert error(result, proto, feeds_for(proto)) < 0.05


def test_a_softmax_over_the_last_axis_stays() -> None:
    proto = distances(17)
    proto.graph.node[2].attribute[0].i = 3
    assert "Softmax" not in octavo.plan(proto, target="ort-cpu-vnni").barriers


def first_block(size: int, *, added: bool) -> onnx.ModelProto:
    """Conv of 27 products, depthwise Conv, 1x1 Conv, perhaps the first one's result added; a Conv behind."""
    nodes = [
        node("Conv", ["x", "w0"], ["a"], "First", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["r"], "Relu"),
        node("Conv", ["r", "w1"], ["b"], "Depthwise", pads=[1, 1, 1, 1], group=16),
        node("Conv", ["b", "w2"], ["c"], "Last"),
        node("Add", ["c", "r"], ["d"], "Residual") if added else node("Relu", ["c"], ["d"], "Residual"),
        node("Conv", ["d", "w2"], ["y"], "Behind"),
    ]
    arrays = {"w0": weights(16, 3, 3, 3), "w1": weights(16, 1, 3, 3), "w2": weights(16, 16, 1, 1)}
    return model(nodes, [tensor("x", [1, 3, size, size])], [tensor("y", [1, 16, size, size])], arrays)


def test_a_first_block_that_is_added_to_a_float_layer_stays_float() -> None:
    plan = octavo.plan(first_block(64, added=True), target="ort-cpu-vnni")
    assert set(plan.nodes) == {"Behind"}
    assert "added to that of a first" in reason(plan, "Last")
    assert {"Last", "Behind"} <= set(octavo.plan(first_block(64, added=False), target="ort-cpu-vnni").nodes)
    assert "Last" in octavo.plan(first_block(16, added=True), target="ort-cpu-vnni").nodes


def squeeze(axes: list[int]) -> onnx.ModelProto:
    """A gate from the mean over some axes, which scales what it was made of, between Convs."""
    nodes = [
        node("Conv", ["x", "w0"], ["a"], "Before"),
        node("ReduceMean", ["a"], ["m"], "Mean", axes=axes, keepdims=1),
        node("Conv", ["m", "w1"], ["s"], "Inner"),
        node("HardSigmoid", ["s"], ["g"], "Gate", alpha=1 / 6, beta=0.5),
        node("Mul", ["a", "g"], ["p"], "Scaled"),
        node("Conv", ["p", "w0"], ["y"], "Behind"),
    ]
    arrays = {"w0": weights(16, 16, 1, 1) / 4, "w1": weights(16, 16, 1, 1, seed=1) / 4}
    return model(nodes, [tensor("x", [1, 16, 8, 8])], [tensor("y", [1, 16, 8, 8])], arrays)


def test_a_gate_of_one_value_a_channel_is_quantized_with_what_it_scales() -> None:
    proto = squeeze([2, 3])
    result = octavo.quantize(proto, feeds_for(proto), target="ort-cpu-vnni", effort="plain")
    assert {"Gate", "Scaled"} <= set(result.plan.nodes)
    assert ops(optimized(result.model))["QLinearMul"] == 1
    assert error(result, proto, feeds_for(proto)) < 0.05
    assert not octavo.lint(result.model, target="ort-cpu-vnni").findings
    assert "Gate" not in octavo.plan(squeeze([2]), target="ort-cpu-vnni").nodes
    assert "Gate" not in octavo.plan(proto, target="openvino").nodes


def detector(
    behind: list[onnx.NodeProto] | None = None, channels: int = 64, kernel: int = 1
) -> onnx.ModelProto:
    """Two convolutions, of which the second gives a map of answers, and what comes behind it."""
    arrays = {"w0": weights(channels, 512, 3, 3), "w1": weights(80, channels, kernel, kernel)}
    arrays["w2"] = weights(16, 80, 1, 1)
    nodes = [
        node("Conv", ["x", "w0"], ["c"], "body", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("Conv", ["r", "w1"], ["scores"], "head", pads=[kernel // 2] * 4),
        *(behind or [node("Sigmoid", ["scores"], ["y"], "sigmoid")]),
    ]
    return model(nodes, [tensor("x", [1, 512, 20, 20])], [tensor("y", None)], arrays)


def test_a_cheap_convolution_that_gives_the_answers_of_a_map_stays_float() -> None:
    plan = octavo.plan(detector())
    assert "body" in plan.nodes
    assert "head" not in plan.nodes
    assert "model output" in reason(plan, "head")


@pytest.mark.parametrize(
    "proto",
    [
        detector([node("Conv", ["scores", "w2"], ["y"], "last")]),
        detector(channels=512),
        detector(kernel=3),
        detector([node("MatMul", ["scores", "scores"], ["y"], "product")]),
    ],
    ids=["a layer behind it", "many products", "a wider kernel", "a product behind it"],
)
def test_other_convolutions_at_the_end_are_quantized(proto: onnx.ModelProto) -> None:
    assert "head" in octavo.plan(proto).nodes


def test_the_small_sum_behind_the_answers_of_a_detector_is_no_layer() -> None:
    """A detector's distances: a Softmax over bins, and a Conv with the numbers of the bins."""
    behind = [
        node("Reshape", ["scores", "shape"], ["bins"], "split"),
        node("Softmax", ["bins"], ["soft"], "soft", axis=1),
        node("Conv", ["soft", "numbers"], ["y"], "distance"),
    ]
    proto = detector(behind)
    numbers = np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers, "numbers"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.int64([1, 16, 5, 400]), "shape"))
    assert "head" not in octavo.plan(proto).nodes


def test_a_classifier_written_as_a_convolution_is_quantized() -> None:
    arrays = {"w0": weights(64, 32, 3, 3), "w1": weights(100, 64, 1, 1)}
    nodes = [
        node("Conv", ["x", "w0"], ["c"], "body", pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["c"], ["g"], "pool"),
        node("Conv", ["g", "w1"], ["y"], "classes"),
    ]
    proto = model(nodes, [tensor("x", [1, 32, 20, 20])], [tensor("y", None)], arrays)
    assert "classes" in octavo.plan(proto).nodes


@pytest.mark.parametrize("size, gains", [(32, False), (64, True)])
def test_an_lstm_is_quantized_from_the_size_on_at_which_it_gains(size: int, gains: bool) -> None:
    arrays = {
        "w": weights(1, 4 * size, size),
        "r": weights(1, 4 * size, size, seed=1),
        "m": weights(size, 64),
    }
    nodes = [
        node("LSTM", ["x", "w", "r"], ["y"], "rnn", hidden_size=size),
        node("MatMul", ["y", "m"], ["z"], "linear"),
    ]
    proto = model(nodes, [tensor("x", [8, 1, size])], [tensor("z", None)], arrays)
    assert ("rnn" in octavo.plan(proto, octavo.W8, target="ort-cpu-vnni").nodes) == gains


def apart(between: str, *, also: bool = False) -> onnx.ModelProto:
    """1×1 Conv, depthwise Conv, 1×1 Conv, with an operator between; a quantized layer may read one result."""
    nodes = [
        node("Conv", ["x", "w0"], ["a"], "Wide"),
        node(between, ["a"], ["f"], "Before"),
        node("Conv", ["f", "w1"], ["b"], "Depthwise", pads=[1, 1, 1, 1], group=32),
        node(between, ["b"], ["g"], "Behind"),
        node("Conv", ["g", "w2"], ["c"], "Narrow"),
        node("Conv", ["b" if also else "c", "w3"], ["d"], "Last"),
        node("Concat", ["c", "d"], ["y"], "Join", axis=1),
    ]
    arrays = {"w0": weights(32, 16, 1, 1), "w1": weights(32, 1, 3, 3), "w2": weights(32, 32, 1, 1)}
    arrays["w3"] = weights(16, 32, 1, 1)
    return model(nodes, [tensor("x", [1, 16, 14, 14])], [tensor("y", None)], arrays)


def test_a_depthwise_convolution_between_float_operators_stays_float() -> None:
    plan = octavo.plan(apart("Softplus"))
    assert {"Wide", "Narrow", "Last"} <= set(plan.nodes)
    assert "Depthwise" not in plan.nodes
    assert "between float operators" in reason(plan, "Depthwise")


@pytest.mark.parametrize("proto", [apart("Relu"), apart("Softplus", also=True)], ids=["integers", "a reader"])
def test_a_depthwise_convolution_with_a_quantized_neighbour_is_quantized(proto: onnx.ModelProto) -> None:
    assert "Depthwise" in octavo.plan(proto).nodes


@pytest.mark.parametrize("name", ["ort-cpu-arm64", "portable", "openvino", "qnn", "tensorrt"])
def test_where_it_was_not_measured_a_depthwise_convolution_is_quantized(name: str) -> None:
    assert "Depthwise" in octavo.plan(apart("Softplus"), target=name).nodes


@pytest.mark.parametrize(("channels", "stays"), [(1, True), (4, True), (8, False)])
def test_depthwise_convolution_of_few_channels_stays_float(channels: int, stays: bool) -> None:
    made = model(
        [
            node("Conv", ["x", "w0"], ["a"], "Before"),
            node("Conv", ["a", "w1"], ["b"], "Filter", pads=[4, 4, 4, 4], group=channels),
            node("Conv", ["b", "w2"], ["y"], "Behind"),
        ],
        [tensor("x", [1, 32, 16, 16])],
        [tensor("y", [1, 16, 16, 16])],
        {
            "w0": weights(channels, 32, 1, 1),
            "w1": weights(channels, 1, 9, 9),
            "w2": weights(16, channels, 1, 1),
        },
    )
    plan = octavo.plan(made)
    assert ("Filter" not in plan.nodes) == stays
    if stays:
        assert "fewer than 8 channels" in next(s.reason for s in plan.skipped if s.node == "Filter")
