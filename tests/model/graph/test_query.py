"""Questions about a model."""

from __future__ import annotations

import builders
import numpy as np
import onnx_ir as ir
import pytest
from builders import model, node, tensor

from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize


def load(proto: object) -> ir.Model:
    found = io.load(proto)  # type: ignore[arg-type]
    normalize(found)
    return found


def test_readers_include_nodes_in_subgraphs_once_each() -> None:
    found = load(builders.two_branches())
    h = found.graph[0].outputs[0]
    assert sorted(n.op_type for n in query.readers(h)) == ["Mul", "Sub"]
    assert query.only_reader(h) is None
    square = load(model([node("Mul", ["x", "x"], ["y"])], [tensor("x", [3])], [tensor("y", [3])]))
    assert len(query.readers(square.graph.inputs[0])) == 1


def test_constants_are_seen_through_identity() -> None:
    nodes = [node("Identity", ["c"], ["i"]), node("Identity", ["i"], ["j"]), node("Add", ["x", "j"], ["y"])]
    found = load(model(nodes, [tensor("x", [3])], [tensor("y", [3])], {"c": np.float32([7])}))
    last = found.graph[2]
    assert query.scalar(last.inputs[1]) == 7
    assert query.constant(last.inputs[0]) is None
    assert query.array(last.inputs[1], limit=0) is None


def test_nodes_come_depth_first() -> None:
    found = load(builders.two_branches())
    assert [n.op_type for n in query.nodes(found)] == ["Relu", "If", "Sub", "Add", "Mul", "Add"]
    assert [len(query.subgraphs(n)) for n in found.graph] == [0, 2]


def test_types_shapes_and_attributes() -> None:
    found = load(builders.conv_net())
    conv, x = found.graph[0], found.graph.inputs[0]
    assert query.element_type(x) == ir.DataType.FLOAT
    assert query.is_float(x)
    assert query.shape(x) == (None, 3, 8, 8)
    assert query.rank(conv.outputs[0]) is None
    assert query.attribute(conv, "pads") == (1, 1, 1, 1)
    assert query.attribute(conv, "group", 1) == 1
    assert query.opset(found) == 17


def test_a_linear_layer_is_a_matmul_with_an_optional_bias() -> None:
    arrays = {
        "w": np.ones((3, 4), np.float32),
        "b": np.ones(4, np.float32),
        "wide": np.ones((2, 4), np.float32),
    }
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "with"),
        node("Add", ["b", "m"], ["a"]),
        node("MatMul", ["x", "w"], ["n"], "without"),
        node("Add", ["n", "wide"], ["y"]),
    ]
    found = load(model(nodes, [tensor("x", [2, 3])], [tensor("a", [2, 4]), tensor("y", [2, 4])], arrays))
    with_bias, add, without, _ = found.graph
    layer = query.linear_layer(with_bias)
    assert layer is not None
    assert layer.add is add
    assert layer.bias is found.graph.initializers["b"]
    plain = query.linear_layer(without)
    assert plain is not None
    assert plain.add is None
    assert query.linear_layer(add) is None


def test_compiled_models_are_refused() -> None:
    nodes = [node("EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context="blob")]
    found = load(model(nodes, [tensor("x", [3])], [tensor("y", [3])], domains={"com.microsoft": 1}))
    with pytest.raises(ModelError, match="compiled"):
        query.refuse_unsupported(found)


def quantized(weight: str) -> ir.Model:
    arrays = {
        "s": np.float32(0.1),
        "z": np.uint8(3),
        "q": np.ones((3, 3), np.uint8),
        "w": np.ones((3, 3), np.float32),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["q", "s", "z"], ["wd"]),
        node("MatMul", ["xd", weight], ["y"]),
    ]
    return load(model(nodes, [tensor("x", [3, 3])], [tensor("y", [3, 3])], arrays))


def test_fully_quantized_models_are_refused_and_partly_quantized_ones_not() -> None:
    with pytest.raises(ModelError, match="quantized already"):
        query.refuse_unsupported(quantized("wd"))
    query.refuse_unsupported(quantized("w"))
    query.refuse_unsupported(load(builders.conv_net()))


def test_kinds_are_counted() -> None:
    nodes = [
        node(
            "MatMulNBits", ["x", "w", "w"], ["a"], domain="com.microsoft", K=16, N=16, bits=4, block_size=16
        ),
        node("QLinearAdd", ["a"] * 7, ["b"], domain="com.microsoft"),
        node("MatMulInteger", ["b", "b"], ["c"]),
        node("ReluGrad", ["c"], ["y"], domain="com.microsoft"),
    ]
    kind = query.classify(
        load(
            model(
                nodes,
                [tensor("x", [3])],
                [tensor("y", [3])],
                {"w": np.ones((3, 3), np.float32)},
                domains={"com.microsoft": 1},
            )
        )
    )
    assert (kind.blockwise, kind.integer, kind.float_weights, kind.quantized) == (1, 2, 1, 3)
