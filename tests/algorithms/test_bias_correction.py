from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import run

import octavo

from .nets import conv_chain, images
from .stepping import EVERYWHERE, PER_TENSOR, error

FRESH = images(6, seed=7)


def shift(proto: object, recipe: octavo.Recipe, samples: list[dict[str, np.ndarray]]) -> float:
    """The mean shift of the quantized model's output channels, squared."""
    result = octavo.quantize(proto, samples, recipe=recipe)  # type: ignore[arg-type]
    off = [run(result, f, optimize=False)["y"].astype(np.float64) - run(proto, f)["y"] for f in samples]  # type: ignore[arg-type]
    return float((np.mean(off, axis=(0, 1, 3, 4)) ** 2).mean())


def positive(samples: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    return [{"x": np.abs(f["x"]) + 1} for f in samples]


@pytest.mark.parametrize("step", ["bias-correction", "bias-correction:sequential"])
def test_the_mean_shift_goes(step: str) -> None:
    proto, samples = conv_chain("Relu"), positive(images())
    plain = shift(proto, PER_TENSOR, samples)
    assert shift(proto, PER_TENSOR.but(steps=(step,)), samples) < 0.2 * plain


def test_the_sequential_form_takes_out_more() -> None:
    proto, samples = conv_chain("Relu"), positive(images())
    once = shift(proto, PER_TENSOR.but(steps=("bias-correction",)), samples)
    again = shift(proto, PER_TENSOR.but(steps=("bias-correction:sequential",)), samples)
    assert again < 0.5 * once


def test_the_error_of_the_quantized_model_falls() -> None:
    proto, samples, fresh = conv_chain("Relu"), positive(images()), positive(FRESH)
    plain = error(proto, samples, fresh, PER_TENSOR)
    assert error(proto, samples, fresh, PER_TENSOR.but(steps=("bias-correction",))) < 0.8 * plain


def test_the_bias_takes_the_shift_that_weights_and_means_give() -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 8, 1, 1)).astype(np.float32)
    w[0, 0] = 20  # one scale for all is coarse
    arrays = {"w": w, "b": np.zeros(16, np.float32)}
    proto = model(
        [node("Conv", ["x", "w", "b"], ["y"], "conv")],
        [tensor("x", [1, 8, 10, 10])],
        [tensor("y", [1, 16, 10, 10])],
        arrays,
    )
    samples = positive(images())
    result = octavo.quantize(proto, samples, recipe=PER_TENSOR.but(steps=("bias-correction",)))
    scale = 20 / 127
    mean = np.mean([f["x"].astype(np.float64) for f in samples], axis=(0, 1, 3, 4))
    rounded = np.rint(w[:, :, 0, 0].astype(np.float64) / scale) * scale
    expected = -(rounded - w[:, :, 0, 0]) @ mean
    stored = next(v for n, v in result.model.graph.initializers.items() if n.startswith("b_"))
    key = next(k for k in result.params if k.tensor == "b")
    found = stored.const_value.numpy() * result.params[key].scale.astype(np.float64)  # type: ignore[union-attr]
    np.testing.assert_allclose(found, expected, atol=0.002)  # the bias is an integer, too


def test_a_convolution_without_a_bias_gets_one() -> None:
    proto = conv_chain("Relu", decades=0.5)
    for one in proto.graph.node:
        if one.op_type == "Conv":
            del one.input[2]
    result = octavo.quantize(proto, positive(images()), recipe=PER_TENSOR.but(steps=("bias-correction",)))
    (report,) = result.steps
    assert len(report.changed) == 3
    plain = octavo.quantize(proto, positive(images()), recipe=PER_TENSOR)
    assert op_counts(result)["Conv"] == op_counts(plain)["Conv"]
    assert op_counts(result).get("Add", 0) == 0


def op_counts(result: octavo.Result) -> dict[str, int]:
    names = [n.op_type for n in result.model.graph]
    return {name: names.count(name) for name in names}


def coarse_product(op: str) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((24, 16)).astype(np.float32)
    w[3, 5] = 40  # one scale for all is coarse
    nodes = [node(op, ["x", "w"], ["y"], "m")]
    proto = model(nodes, [tensor("x", ["n", 24])], [tensor("y", ["n", 16])], {"w": w})
    return proto, [{"x": np.abs(rng.standard_normal((6, 24))).astype(np.float32) + 1} for _ in range(6)]


def mean_shift(proto: onnx.ModelProto, result: octavo.Result, samples: list[dict[str, np.ndarray]]) -> float:
    off = [run(result, f)["y"].astype(np.float64) - run(proto, f)["y"] for f in samples]
    return float((np.mean(off, axis=(0, 1)) ** 2).mean())


@pytest.mark.parametrize(
    "op, style, operators", [("Gemm", "qdq", None), ("MatMul", "qoperator", ["MatMulIntegerToFloat"])]
)
def test_a_linear_layer_gets_a_bias_where_it_costs_no_operator(
    op: str, style: str, operators: list[str] | None
) -> None:
    proto, samples = coarse_product(op)
    weights = octavo.W8A8.weights.but(granularity=octavo.PerTensor())
    recipe = octavo.W8A8.but(style=octavo.Style(style), weights=weights)
    plain = octavo.quantize(proto, samples, recipe=recipe)
    result = octavo.quantize(proto, samples, recipe=recipe.but(steps=("bias-correction",)))
    assert [change.layer for change in result.steps[0].changed] == ["m"]
    assert mean_shift(proto, result, samples) < 0.05 * mean_shift(proto, plain, samples)
    kinds = [n.op_type for n in result.model.graph]
    assert kinds.count("Add") == 0 and kinds.count(op) == (1 if operators is None else 0)
    assert operators is None or all(name in kinds for name in operators)
    assert [v.name for v in result.model.graph.outputs] == ["y"]


def test_a_product_that_would_need_an_operator_is_left_alone() -> None:
    proto, samples = coarse_product("MatMul")
    result = octavo.quantize(proto, samples, recipe=EVERYWHERE.but(steps=("bias-correction",)))
    assert [(r.layer, "no bias" in r.reason) for r in result.steps[0].refused] == [("m", True)]


def bent(function: str) -> onnx.ModelProto:
    """Four convolutions with a function behind each."""
    rng = np.random.default_rng(3)
    arrays = {f"w{i}": (rng.standard_normal((16, 16, 1, 1)) * 0.5).astype(np.float32) for i in range(4)}
    nodes, value = [], "x"
    for i in range(4):
        nodes.append(node("Conv", [value, f"w{i}"], [f"c{i}"], f"conv{i}"))
        value = f"f{i}" if i < 3 else "y"
        nodes.append(node(function, [f"c{i}"], [value], f"function{i}"))
    return model(nodes, [tensor("x", [1, 16, 8, 8])], [tensor("y", [1, 16, 8, 8])], arrays)


@pytest.mark.parametrize(("function", "again"), [("Softplus", True), ("Relu", False)])
def test_the_model_is_run_again_where_float_functions_stand_between(function: str, again: bool) -> None:
    rng = np.random.default_rng(4)
    samples = [{"x": rng.standard_normal((1, 16, 8, 8)).astype(np.float32)} for _ in range(4)]

    def biases(step: str) -> list[np.ndarray]:
        result = octavo.quantize(bent(function), samples, recipe=octavo.W8A8.but(steps=(step,)))
        kept = result.model.graph.initializers.items()
        return [v.const_value.numpy() for name, v in sorted(kept) if "bias" in name and "scale" not in name]

    usual, once = biases("bias-correction"), biases("bias-correction:sequential=no")
    more = biases("bias-correction:sequential=yes")
    assert len(usual) == 4
    assert any(not np.array_equal(a, b) for a, b in zip(once, more, strict=True))
    expected = more if again else once
    assert all(np.array_equal(a, b) for a, b in zip(usual, expected, strict=True))
    assert all(
        np.array_equal(a, b) for a, b in zip(usual, biases("bias-correction:sequential=auto"), strict=True)
    )


def test_data_that_comes_once_is_gone_through_once() -> None:
    rng = np.random.default_rng(5)
    samples = ({"x": rng.standard_normal((1, 16, 8, 8)).astype(np.float32)} for _ in range(9))
    result = octavo.quantize(bent("Softplus"), samples, effort="plain")
    assert [report.step for report in result.steps] == ["clip", "bias-correction"]
    assert result.steps[1].changed
