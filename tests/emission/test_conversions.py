"""Entries on edges: one reader in another type, conversions, and readers that agree."""

from __future__ import annotations

import pytest
from builders import model, node, tensor

import octavo
from emission.models import EVERYWHERE, IMAGE, feeds, is_close, named, normal, ops, quantize, two_convs
from octavo.core.plan import Key
from octavo.core.qtypes import INT8, UINT16
from octavo.core.recipe import Override, Style


def test_edge_over_a_tensor_is_a_conversion() -> None:
    recipe = EVERYWHERE.but(overrides=(Override("r", qtype=UINT16, consumers=("second",)),))
    source, data = two_convs(), feeds(IMAGE)
    result = quantize(source, data, recipe)
    assert result.params[Key("r")].qtype.name == "uint8"
    assert result.params[Key("r", "second")].qtype is UINT16
    chain = []
    value = named(result, "second").inputs[0]
    while value is not None and value.producer() is not None and len(chain) < 4:
        chain.append(value.producer().op_type)  # type: ignore[union-attr]
        value = value.producer().inputs[0]  # type: ignore[union-attr]
    assert chain == ["DequantizeLinear", "QuantizeLinear", "DequantizeLinear", "QuantizeLinear"]
    assert is_close(result, source, data)


def test_readers_that_agree_share_one_pair() -> None:
    nodes = [node("MatMul", ["x", f"w{i}"], [f"y{i}"], f"head{i}") for i in range(3)]
    arrays = {f"w{i}": normal(16, 16, seed=i) for i in range(3)}
    source = model(nodes, [tensor("x", [4, 16])], [tensor(f"y{i}", None) for i in range(3)], arrays)
    result = quantize(source, feeds((4, 16)), octavo.W8A8)
    assert len([k for k in result.plan.entries if k.tensor == "x"]) == 3
    assert ops(result).count("QuantizeLinear") == 1
    assert is_close(result, source, feeds((4, 16)))


@pytest.mark.parametrize("style", [Style.QDQ, Style.QOPERATOR])
def test_tensor_that_float_and_quantized_nodes_read(style: Style) -> None:
    nodes = [
        node("Conv", ["x", "w1"], ["a"], "first"),
        node("Tanh", ["a"], ["t"], "float"),
        node("Sigmoid", ["a"], ["s"], "quantized"),
        node("Mul", ["t", "s"], ["y"], "join"),
    ]
    source = model(nodes, [tensor("x", IMAGE)], [tensor("y", None)], {"w1": normal(8, 4, 3, 3, seed=1)})
    result = quantize(source, feeds(IMAGE), EVERYWHERE.but(style=style), exclude=("float",))
    assert is_close(result, source, feeds(IMAGE))


@pytest.mark.parametrize("style", [Style.QDQ, Style.QOPERATOR])
def test_quantized_tensor_that_is_a_graph_output_too(style: Style) -> None:
    nodes = [node("Conv", ["x", "w1"], ["a"], "first"), node("Sigmoid", ["a"], ["y"], "second")]
    outputs = [tensor("a", None), tensor("y", None)]
    source = model(nodes, [tensor("x", IMAGE)], outputs, {"w1": normal(8, 4, 3, 3, seed=1)})
    result = quantize(source, feeds(IMAGE), EVERYWHERE.but(style=style))
    assert [v.name for v in result.model.graph.outputs] == ["a", "y"]
    assert is_close(result, source, feeds(IMAGE))


def test_outputs_of_split_share_the_parameters_of_its_input() -> None:
    nodes = [
        node("LeakyRelu", ["x"], ["a"], "lead"),
        node("Split", ["a"], ["b", "c"], "split", axis=1),
        node("Concat", ["b", "c", "b"], ["y"], "join", axis=1),
    ]
    source = model(nodes, [tensor("x", IMAGE)], [tensor("y", None)], {})
    for style in (Style.QDQ, Style.QOPERATOR):
        result = quantize(source, feeds(IMAGE), EVERYWHERE.but(style=style))
        assert result.plan.root(Key("c")) == Key("a")
        assert is_close(result, source, feeds(IMAGE))


def test_fused_relu_is_gone_and_the_rest_is_right() -> None:
    source, data = two_convs(), feeds(IMAGE)
    for style in (Style.QDQ, Style.QOPERATOR):
        result = quantize(source, data, EVERYWHERE.but(style=style))
        assert "Relu" not in ops(result)
        assert is_close(result, source, data)


def test_integer_style_with_fixed_ranges_keeps_its_clamps() -> None:
    """Its products answer in float, so no quantized range cuts anything off."""
    source, data = two_convs(), feeds(IMAGE)
    result = quantize(source, data, octavo.W8A8.but(style=Style.INTEGER))
    assert "Relu" in ops(result)
    assert is_close(result, source, data)


def test_dynamic_inputs_are_quantized_once_for_all_readers() -> None:
    nodes = [node("MatMul", ["x", f"w{i}"], [f"y{i}"], f"head{i}") for i in range(2)]
    arrays = {f"w{i}": normal(16, 16, seed=i) for i in range(2)}
    source = model(nodes, [tensor("x", [4, 16])], [tensor(f"y{i}", None) for i in range(2)], arrays)
    result = quantize(source, None, octavo.W8)
    assert ops(result).count("DynamicQuantizeLinear") == 1
    assert is_close(result, source, feeds((4, 16)))


def test_conversion_to_int8_in_qdq_runs() -> None:
    recipe = EVERYWHERE.but(overrides=(Override("r", qtype=INT8, consumers=("second",)),))
    assert is_close(quantize(two_convs(), feeds(IMAGE), recipe), two_convs(), feeds(IMAGE))
