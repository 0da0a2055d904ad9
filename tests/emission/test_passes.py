"""Split activations, a high and a low part of 8 bits: what ONNX Runtime computes is close to float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor

import octavo
from emission.models import normal, ops
from octavo.core.plan import Dynamic, Key
from octavo.model.files import io
from octavo.model.runtime.session import Session

WIDTH, RESULTS = 64, 24


def gated(kind: str = "MatMul", opset: int = 17) -> onnx.ModelProto:
    """A product of two values, and a layer that reads it."""
    arrays: dict[str, Any] = {"w": normal(WIDTH, RESULTS, seed=1), "b": normal(RESULTS, seed=2)}
    if kind == "Gemm":
        arrays["w"] = np.ascontiguousarray(arrays["w"].T)
        last = [node("Gemm", ["h", "w", "b"], ["y"], "layer", transB=1)]
    else:
        last = [node("MatMul", ["h", "w"], ["m"], "layer"), node("Add", ["m", "b"], ["y"], "bias")]
    nodes = [node("Mul", ["x", "z"], ["h"], "gate"), *last]
    inputs = [tensor("x", ["N", WIDTH]), tensor("z", ["N", WIDTH])]
    return model(nodes, inputs, [tensor("y", None)], arrays, opset=opset)


def samples() -> dict[str, np.ndarray]:
    found = {"x": normal(12, WIDTH, seed=3), "z": normal(12, WIDTH, seed=4)}
    found["x"][0] *= 3000
    found["x"][1] = 0
    found["x"][2, 5] *= 500
    return found


def weights(result: octavo.Result) -> np.ndarray:
    """The weights as they are stored, back in float64."""
    kept = {name: v.const_value.numpy() for name, v in result.model.graph.initializers.items()}
    stored = kept["w_quantized"].astype(np.float64)
    assert stored.shape == (WIDTH, RESULTS)
    return stored * kept["w_scale"].astype(np.float64)


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("kind", ["MatMul", "Gemm"])
def test_two_passes_leave_nothing_but_the_rounding_of_weights(kind: str, opset: int) -> None:
    feeds = samples()
    result = octavo.quantize(gated(kind, opset), None)
    assert result.plan.entries[Key("h", "layer")] == Dynamic(twice=True, by_row=True)
    assert all(value.uses() for value in result.model.graph.initializers.values())
    found = Session.open(io.to_bytes(result.model)).run(feeds)["y"]
    h = feeds["x"].astype(np.float64) * feeds["z"]
    expected = h @ weights(result) + normal(RESULTS, seed=2)
    largest = np.abs(h).max(axis=1, keepdims=True) * np.abs(weights(result)).sum(axis=0)
    assert np.all(np.abs(found - expected) <= largest / 127 / 254 + 1e-6 * np.abs(expected) + 1e-6)


@pytest.mark.parametrize(
    "entry", [Dynamic(twice=True), Dynamic(by_row=True), Dynamic(twice=True, by_row=True)], ids=str
)
def test_each_kind_of_passes_rounds_as_finely_as_it_says(entry: Dynamic) -> None:
    source, feeds = gated(), samples()
    plan = octavo.plan(source, octavo.W8)
    plan.entries[Key("h", "layer")] = entry
    result = octavo.quantize(source, None, plan=plan)
    found = Session.open(io.to_bytes(result.model)).run(feeds)["y"]
    h = feeds["x"].astype(np.float64) * feeds["z"]
    expected = h @ weights(result) + normal(RESULTS, seed=2)
    largest = np.abs(h).max(axis=1, keepdims=True) if entry.by_row else 2 * np.abs(h).max()
    step = largest / 127 / (254 if entry.twice else 1)
    room = step * np.abs(weights(result)).sum(axis=0)
    assert np.all(np.abs(found - expected) <= room + 1e-6 * np.abs(expected) + 1e-6)


def test_layers_that_read_one_tensor_share_its_passes() -> None:
    nodes = [
        node("Mul", ["x", "z"], ["h"], "gate"),
        node("MatMul", ["h", "w"], ["a"], "one"),
        node("MatMul", ["h", "v"], ["b"], "two"),
        node("Add", ["a", "b"], ["y"], "sum"),
    ]
    inputs = [tensor("x", ["N", WIDTH]), tensor("z", ["N", WIDTH])]
    arrays = {"w": normal(WIDTH, RESULTS, seed=1), "v": normal(WIDTH, RESULTS, seed=2)}
    result = octavo.quantize(model(nodes, inputs, [tensor("y", None)], arrays, opset=17), None)
    found = ops(result)
    assert found.count("QuantizeLinear") == 2
    assert found.count("MatMulIntegerToFloat") == 4


def test_plan_with_passes_survives_its_file(tmp_path: Any) -> None:
    plan = octavo.plan(gated(), octavo.W8)
    plan.save(tmp_path / "plan.json")
    assert octavo.Plan.load(tmp_path / "plan.json") == plan
