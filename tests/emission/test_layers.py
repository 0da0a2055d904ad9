"""Linear layers where only what pays is quantized, and operators inside branches."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor

import octavo
from emission.models import EVERYWHERE, feeds, is_close, normal, ops, quantize
from octavo.core.recipe import Recipe, Style

STATIC = [octavo.W8A8.but(style=style) for style in Style]
RECIPES = [*STATIC, octavo.W8]
IDS = ["qdq", "qoperator", "integer", "dynamic"]


def linear(*, gemm: bool = False) -> onnx.ModelProto:
    """Two layers with a bias, each written MatMul + Add or Gemm, and a Gelu between."""
    arrays = {"w1": normal(32, 48, seed=1, scale=0.2), "b1": normal(48, seed=2)}
    arrays |= {"w2": normal(48, 16, seed=3, scale=0.2), "b2": normal(16, seed=4)}
    nodes = []
    for i, (x, y) in enumerate((("x", "h"), ("g", "y")), 1):
        if gemm:
            nodes.append(node("Gemm", [x, f"w{i}", f"b{i}"], [y], f"layer{i}"))
        else:
            nodes.append(node("MatMul", [x, f"w{i}"], [f"m{i}"], f"layer{i}"))
            nodes.append(node("Add", [f"b{i}", f"m{i}"], [y], f"add{i}"))
        if i == 1:
            nodes.append(node("Tanh", ["h"], ["g"], "act"))
    return model(nodes, [tensor("x", [6, 32])], [tensor("y", None)], arrays)


WRITTEN = {
    "qdq": {"MatMul": "MatMul", "Gemm": "Gemm"},
    "qoperator": {"MatMul": "MatMulIntegerToFloat", "Gemm": "QGemm"},
    "integer": {"MatMul": "MatMulInteger", "Gemm": "MatMulInteger"},
    "dynamic": {"MatMul": "MatMulInteger", "Gemm": "MatMulInteger"},
}


@pytest.mark.parametrize("gemm", [False, True], ids=["MatMul+Add", "Gemm"])
@pytest.mark.parametrize(("recipe", "name"), list(zip(RECIPES, IDS, strict=True)), ids=IDS)
def test_linear_layers_with_float_results(recipe: Recipe, name: str, gemm: bool) -> None:
    source, data = linear(gemm=gemm), feeds((6, 32))
    result = quantize(source, data if recipe.is_static else None, recipe)
    assert set(result.plan.nodes) == {"layer1", "layer2"}
    assert ops(result).count(WRITTEN[name]["Gemm" if gemm else "MatMul"]) == 2
    assert is_close(result, source, data, 30.0)


def branches() -> onnx.ModelProto:
    """An If whose branches hold layers; one weight is read in both."""

    def branch(op: str, name: str) -> onnx.GraphProto:
        nodes = [
            node("MatMul", ["h", "shared"], ["t"], f"{name}_layer"),
            node(op, ["t"], ["u"], f"{name}_act"),
            node("MatMul", ["u", f"w_{name}"], ["out"], f"{name}_last"),
        ]
        own = {f"w_{name}": normal(16, 8, seed=len(name), scale=0.3)}
        return graph(nodes, [], [tensor("out", None)], own, name=name)

    nodes = [
        node("MatMul", ["x", "w"], ["h"], "first"),
        node(
            "If",
            ["c"],
            ["y"],
            "if",
            then_branch=branch("LeakyRelu", "then"),
            else_branch=branch("Sigmoid", "else"),
        ),
    ]
    arrays = {"w": normal(16, 16, seed=1, scale=0.3), "shared": normal(16, 16, seed=2, scale=0.3)}
    return model(
        nodes, [tensor("x", [4, 16]), tensor("c", [], onnx.TensorProto.BOOL)], [tensor("y", None)], arrays
    )


@pytest.mark.parametrize("recipe", [*(EVERYWHERE.but(style=s) for s in Style), octavo.W8], ids=IDS)
def test_operators_in_branches(recipe: Recipe) -> None:
    source = branches()
    data = [{**feed, "c": np.asarray(bool(i % 2))} for i, feed in enumerate(feeds((4, 16)))]
    result = quantize(source, data if recipe.is_static else None, recipe)
    assert {"first", "then_layer", "else_layer", "then_last", "else_last"} <= set(result.plan.nodes)
    assert is_close(result, source, data)
