"""Rounded weights with exact activations: what such a model computes, against arithmetic on its integers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import model, node, tensor

import octavo
from octavo.comparison.exact_activations import with_exact_activations
from octavo.core.recipe import Placement
from octavo.model.files import io

RECIPE = octavo.W8A8.but(target="portable", placement=Placement.EVERYWHERE)
RNG = np.random.default_rng(0)
WEIGHTS = [RNG.normal(size=(8, 8)).astype(np.float32) / 3 for _ in range(2)]
SAMPLES = [{"x": RNG.normal(size=(4, 8)).astype(np.float32)} for _ in range(8)]


def two_layers() -> onnx.ModelProto:
    nodes = [
        node("MatMul", ["x", "w0"], ["m"], "first"),
        node("Relu", ["m"], ["r"], "relu"),
        node("MatMul", ["r", "w1"], ["y"], "second"),
    ]
    arrays = {"w0": WEIGHTS[0], "w1": WEIGHTS[1]}
    return model(nodes, [tensor("x", [4, 8])], [tensor("y", [4, 8])], arrays)


def run(model: object, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(io.to_bytes(model), providers=["CPUExecutionProvider"])  # type: ignore[arg-type]
    return session.run(None, {"x": x})[0]


def test_only_the_weights_are_rounded() -> None:
    result = octavo.quantize(two_layers(), SAMPLES, recipe=RECIPE)
    exact = with_exact_activations(result.model)
    assert exact is not None
    kinds = [one.op_type for one in exact.graph]
    assert kinds == ["Clip", "MatMul", "Clip", "MatMul", "Clip"]
    x = SAMPLES[0]["x"] / 2  # the ends of a range are at whole steps, which may cut off half of one
    stored = {
        one.name: onnx.numpy_helper.to_array(one) for one in io.to_proto(result.model).graph.initializer
    }
    rounded = [
        stored[f"{name}_quantized"].astype(np.float64) * stored[f"{name}_scale"].astype(np.float64)
        for name in ("w0", "w1")
    ]
    assert np.abs(rounded[0] - WEIGHTS[0]).max() > 0
    expected = np.maximum(x @ rounded[0], 0) @ rounded[1]
    assert run(exact, x) == pytest.approx(expected, abs=1e-4)
    assert np.abs(run(result.model, x) - expected).max() > 4e-3  # that of the activations
    assert run(result.model, x) == pytest.approx(expected, abs=0.1)


def test_what_is_beyond_a_range_stays_cut_off() -> None:
    result = octavo.quantize(two_layers(), SAMPLES, recipe=RECIPE)
    exact = with_exact_activations(result.model)
    x = SAMPLES[0]["x"] * 100
    assert exact is not None
    assert run(exact, x) == pytest.approx(run(result.model, x), abs=0.1)


def test_a_model_without_such_pairs_is_left_alone() -> None:
    assert with_exact_activations(io.load(two_layers())) is None


def test_pairs_in_branches_are_replaced_there() -> None:
    def branch(name: str) -> onnx.GraphProto:
        made = [
            node("MatMul", ["x", "w0"], [f"{name}_m"], f"{name}_first"),
            node("MatMul", [f"{name}_m", "w1"], [f"{name}_y"], f"{name}_second"),
        ]
        return onnx.helper.make_graph(made, name, [], [tensor(f"{name}_y", [4, 8])])

    choice = onnx.helper.make_node("If", ["c"], ["y"], "if", then_branch=branch("a"), else_branch=branch("b"))
    inputs = [tensor("x", [4, 8]), tensor("c", [1], onnx.TensorProto.BOOL)]
    proto = model([choice], inputs, [tensor("y", [4, 8])], {"w0": WEIGHTS[0], "w1": WEIGHTS[1]})
    data = [{**one, "c": np.array([i % 2 == 0])} for i, one in enumerate(SAMPLES)]
    result = octavo.quantize(proto, data, recipe=RECIPE)
    assert result.plan.nodes
    exact = with_exact_activations(result.model)
    assert exact is not None
    session = onnxruntime.InferenceSession(io.to_bytes(exact), providers=["CPUExecutionProvider"])
    for feed in data[:2]:
        assert session.run(None, feed)[0] == pytest.approx(feed["x"] @ WEIGHTS[0] @ WEIGHTS[1], abs=0.1)
