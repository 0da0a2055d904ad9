"""What the runtime would run wrong, or fail on, is refused before anything is written, with a way out."""

from __future__ import annotations

import numpy as np
import pytest
from builders import model, node, tensor

import octavo
from octavo.core.qtypes import INT4, INT8, INT16, UINT8
from octavo.core.recipe import Override, Recipe
from octavo.errors import RecipeError
from ops.cases import DYNAMIC, INTEGER, QDQ, QOPERATOR, Case, quantize
from ops.samples import SAMPLES

W8A8 = Case(QDQ, "uint8", "int8")


def _with(case: Case, **override: object) -> Recipe:
    return case.recipe.but(overrides=(Override(**override),))  # type: ignore[arg-type]


def _try(name: str, recipe: Recipe) -> None:
    octavo.quantize(SAMPLES[name].model, SAMPLES[name].feeds, recipe=recipe, prepare=None, verify=False)


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("MatMul", 0),
        ("Gemm", 0),
        ("Gemm:trans_b", 1),
        ("Conv", 1),
        ("ConvTranspose", 0),
        ("MatMul:batched_weight", 2),
    ],
)
def test_scales_on_another_axis_than_the_channels(name: str, axis: int) -> None:
    with pytest.raises(RecipeError, match="would give wrong results; choose granularity"):
        _try(name, _with(W8A8, tensor="w", granularity=octavo.PerChannel(axis)))


@pytest.mark.parametrize(("name", "axis"), [("MatMul", 1), ("Gemm", 1), ("Gemm:trans_b", 0), ("Conv", 0)])
def test_scales_on_the_channel_axis_are_taken(name: str, axis: int) -> None:
    _try(name, _with(W8A8, tensor="w", granularity=octavo.PerChannel(axis)))


@pytest.mark.parametrize("weights", ["int8", "uint8"])
def test_blocks_of_8_bits_beside_8_bit_activations(weights: str) -> None:
    with pytest.raises(RecipeError, match="in blocks beside uint8 activations fail in the runtime; choose"):
        quantize(SAMPLES["MatMul"], Case(QDQ, "uint8", weights, "block:16"))


@pytest.mark.parametrize("style", [QOPERATOR, INTEGER])
def test_blocks_outside_qdq(style: octavo.Style) -> None:
    with pytest.raises(RecipeError, match="blocks exist in the qdq style only"):
        quantize(SAMPLES["MatMul"], Case(style, "uint8", "int8", "block:16"))


@pytest.mark.parametrize("bound", [np.inf, 3.4e38])
def test_constant_operand_without_a_range_keeps_its_node_float(bound: float) -> None:
    nodes = [node("Sigmoid", ["x"], ["a"], "first"), node("Min", ["a", "bound"], ["y"], "second")]
    source = model(nodes, [tensor("x", [4])], [tensor("y", None)], {"bound": np.float32(bound)})
    data = [{"x": np.float32([1, 2, 3, 4])}]
    plan = octavo.quantize(source, data, recipe=W8A8.recipe).plan
    assert "its operand 'bound' reaches" in next(s.reason for s in plan.skipped if s.node == "second")


def test_activations_per_channel() -> None:
    with pytest.raises(RecipeError, match="choose granularity tensor"):
        _try("MatMul", _with(W8A8, tensor="x", granularity=octavo.PerChannel(1)))


def test_4_bit_activations() -> None:
    with pytest.raises(RecipeError, match="int4 activations"):
        _try("Add", _with(W8A8, tensor="a", qtype=INT4))


def test_another_activation_type_in_qoperator_style() -> None:
    with pytest.raises(RecipeError, match="one type for all activations"):
        _try("Add", _with(Case(QOPERATOR, "uint8", "int8"), tensor="a", qtype=INT8))


def test_weight_types_without_a_kernel() -> None:
    with pytest.raises(RecipeError, match="no kernel for int8 activations with uint8 weights"):
        _try("Conv", _with(Case(QOPERATOR, "int8", "int8"), tensor="w", qtype=UINT8))
    with pytest.raises(RecipeError, match=r"exist in the qdq style only|no kernel"):
        _try("Conv", _with(Case(QOPERATOR, "uint8", "int8"), tensor="w", qtype=INT16))


@pytest.mark.parametrize("name", ["Conv", "LSTM"])
def test_many_zero_points_where_the_kernel_takes_one(name: str) -> None:
    with pytest.raises(RecipeError, match="one zero point for all channels"):
        _try(name, _with(Case(INTEGER, "uint8", "int8"), tensor="w", symmetric=False))


@pytest.mark.parametrize("style", [QOPERATOR, INTEGER])
def test_weights_alone_outside_qdq(style: octavo.Style) -> None:
    with pytest.raises(RecipeError, match="needs quantized activations; choose the style qdq"):
        quantize(SAMPLES["MatMul"], Case(style, None, "int8"))


@pytest.mark.parametrize("style", [QDQ, QOPERATOR])
def test_run_time_activations_outside_integer(style: octavo.Style) -> None:
    with pytest.raises(RecipeError, match="integer style only"):
        quantize(SAMPLES["MatMul"], Case(style, DYNAMIC, "int8"))


@pytest.mark.parametrize("style", [QOPERATOR, INTEGER])
@pytest.mark.parametrize("types", [("uint16", "int8"), ("uint8", "int4"), ("float8e4m3fn", "float8e4m3fn")])
def test_types_that_only_qdq_has(style: octavo.Style, types: tuple[str, str]) -> None:
    with pytest.raises(RecipeError, match="exist in the qdq style only; choose"):
        quantize(SAMPLES["MatMul"], Case(style, *types, "tensor"))


def test_float8_weights_beside_integers() -> None:
    with pytest.raises(RecipeError, match="float8 weights go with float8 activations"):
        quantize(SAMPLES["MatMul"], Case(QDQ, "uint8", "float8e4m3fn", "tensor"))
