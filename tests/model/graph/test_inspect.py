"""How a model is quantized, read off its graph."""

from __future__ import annotations

import json

import builders
import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor
from quantizing import EVERYWHERE, convolutions, feeds_for, layers, weights

import octavo
from octavo.core.qtypes import INT4, UINT8
from octavo.model.files import io


def test_a_float_model_is_float() -> None:
    found = octavo.inspect(builders.conv_net())
    assert found.style == "float"
    assert found.opset == 17
    assert not found.quantized_ops
    assert found.float_ops == {"Conv": 1, "Gemm": 1}
    assert [(p.name, p.count) for p in found.parts] == [("float", 8)]
    assert found.bytes == 4 * sum(
        onnx.numpy_helper.to_array(i).size for i in builders.conv_net().graph.initializer
    )


def test_weights_that_constant_nodes_hold_are_weights() -> None:
    proto = builders.conv_net()
    held = [
        onnx.helper.make_node("Constant", [], [weight.name], value=weight)
        for weight in proto.graph.initializer
    ]
    stored = octavo.inspect(proto)
    nodes = list(proto.graph.node)
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.node.extend([*held, *nodes])
    assert octavo.inspect(proto).parts == stored.parts


def test_qdq_shows_types_granularity_and_counts() -> None:
    result = octavo.quantize(convolutions(3), feeds_for(convolutions(3)), effort="plain")
    found = octavo.inspect(result.model)
    assert found.style == "qdq"
    assert found.quantized_ops["Conv"] == 3
    assert not found.float_ops
    assert found.weights == {"int8/channel": 3, "int32/channel": 3}
    assert found.activations == {"uint8": 4}
    assert {p.name for p in found.parts} >= {"int8", "int32", "float", "uint8"}


def test_a_layer_left_out_is_a_float_layer() -> None:
    result = octavo.quantize(convolutions(3), feeds_for(convolutions(3)), exclude=["Conv_1"], effort="plain")
    found = octavo.inspect(result.model)
    assert found.quantized_ops["Conv"] == 2
    assert found.float_ops == {"Conv": 1}


def test_qoperator_is_recognized() -> None:
    result = octavo.quantize(convolutions(2), feeds_for(convolutions(2)), style="qoperator")
    found = octavo.inspect(result.model)
    assert found.style == "qoperator"
    assert found.quantized_ops["QLinearConv"] == 2
    assert found.weights == {"int8/channel": 2}


def test_integer_operators_are_recognized() -> None:
    found = octavo.inspect(octavo.quantize(layers(2)).model)
    assert found.style == "integer"
    assert found.quantized_ops["MatMulInteger"] == 2
    assert found.activations == {"dynamic uint8": 2}
    assert found.weights["int8"] + found.weights["int8/channel"] == 2


@pytest.mark.parametrize(
    ("grain", "text"),
    [
        (octavo.PerBlock(16), "int4/block:16"),
        (octavo.PerChannel(), "int4/channel"),
        (octavo.PerTensor(), "int4"),
    ],
)
def test_weights_of_4_bits_show_their_blocks(grain: object, text: str) -> None:
    recipe = octavo.W8A16.but(weights=octavo.Scheme(INT4, grain, symmetric=True))  # type: ignore[arg-type]
    result = octavo.quantize(layers(2, 32), feeds_for(layers(2, 32)), recipe=recipe)
    found = octavo.inspect(result.model)
    assert found.weights[text] == 2
    assert found.activations == {"uint16": 2}


def test_a_quantized_embedding_is_a_weight() -> None:
    proto = model(
        [node("Gather", ["t", "ids"], ["e"], "g"), node("MatMul", ["e", "w"], ["y"], "mm")],
        [tensor("ids", [4], onnx.TensorProto.INT64)],
        [tensor("y", [4, 64])],
        {"t": weights(512, 64), "w": weights(64, 64)},
    )
    found = octavo.inspect(octavo.quantize(proto).model)
    assert sum(count for name, count in found.weights.items() if name.startswith("int8")) == 2


def test_an_integer_table_that_is_no_weight_is_not_counted() -> None:
    proto = model(
        [node("Gather", ["t", "ids"], ["y"], "g")],
        [tensor("ids", [4], onnx.TensorProto.INT64)],
        [tensor("y", [4], onnx.TensorProto.INT64)],
        {"t": np.arange(9)},
    )
    assert octavo.inspect(proto).weights == {}


def test_models_of_other_tools_are_read_as_well() -> None:
    proto = model(
        [
            node(
                "MatMulNBits",
                ["x", "b", "s"],
                ["y"],
                "nbits",
                domain="com.microsoft",
                K=32,
                N=16,
                bits=4,
                block_size=16,
            ),
        ],
        [tensor("x", [2, 32])],
        [tensor("y", [2, 16])],
        {"b": np.zeros((16, 2, 8), np.uint8), "s": np.ones(32, np.float32)},
        domains={"com.microsoft": 1},
    )
    found = octavo.inspect(proto)
    assert found.style == "weight-only"
    assert found.weights == {"uint4/block:16": 1}
    assert found.quantized_ops == {"MatMulNBits": 1}


def test_subgraphs_are_looked_into() -> None:
    branch = graph(
        [node("MatMul", ["x", "w"], ["o"], "mm")], [], [tensor("o", [2, 16])], {"w": weights(16, 16)}
    )
    other = graph([node("Neg", ["x"], ["p"], "neg")], [], [tensor("p", [2, 16])])
    proto = model(
        [node("If", ["c"], ["y"], "If_0", then_branch=branch, else_branch=other)],
        [tensor("x", [2, 16]), tensor("c", [], onnx.TensorProto.BOOL)],
        [tensor("y", [2, 16])],
    )
    found = octavo.inspect(proto)
    assert found.float_ops == {"MatMul": 1}
    assert found.bytes == 4 * 256


def test_an_inspection_is_json() -> None:
    recipe = EVERYWHERE.but(weights=octavo.Scheme(UINT8))
    result = octavo.quantize(builders.conv_net(), feeds_for(builders.conv_net()), recipe=recipe)
    plain = json.loads(json.dumps(octavo.inspect(result.model).to_dict()))
    assert plain["style"] == "qdq"
    assert plain["bytes"] == io.weight_bytes(result.model)
    assert plain["weights"]["uint8"] == 2
