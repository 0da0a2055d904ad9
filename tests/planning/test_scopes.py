"""Subgraphs, functions, tied and already quantized weights: each handled once, where it is defined."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor
from onnx import TensorProto, helper
from quantizing import EVERYWHERE, error, feeds_for, layers, ops, reason, run, session, weights

import octavo
from octavo.core.plan import Key
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import query

RECIPES = {"target": octavo.W8A8, "everywhere": EVERYWHERE}
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64


def both_ways(proto: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    return [{**f, "cond": np.array(taken)} for f in feeds_for(proto, 3) for taken in (True, False)]


def conv(x: str, w: str, y: str, name: str = "") -> onnx.NodeProto:
    return node("Conv", [x, w], [y], name, pads=[1, 1, 1, 1])


def if_model() -> onnx.ModelProto:
    """Two branches with the same names inside, one weight of their own each, and one from outside."""

    def branch(seed: int) -> onnx.GraphProto:
        nodes = [
            conv("h", "w", "c", "conv"),
            node("Relu", ["c"], ["r"], "relu"),
            conv("r", "outer", "out", "last"),
        ]
        return graph(
            nodes, [], [tensor("out", [1, 8, 6, 6])], {"w": weights(8, 8, 3, 3, seed=seed) / 8}, name="b"
        )

    return model(
        [
            conv("x", "outer", "h", "stem"),
            node("If", ["cond"], ["y"], "If_0", then_branch=branch(1), else_branch=branch(2)),
        ],
        [tensor("x", [1, 8, 6, 6]), tensor("cond", [], BOOL)],
        [tensor("y", [1, 8, 6, 6])],
        {"outer": weights(8, 8, 3, 3) / 8},
    )


@pytest.mark.parametrize("style", ["qdq", "qoperator"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_both_branches_of_an_if_are_quantized(recipe: octavo.Recipe, style: str) -> None:
    proto = if_model()
    data = both_ways(proto)
    result = octavo.quantize(proto, data, recipe=recipe, style=style)
    assert result.plan.counts()["Conv"] == 5
    assert len(result.plan.fused) == 2
    assert error(result, proto, data) < 0.05


def test_a_weight_from_outside_is_stored_once_for_all_branches() -> None:
    result = octavo.quantize(if_model(), both_ways(if_model()), effort="plain")
    held = [v for part in query.graphs(result.model) for v in part.initializers.values()]
    assert len([v for v in held if v.dtype.name == "INT8" and v.shape == (8, 8, 3, 3)]) == 3
    assert not [v for v in held if v.dtype.name == "FLOAT" and len(v.shape) == 4]


def test_dynamic_quantization_reaches_into_branches() -> None:
    def branch(seed: int) -> onnx.GraphProto:
        nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["out"], "relu")]
        return graph(nodes, [], [tensor("out", [2, 16])], {"w": weights(16, 16, seed=seed)}, name="b")

    proto = model(
        [node("If", ["cond"], ["y"], "If_0", then_branch=branch(1), else_branch=branch(2))],
        [tensor("x", [2, 16]), tensor("cond", [], BOOL)],
        [tensor("y", [2, 16])],
    )
    result = octavo.quantize(proto)
    assert ops(result)["MatMulInteger"] == 2
    assert error(result, proto, both_ways(proto)) < 0.05


def loop_model(recipe_width: int = 16) -> onnx.ModelProto:
    """``h`` goes three times through a linear layer; every state is collected."""
    body = graph(
        [
            node("MatMul", ["state", "w"], ["m"], "mm"),
            node("Add", ["m", "b"], ["a"], "add"),
            node("Tanh", ["a"], ["next"], "tanh"),
            node("Identity", ["go"], ["still"], "go_on"),
            node("Identity", ["next"], ["seen"], "see"),
        ],
        [tensor("i", [], INT64), tensor("go", [], BOOL), tensor("state", [2, 16])],
        [tensor("still", [], BOOL), tensor("next", [2, 16]), tensor("seen", [2, 16])],
        name="body",
    )
    return model(
        [node("Loop", ["count", "", "x"], ["y", "all"], "Loop_0", body=body)],
        [tensor("x", [2, 16])],
        [tensor("y", [2, 16]), tensor("all", [3, 2, 16])],
        {"count": np.int64(3), "w": weights(16, 16) / 4, "b": weights(16, seed=1) / 4},
    )


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("style", ["qdq", "qoperator"])
def test_the_body_of_a_loop_is_quantized(recipe: octavo.Recipe, style: str) -> None:
    proto = loop_model()
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=recipe, style=style)
    assert "mm" in result.plan.nodes
    assert error(result, proto, data) < 0.06


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_body_of_a_scan_is_quantized(recipe: octavo.Recipe) -> None:
    body = graph(
        [
            node("Add", ["state", "item"], ["sum"], "sum"),
            node("MatMul", ["sum", "w"], ["m"], "mm"),
            node("Tanh", ["m"], ["next"], "tanh"),
            node("Identity", ["next"], ["seen"], "see"),
        ],
        [tensor("state", [2, 16]), tensor("item", [2, 16])],
        [tensor("next", [2, 16]), tensor("seen", [2, 16])],
        name="body",
    )
    proto = model(
        [node("Scan", ["h", "x"], ["y", "all"], "Scan_0", body=body, num_scan_inputs=1)],
        [tensor("h", [2, 16]), tensor("x", [5, 2, 16])],
        [tensor("y", [2, 16]), tensor("all", [5, 2, 16])],
        {"w": weights(16, 16) / 4},
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=recipe)
    assert "mm" in result.plan.nodes
    assert error(result, proto, data) < 0.06


def test_an_if_inside_a_loop_is_quantized() -> None:
    inner = graph(
        [conv("state", "w", "c1", "inner"), node("Relu", ["c1"], ["o1"], "r1")],
        [],
        [tensor("o1", [1, 8, 6, 6])],
    )
    other = graph([conv("state", "v", "o2", "other")], [], [tensor("o2", [1, 8, 6, 6])])
    body = graph(
        [
            node("If", ["cond"], ["next"], "inside", then_branch=inner, else_branch=other),
            node("Identity", ["go"], ["still"], "go_on"),
        ],
        [tensor("i", [], INT64), tensor("go", [], BOOL), tensor("state", [1, 8, 6, 6])],
        [tensor("still", [], BOOL), tensor("next", [1, 8, 6, 6])],
        name="body",
    )
    proto = model(
        [node("Loop", ["count", "", "x"], ["y"], "Loop_0", body=body)],
        [tensor("x", [1, 8, 6, 6]), tensor("cond", [], BOOL)],
        [tensor("y", [1, 8, 6, 6])],
        {"count": np.int64(2), "w": weights(8, 8, 3, 3) / 8, "v": weights(8, 8, 3, 3, seed=1) / 8},
    )
    data = both_ways(proto)
    result = octavo.quantize(proto, data, effort="plain")
    assert {"inner", "other"} <= set(result.plan.nodes)
    assert error(result, proto, data) < 0.05


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_nodes_in_branches_keep_their_domain(dynamic: bool) -> None:
    def branch(name: str) -> onnx.GraphProto:
        nodes = [
            node("MatMul", ["x", "w"], [f"m_{name}"], f"mm_{name}"),
            node("Gelu", [f"m_{name}"], [f"o_{name}"], f"gelu_{name}", domain="com.microsoft"),
        ]
        return graph(nodes, [], [tensor(f"o_{name}", [2, 16])], name=name)

    proto = model(
        [node("If", ["cond"], ["y"], "If_0", then_branch=branch("t"), else_branch=branch("e"))],
        [tensor("x", [2, 16]), tensor("cond", [], BOOL)],
        [tensor("y", [2, 16])],
        {"w": weights(16, 16)},
        domains={"com.microsoft": 1},
    )
    data = both_ways(proto)
    result = octavo.quantize(proto, None if dynamic else data, effort="plain")
    domains = [n.domain for n in result.model.graph.all_nodes() if n.op_type == "Gelu"]
    assert domains == ["com.microsoft"] * 2
    assert error(result, proto, data) < 0.05


def test_a_model_local_function_is_inlined_and_quantized() -> None:
    body = helper.make_function(
        "local", "Layer", ["a", "w"], ["c"],
        [node("MatMul", ["a", "w"], ["b"], "mm"), node("Relu", ["b"], ["c"], "relu")],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    proto = model(
        [
            node("Layer", ["x", "w0"], ["h"], "first", domain="local"),
            node("Layer", ["h", "w1"], ["y"], "second", domain="local"),
        ],
        [tensor("x", [2, 16])],
        [tensor("y", [2, 16])],
        {"w0": weights(16, 16) / 4, "w1": weights(16, 16, seed=1) / 4},
        domains={"local": 1},
        functions=[body],
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, effort="plain")
    assert result.plan.counts() == {"MatMul": 2}
    assert "local" not in result.model.opset_imports
    assert error(result, proto, data) < 0.05


# ---- weights that are the same, or quantized already


def tied(alias: str) -> onnx.ModelProto:
    """An embedding whose table is the output layer's weight as well."""
    nodes = [node("Gather", ["table", "ids"], ["e"], "embed")]
    arrays = {"table": weights(2048, 160) / 8}
    if alias == "gemm":
        nodes.append(node("Gemm", ["e", "table"], ["y"], "head", transB=1))
    else:
        source = "table"
        if alias == "identity transpose":
            nodes.append(node("Identity", ["table"], ["same"], "same"))
            source = "same"
        nodes += [
            node("Transpose", [source], ["turned"], "turn", perm=[1, 0]),
            node("MatMul", ["e", "turned"], ["y"], "head"),
        ]
    return model(nodes, [tensor("ids", [5], INT64)], [tensor("y", [5, 2048])], arrays)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("alias", ["gemm", "transpose", "identity transpose"])
def test_a_tied_weight_is_stored_once(alias: str, dynamic: bool) -> None:
    proto = tied(alias)
    data = [{"ids": np.arange(5, dtype=np.int64) + 100 * i} for i in range(4)]
    result = octavo.quantize(proto, None if dynamic else data, effort="plain")
    assert set(result.plan.nodes) == {"embed", "head"}
    large = [v.name for v in result.model.graph.initializers.values() if v.const_value.size == 2048 * 160]
    assert len(large) == 1
    assert result.bytes < 0.35 * result.float_bytes
    assert error(result, proto, data) < 0.05


def test_one_initializer_of_two_layers_is_stored_once() -> None:
    proto = layers(2)
    proto.graph.node[3].input[1] = "w0"
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, effort="plain")
    assert [
        v.name
        for v in result.model.graph.initializers.values()
        if v.dtype.name == "INT8" and v.shape == (16, 16)
    ] == ["w0_quantized"]
    assert error(result, proto, data) < 0.05


def test_two_initializers_of_equal_content_are_left_alone() -> None:
    proto = layers(2)
    proto.graph.initializer[2].raw_data = proto.graph.initializer[0].raw_data
    assert octavo.quantize(proto, feeds_for(proto), effort="plain").plan.counts() == {"MatMul": 2}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_weights_in_constant_nodes_are_quantized_and_the_file_shrinks(dynamic: bool) -> None:
    w = weights(64, 64) / 8
    proto = model(
        [
            node("Constant", [], ["w"], "w", value=onnx.numpy_helper.from_array(w)),
            node("MatMul", ["x", "w"], ["m"], "mm"),
            node("Relu", ["m"], ["y"], "relu"),
        ],
        [tensor("x", [2, 64])],
        [tensor("y", [2, 64])],
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, None if dynamic else data, effort="plain")
    assert "mm" in result.plan.nodes
    assert len(io.to_bytes(result.model)) < 0.4 * len(proto.SerializeToString())
    assert error(result, proto, data) < 0.05


def half_quantized() -> onnx.ModelProto:
    """One layer that another tool has quantized, then one in float."""
    w = weights(16, 16) / 4
    scale = np.float32(np.abs(w).max() / 127)
    return model(
        [
            node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], "x_q"),
            node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], "x_dq"),
            node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], "w_dq"),
            node("MatMul", ["xd", "wd"], ["m"], "done"),
            node("Relu", ["m"], ["h"], "relu"),
            node("MatMul", ["h", "w1"], ["y"], "todo"),
        ],
        [tensor("x", [2, 16])],
        [tensor("y", [2, 16])],
        {
            "xs": np.float32(0.05), "xz": np.uint8(128), "ws": scale, "wz": np.int8(0),
            "wq": np.rint(w / scale).astype(np.int8), "w1": weights(16, 16, seed=1) / 4,
        },
    )  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_half_quantized_model_is_quantized_where_it_is_float_and_nowhere_twice(
    recipe: octavo.Recipe,
) -> None:
    proto = half_quantized()
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=recipe)
    assert "todo" in result.plan.nodes
    assert "quantized already" in reason(result, "done")
    for item in result.model.graph.all_nodes():
        if item.op_type == "QuantizeLinear":
            producer = item.inputs[0].producer()
            assert producer is None or producer.op_type != "DequantizeLinear"
    assert error(result, proto, data) < 0.05


def test_a_weight_that_comes_with_dequantize_linear_is_left_as_it_is() -> None:
    proto = half_quantized()
    result = octavo.quantize(proto)
    assert "quantized already" in reason(result, "done")
    assert error(result, proto, feeds_for(proto)) < 0.05


def test_a_fully_quantized_model_is_refused_with_a_sentence() -> None:
    proto = layers(2)
    done = octavo.quantize(proto, feeds_for(proto), recipe=EVERYWHERE)
    with pytest.raises(
        ModelError, match=r"is quantized already \(\d+ QuantizeLinear.*start from the float model"
    ):
        octavo.quantize(done.model, feeds_for(proto), effort="plain")


@pytest.mark.parametrize("style", ["qoperator", "integer"])
def test_a_model_of_integer_operators_is_refused(style: str) -> None:
    proto = layers(2)
    done = octavo.quantize(proto, None if style == "integer" else feeds_for(proto), style=style)
    with pytest.raises(ModelError, match="quantized already"):
        octavo.quantize(done.model, feeds_for(proto), effort="plain")


def test_a_compiled_model_is_refused_with_a_sentence() -> None:
    proto = model(
        [node("EPContext", ["x"], ["y"], "ctx", domain="com.microsoft", main_context=1, embed_mode=0)],
        [tensor("x", [2, 16])],
        [tensor("y", [2, 16])],
        domains={"com.microsoft": 1},
    )
    with pytest.raises(ModelError, match=r"compiled for one device \(1 EPContext nodes\)"):
        octavo.quantize(proto)
    with pytest.raises(ModelError, match="compiled for one device"):
        octavo.plan(proto)


def test_names_are_unique_and_nodes_in_order_whatever_the_scopes() -> None:
    result = octavo.quantize(if_model(), both_ways(if_model()), recipe=EVERYWHERE)
    names = [v.name for n in result.model.graph.all_nodes() for v in n.outputs]
    assert len(names) == len(set(names))
    assert len({n.name for n in result.model.graph.all_nodes()}) == len(names)
    assert session(result).output_names == ["y"]
    assert Key("x") in result.params
    assert run(result, both_ways(if_model())[0])["y"].shape == (1, 8, 6, 6)
