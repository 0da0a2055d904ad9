"""Weights as they are stored: once for all who agree, split for those who do not, and in range."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import model, node, tensor

import octavo
from emission.models import (
    EVERYWHERE,
    IMAGE,
    content,
    feeds,
    initializers,
    is_close,
    named,
    normal,
    ops,
    quantize,
)
from octavo.core.qtypes import UINT8
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme

STYLES = [Style.QDQ, Style.QOPERATOR, Style.INTEGER]


def _linear(x: str, w: str, y: str, name: str) -> onnx.NodeProto:
    return node("MatMul", [x, w], [y], name)


def tied(vocabulary: int = 600, width: int = 32) -> onnx.ModelProto:
    """One matrix is the table of a Gather and, transposed, the weight of the last layer."""
    nodes = [
        node("Gather", ["table", "ids"], ["e"], "embed"),
        _linear("e", "w", "h", "hidden"),
        node("Transpose", ["table"], ["turned"], "turn", perm=[1, 0]),
        _linear("h", "turned", "y", "head"),
    ]
    arrays = {"table": normal(vocabulary, width, seed=1), "w": normal(width, width, seed=2, scale=0.2)}
    return model(nodes, [tensor("ids", [2, 5], onnx.TensorProto.INT64)], [tensor("y", None)], arrays)


def _ids(seed: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return {"ids": np.random.default_rng(seed).integers(0, 600, (2, 5))}


@pytest.mark.parametrize("recipe", [octavo.W8A8, octavo.W8], ids=["static", "dynamic"])
def test_tied_table_is_stored_once(recipe: Recipe) -> None:
    source, data = tied(), [_ids(seed) for seed in range(4)]
    result = quantize(source, data if recipe.is_static else None, recipe, prepare=None)
    assert {"embed", "head"} <= set(result.plan.nodes)
    large = [
        v
        for v in initializers(result).values()
        if v.const_value is not None and v.const_value.size >= 600 * 32
    ]
    assert [v.name for v in large] == ["table_quantized"]
    assert is_close(result, source, data, 30.0)


@pytest.mark.parametrize("style", STYLES)
def test_weight_of_two_layers_is_stored_once(style: Style) -> None:
    nodes = [_linear("x", "w", "a", "first"), _linear("a", "w", "y", "second")]
    source = model(
        nodes, [tensor("x", [4, 16])], [tensor("y", None)], {"w": normal(16, 16, seed=1, scale=0.3)}
    )
    data = feeds((4, 16))
    result = quantize(source, data, EVERYWHERE.but(style=style))
    assert len(result.plan.nodes) == 2
    assert [n for n in initializers(result) if n.startswith("w_quantized")] == ["w_quantized"]
    assert is_close(result, source, data)


def test_weight_that_a_float_node_reads_too_stays() -> None:
    nodes = [_linear("x", "w", "a", "first"), node("Add", ["a", "w"], ["y"], "second")]
    source = model(nodes, [tensor("x", [16, 16])], [tensor("y", None)], {"w": normal(16, 16, seed=1)})
    result = quantize(source, feeds((16, 16)), EVERYWHERE, exclude=("second",))
    assert {"w", "w_quantized"} <= set(initializers(result))
    assert is_close(result, source, feeds((16, 16)))


@pytest.mark.parametrize("style", STYLES)
def test_gemm_with_transposed_weight_and_input(style: Style) -> None:
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], "op", transA=1, transB=1)]
    arrays = {"w": normal(8, 16, seed=1), "b": normal(8, seed=2)}
    source = model(nodes, [tensor("x", [16, 4])], [tensor("y", None)], arrays)
    result = quantize(source, feeds((16, 4)), EVERYWHERE.but(style=style))
    assert is_close(result, source, feeds((16, 4)))


def _conv(w: np.ndarray, b: np.ndarray) -> onnx.ModelProto:  # type: ignore[type-arg]
    nodes = [node("Conv", ["x", "w", "b"], ["y"], "op")]
    return model(nodes, [tensor("x", IMAGE)], [tensor("y", None)], {"w": w, "b": b})


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "weights", [EVERYWHERE.weights, Scheme(UINT8, octavo.PerChannel())], ids=["int8", "uint8"]
)
def test_channels_of_zeros(style: Style, weights: Scheme) -> None:
    w = normal(6, 4, 3, 3, seed=1)
    w[2] = 0.0
    source, data = _conv(w, normal(6, seed=2)), feeds(IMAGE)
    result = quantize(source, data, EVERYWHERE.but(style=style, weights=weights))
    assert is_close(result, source, data)


@pytest.mark.parametrize("style", [Style.QDQ, Style.QOPERATOR])
def test_bias_far_beyond_the_weights_does_not_overflow(style: Style) -> None:
    w = normal(6, 4, 3, 3, seed=1)
    w[3] *= 1e-9
    source, data = _conv(w, np.full(6, 5.0, np.float32)), feeds(IMAGE)
    result = quantize(source, data, EVERYWHERE.but(style=style))
    assert np.abs(content(result, "b_quantized").astype(np.int64)).max() <= 2**30
    assert is_close(result, source, data)


def test_16_bit_activations_have_int32_biases() -> None:
    source, data = _conv(normal(6, 4, 3, 3, seed=1), normal(6, seed=2)), feeds(IMAGE)
    result = quantize(source, data, octavo.W8A16.but(placement=octavo.Placement.EVERYWHERE))
    assert content(result, "b_quantized").dtype == np.int32
    assert is_close(result, source, data, 38.0)


def test_bias_scale_is_the_product_of_input_and_weight_scales() -> None:
    result = quantize(_conv(normal(6, 4, 3, 3, seed=1), normal(6, seed=2)), feeds(IMAGE))
    product = content(result, "x_scale") * content(result, "w_scale")
    np.testing.assert_array_equal(content(result, "b_quantized_scale"), product)


def test_row_bias_of_gemm_has_its_channels_on_axis_1() -> None:
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], "op")]
    arrays = {"w": normal(16, 8, seed=1), "b": normal(1, 8, seed=2)}
    source = model(nodes, [tensor("x", [4, 16])], [tensor("y", None)], arrays)
    result = quantize(source, feeds((4, 16)))
    assert named(result, "b_DequantizeLinear").attributes["axis"].value == 1
    assert is_close(result, source, feeds((4, 16)))


def test_zero_points_of_weights_are_always_written() -> None:
    result = quantize(_conv(normal(6, 4, 3, 3, seed=1), normal(6, seed=2)), feeds(IMAGE))
    dequantized = [n for n in result.model.graph.all_nodes() if n.op_type == "DequantizeLinear"]
    without = [n.name for n in dequantized if len(n.inputs) < 3 or n.inputs[2] is None]
    assert without == ["b_DequantizeLinear"]  # a bias is int32, and its zero point always zero


def test_weights_keep_their_symmetric_limits() -> None:
    w = normal(6, 4, 3, 3, seed=1)
    result = quantize(_conv(w, normal(6, seed=2)), feeds(IMAGE))
    assert content(result, "w_quantized").min() >= -127


def test_integer_style_conv_with_asymmetric_weights_has_one_scale() -> None:
    """ConvInteger takes a single zero point, so that scales per channel go with symmetric weights only."""
    source, data = _conv(normal(6, 4, 3, 3, seed=1), normal(6, seed=2)), feeds(IMAGE)
    asymmetric = octavo.W8.weights.but(symmetric=False)
    recipe = octavo.W8.but(weights=asymmetric, placement=octavo.Placement.EVERYWHERE)
    result = quantize(source, None, recipe)
    assert "ConvInteger" in ops(result)
    assert content(result, "w_scale").shape == ()
    assert is_close(result, source, data)


def test_integer_style_conv_adds_its_bias_in_the_shape_that_it_is_stored_in() -> None:
    bias = normal(6, seed=2)
    source, data = _conv(normal(6, 4, 3, 3, seed=1), bias), feeds(IMAGE)
    result = quantize(source, None, octavo.W8.but(placement=octavo.Placement.EVERYWHERE))
    assert "Reshape" not in ops(result) and "b" not in initializers(result)
    assert np.array_equal(content(result, "b_reshaped"), bias.reshape(1, 6, 1, 1))
    assert is_close(result, source, data)


def test_lookup_reads_rows_of_unsigned_tables() -> None:
    source = model(
        [node("Gather", ["table", "ids"], ["y"], "op")],
        [tensor("ids", [2, 5], onnx.TensorProto.INT64)],
        [tensor("y", None)],
        {"table": normal(600, 32, seed=1)},
    )
    recipe = octavo.W8.but(weights=Scheme(UINT8, octavo.PerChannel()))
    result = quantize(source, None, recipe)
    assert "Sub" in ops(result)
    assert is_close(result, source, [_ids(seed) for seed in range(2)], 35.0)
