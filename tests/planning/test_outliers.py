"""Outliers in weights and activations: layers that one scale would ruin are recognized and handled."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.core.granularity import PerBlock
from octavo.core.plan import Constant, Dynamic, Key
from octavo.model.runtime.session import Session

rng = np.random.default_rng(3)


def built(nodes, weights, *, width=64, opset=17):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def swiglu(width=64, hidden=96):
    weights = {n: rng.normal(size=(width, hidden)) / 8 for n in ("gate", "up")}
    weights["down"] = rng.normal(size=(hidden, width)) / 8
    nodes = [
        helper.make_node("MatMul", ["x", "gate"], ["g"], "gate_proj"),
        helper.make_node("Sigmoid", ["g"], ["s"], "sigmoid"),
        helper.make_node("Mul", ["g", "s"], ["silu"], "silu"),
        helper.make_node("MatMul", ["x", "up"], ["u"], "up_proj"),
        helper.make_node("Mul", ["silu", "u"], ["h"], "product"),
        helper.make_node("MatMul", ["h", "down"], ["y"], "down_proj"),
    ]
    return built(nodes, weights, width=width)


def outputs(model, x):
    return Session.open(model).run({"x": x})["y"]


def sqnr(a, b):
    return 20 * np.log10(np.linalg.norm(a) / np.linalg.norm(a - b))


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_layer_behind_a_gate_reads_its_input_in_two_passes_row_by_row(static):
    model = swiglu()
    x = rng.normal(size=(16, 64)).astype(np.float32)
    x[0] *= 60  # one outlier row: a range over the whole tensor leaves the others no steps
    result = octavo.quantize(model, [{"x": x}] if static else None, effort="plain", steps=())
    assert result.plan.nodes["down_proj"].lowering == "MatMulIntegerToFloat"
    assert result.plan.entries[Key("h", "down_proj")] == Dynamic(twice=True, by_row=True)
    expected = outputs(octavo.prepare(model).model, x)
    quiet = slice(1, None)
    only_down = octavo.quantize(model, None, include=("down_proj",))
    assert sqnr(expected[quiet], outputs(only_down.model, x)[quiet]) > 30


def test_layer_behind_a_gate_is_scaled_block_by_block_in_the_qoperator_style():
    result = octavo.quantize(swiglu(), [{"x": np.ones((2, 64), np.float32)}], style="qoperator")
    assert result.plan.nodes["down_proj"].lowering == "MatMulNBits"
    entry = result.plan.entries[Key("down", "down_proj")]
    assert isinstance(entry, Constant)
    assert entry.scheme.granularity == PerBlock(32, 0)


def test_layers_before_the_last_gates_read_the_whole_input_in_two_passes():
    plan = octavo.plan(swiglu(), octavo.W8)
    for layer in ("gate_proj", "up_proj"):
        assert plan.entries[Key("x", layer)] == Dynamic(twice=True)


def test_outlier_layer_among_those_dynamic_nodes_takes_two_passes():
    plan = octavo.plan(swiglu(), octavo.W8A8.but(dynamic_nodes=("down_proj",)))
    assert plan.entries[Key("h", "down_proj")] == Dynamic(twice=True, by_row=True)


def test_gate_of_a_value_with_its_own_sigmoid_is_no_gated_product():
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
        helper.make_node("Sigmoid", ["h"], ["s"], "sigmoid"),
        helper.make_node("Mul", ["h", "s"], ["silu"], "silu"),
        helper.make_node("MatMul", ["silu", "w2"], ["y"], "second"),
    ]
    weights = {"w1": rng.normal(size=(64, 64)), "w2": rng.normal(size=(64, 64))}
    plan = octavo.plan(built(nodes, weights), static=False)
    assert plan.nodes["second"].lowering == "MatMulInteger"


def test_weights_that_would_round_to_zero_beside_an_outlier_stay_float():
    weight = rng.normal(size=(64, 4)) * 0.05
    weight[7] = 800.0
    other = rng.normal(size=(64, 64))
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "body"),
        helper.make_node("Gemm", ["h", "w2"], ["y"], "head"),
    ]
    plan = octavo.plan(built(nodes, {"w1": other, "w2": weight}))
    assert "body" in plan.nodes
    (skipped,) = [s for s in plan.skipped if s.node == "head"]
    assert "round to zero beside an outlier of 800" in skipped.reason


def test_sparse_weights_are_no_lost_weights():
    weight = np.where(rng.random((64, 64)) < 0.9, 0.0, rng.normal(size=(64, 64)))
    plan = octavo.plan(built([helper.make_node("MatMul", ["x", "w"], ["y"], "layer")], {"w": weight}))
    assert "layer" in plan.nodes


def test_layer_that_calibration_never_sees_keeps_its_weight_in_8_bits():
    def branch(name, weight):
        nodes = [
            helper.make_node("Tanh", ["x"], [f"{name}_x"], f"{name}_tanh"),
            helper.make_node("Gemm", [f"{name}_x", weight], [f"{name}_h"], f"{name}_gemm", transB=1),
        ]
        out = helper.make_tensor_value_info(f"{name}_h", TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [out])

    weights = {n: rng.normal(size=(96, 64)).astype(np.float32) for n in ("w_then", "w_else")}
    graph = helper.make_graph(
        [
            helper.make_node(
                "If",
                ["cond"],
                ["y"],
                "if",
                then_branch=branch("t", "w_then"),
                else_branch=branch("e", "w_else"),
            )
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64]),
            helper.make_tensor_value_info("cond", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 96])],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = rng.normal(size=(4, 64)).astype(np.float32)
    result = octavo.quantize(model, [{"x": x, "cond": np.array(True)}], effort="plain")
    assert result.plan.nodes["e_gemm"].lowering == "MatMulNBits"
    for cond in (True, False):
        feeds = {"x": x, "cond": np.array(cond)}
        expected = np.tanh(x) @ weights["w_then" if cond else "w_else"].T
        assert sqnr(expected, Session.open(result.model).run(feeds)["y"]) > 30


def test_convolution_that_makes_a_spectrum_stays_float():
    weight = rng.normal(size=(32, 1, 16))
    body = rng.normal(size=(32, 32, 3))
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["x3"], "unsqueeze"),
        helper.make_node("Conv", ["x3", "w"], ["c"], "stft", strides=[4]),
        helper.make_node("Pow", ["c", "two"], ["p"], "square"),
        helper.make_node("Sqrt", ["p"], ["m"], "root"),
        helper.make_node("Conv", ["m", "b"], ["y"], "body"),
    ]
    model = built(nodes, {"w": weight, "b": body, "two": np.array(2.0)})
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "axes"))
    plan = octavo.plan(model)
    assert "body" in plan.nodes
    assert "stft" not in plan.nodes
    assert "spectrum" in next(s.reason for s in plan.skipped if s.node == "stft")


def test_filters_between_a_power_spectrum_and_its_logarithm_stay_float():
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["x3"], "unsqueeze"),
        helper.make_node("Conv", ["x3", "w"], ["c"], "stft", strides=[4]),
        helper.make_node("Reshape", ["c", "parts"], ["r"], "parts"),
        helper.make_node("ReduceSumSquare", ["r"], ["p"], "power", axes=[1], keepdims=0),
        helper.make_node("MatMul", ["filters", "p"], ["f"], "mel"),
        helper.make_node("Clip", ["f", "floor"], ["k"], "floor"),
        helper.make_node("Log", ["k"], ["l"], "log"),
        helper.make_node("Conv", ["l", "b"], ["y"], "body"),
    ]
    layers = {"w": rng.normal(size=(32, 1, 16)), "b": rng.normal(size=(32, 32, 3))}
    model = built(nodes, {**layers, "filters": rng.uniform(size=(32, 16)), "floor": np.array(1e-9)})
    for name, values in {"axes": [1], "parts": [1, 2, 16, -1]}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
    plan = octavo.plan(model)
    assert list(plan.nodes) == ["body"]
    reasons = {s.node: s.reason for s in plan.skipped}
    assert "spectrum" in reasons["stft"]
    assert "spectrum" in reasons["mel"]
