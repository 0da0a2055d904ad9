"""Batch normalization and bias additions folded into the layer before."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import conv_net, model, node, tensor
from onnx import TensorProto, helper

from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import batch_norm, prepare, shapes
from octavo.model.runtime.session import Session

from .helpers import before_and_after, ops

rng = np.random.default_rng(0)
NORM = ["gamma", "beta", "mean", "var"]


def parameters(channels: int, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    return {name: rng.uniform(0.5, 2, channels).astype(dtype) for name in NORM}


def weight(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (0.3 * rng.standard_normal(shape)).astype(dtype)


def fold(m: Any) -> None:
    shapes.infer(m)
    batch_norm.fold(m)


def layer(
    op: str,
    arrays: dict[str, np.ndarray],
    x: list[int],
    channels: int,
    dtype: Any = np.float32,
    between: list[onnx.NodeProto] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """One layer, what comes between, and a batch normalization."""
    inputs = ["x", *(name for name in ("w", "b") if name in arrays)]
    last = between[-1].output[0] if between else "h"
    nodes = [
        node(op, inputs, ["h"], "Layer", **attributes),
        *(between or []),
        node("BatchNormalization", [last, *NORM], ["y"], "BN", epsilon=0.01),
    ]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model(
        nodes, [tensor("x", x, element)], [tensor("y", None, element)], arrays | parameters(channels, dtype)
    )


CASES = {
    "Conv": layer("Conv", {"w": weight(6, 3, 3, 3)}, [2, 3, 8, 8], 6),
    "Conv with bias": layer("Conv", {"w": weight(6, 3, 3, 3), "b": weight(6)}, [2, 3, 8, 8], 6),
    "Conv in groups": layer("Conv", {"w": weight(6, 2, 3, 3)}, [2, 4, 8, 8], 6, group=2),
    "Conv depthwise": layer("Conv", {"w": weight(4, 1, 3, 3), "b": weight(4)}, [2, 4, 8, 8], 4, group=4),
    "Conv in one dimension": layer("Conv", {"w": weight(5, 3, 3)}, [2, 3, 9], 5),
    "Gemm in double": layer("Gemm", {"w": weight(3, 5, dtype=np.float64)}, [4, 3], 5, np.float64),
    "ConvTranspose": layer("ConvTranspose", {"w": weight(3, 6, 2, 2)}, [2, 3, 4, 4], 6, strides=[2, 2]),
    "ConvTranspose in groups": layer(
        "ConvTranspose", {"w": weight(4, 3, 2, 2), "b": weight(6)}, [2, 4, 4, 4], 6, group=2
    ),
    "Gemm": layer("Gemm", {"w": weight(3, 5), "b": weight(5)}, [4, 3], 5, alpha=0.5, beta=0.25),
    "Gemm transposed": layer("Gemm", {"w": weight(5, 3), "b": weight(1, 5)}, [4, 3], 5, transB=1),
    "Gemm without C": layer("Gemm", {"w": weight(3, 5)}, [4, 3], 5),
    "MatMul": layer("MatMul", {"w": weight(3, 5)}, [4, 3], 5),
}


@pytest.mark.parametrize("name", CASES)
def test_folding_keeps_the_numbers(name: str) -> None:
    found = before_and_after(CASES[name], fold)
    assert "BatchNormalization" not in ops(found)
    assert [v.name for v in found.graph.outputs] == ["y"]
    assert found.graph[0].name == "Layer"
    assert query.element_type(found.graph[0].inputs[1]) == query.element_type(found.graph.inputs[0])
    assert batch_norm.fold(found) == (0, 0)


@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), (1,), (), (1, 1, 1)])
@pytest.mark.parametrize("left", [True, False])
def test_an_added_constant_is_a_bias(shape: tuple[int, ...], left: bool) -> None:
    between = [node("Add", ["k", "h"] if left else ["h", "k"], ["a"], "Add")]
    arrays = {"w": weight(6, 3, 3, 3), "k": weight(*shape), "b": weight(6)}
    proto = layer("Conv", arrays, [2, 3, 8, 8], 6, between=between)
    assert ops(before_and_after(proto, fold)) == ["Conv"]


@pytest.mark.parametrize("shape", [(8,), (2, 1, 1, 1), (1, 1, 8, 8), (1, 1, 6, 1, 1)])
def test_an_added_constant_of_another_shape_is_no_bias(shape: tuple[int, ...]) -> None:
    nodes = [node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]), node("Add", ["h", "k"], ["y"])]
    proto = model(
        nodes,
        [tensor("x", [2, 3, 8, 8])],
        [tensor("y", None)],
        {"w": weight(6, 3, 3, 3), "k": weight(*shape)},
    )
    assert ops(before_and_after(proto, fold)) == ["Conv", "Add"]


def test_matmul_with_bias_keeps_its_add() -> None:
    proto = layer(
        "MatMul",
        {"w": weight(3, 5), "k": weight(5)},
        [4, 3],
        5,
        between=[node("Add", ["h", "k"], ["a"], "Add")],
    )
    assert ops(before_and_after(proto, fold)) == ["MatMul", "Add"]


def test_half_precision_is_folded_in_double() -> None:
    found = io.load(conv_net(dtype=np.float16))
    normalize(found)
    fold(found)
    assert "BatchNormalization" not in ops(found)
    arrays = {
        t.name: onnx.numpy_helper.to_array(t).astype(np.float64)
        for t in conv_net(dtype=np.float16).graph.initializer
    }
    scale = arrays["gamma"] / np.sqrt(arrays["var"] + 1e-5)
    expected = (arrays["w"] * scale[:, None, None, None]).astype(np.float16)
    got = query.array(found.graph[0].inputs[1])
    assert got is not None
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, expected)


def test_a_shared_weight_is_copied_not_changed() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["h"], "One"),
        node("BatchNormalization", ["h", *NORM], ["y"], "BN"),
        node("Conv", ["x", "w"], ["z"], "Two"),
    ]
    proto = model(
        nodes,
        [tensor("x", [2, 3, 8, 8])],
        [tensor("y", None), tensor("z", None)],
        {"w": weight(6, 3, 3, 3)} | parameters(6),
    )
    found = before_and_after(proto, fold)
    assert ops(found) == ["Conv", "Conv"]
    assert found.graph[0].inputs[1] is not found.graph[1].inputs[1]


def untouched(proto: onnx.ModelProto) -> None:
    found = before_and_after(proto, fold)
    assert "BatchNormalization" in ops(found)


def test_a_layer_that_something_else_reads_stays() -> None:
    proto = CASES["Conv"]
    seen = onnx.ModelProto.FromString(proto.SerializeToString())
    seen.graph.node.append(node("Relu", ["h"], ["z"]))
    seen.graph.output.append(tensor("z", None))
    untouched(seen)
    given = onnx.ModelProto.FromString(proto.SerializeToString())
    given.graph.output.append(tensor("h", None))
    untouched(given)


def test_parameters_that_are_inputs_stay() -> None:
    proto = onnx.ModelProto.FromString(CASES["Conv"].SerializeToString())
    del proto.graph.initializer[1:2]
    proto.graph.input.append(tensor("gamma", [6]))
    untouched(proto)


def test_training_mode_stays() -> None:
    proto = onnx.ModelProto.FromString(CASES["Conv"].SerializeToString())
    proto.graph.node[1].attribute.append(helper.make_attribute("training_mode", 1))
    proto.graph.node[1].output.extend(["m", "v"])
    found = io.load(proto)
    normalize(found)
    assert batch_norm.fold(found) == (0, 0)


def test_matmul_of_more_than_two_dimensions_stays() -> None:
    proto = layer("MatMul", {"w": weight(3, 5)}, [2, 4, 3], 4)
    untouched(proto)


def test_a_norm_in_a_branch_leaves_the_layer_outside_alone() -> None:
    branch = helper.make_graph(
        [node("BatchNormalization", ["h", *NORM], ["t"])], "then", [], [tensor("t", None)]
    )
    other = helper.make_graph([node("Relu", ["h2"], ["e"])], "else", [], [tensor("e", None)])
    nodes = [
        node("Conv", ["x", "w"], ["h"]),
        node("Neg", ["x"], ["h2"]),
        node("If", ["cond"], ["y"], then_branch=branch, else_branch=other),
    ]
    proto = model(
        nodes,
        [tensor("x", [2, 3, 8, 8]), tensor("cond", [], TensorProto.BOOL)],
        [tensor("y", None)],
        {"w": weight(6, 3, 3, 3)} | parameters(6),
    )
    for cond in (True, False):
        feeds = {"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32), "cond": np.array(cond)}
        found = before_and_after(proto, fold, feeds)
        assert any(n.op_type == "BatchNormalization" for n in query.nodes(found))


@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_a_fold_that_would_overflow_the_type_is_left(op: str) -> None:
    w = weight(6, 3, 1, 1, dtype=np.float16) if op == "Conv" else weight(3, 6, dtype=np.float16)
    proto = layer(op, {"w": w * np.float16(100)}, [2, 3, 4, 4] if op == "Conv" else [2, 3], 6, np.float16)
    variance = next(t for t in proto.graph.initializer if t.name == "var")
    variance.CopyFrom(onnx.numpy_helper.from_array(np.zeros(6, np.float16), "var"))
    proto.graph.node[-1].attribute[0].f = 1e-12
    found = io.load(proto)
    normalize(found)
    shapes.infer(found)
    before = io.fingerprint(found)
    assert batch_norm.fold(found) == (0, 0)
    assert io.fingerprint(found) == before


@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (1, 4, 1, 1)])
def test_constant_product_and_sum_after_a_convolution_are_part_of_it(shape):
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    factor = rng.normal(size=shape).astype(np.float32)
    addend = rng.normal(size=shape).astype(np.float32)
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Conv", ["x", "w"], ["c"]),
            onnx.helper.make_node("Mul", ["c", "f"], ["m"]),
            onnx.helper.make_node("Add", ["a", "m"], ["y"]),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", 3, 6, 6])],
        [onnx.helper.make_tensor_value_info("y", 1, ["N", 4, 4, 4])],
        [onnx.numpy_helper.from_array(a, n) for a, n in ((weight, "w"), (factor, "f"), (addend, "a"))],
    )
    source = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    x = rng.normal(size=(2, 3, 6, 6)).astype(np.float32)
    prepared = io.load(source)
    prepare(prepared)
    assert [node.op_type for node in prepared.graph] == ["Conv"]
    expected = Session.open(io.load(source)).run({"x": x})["y"]
    np.testing.assert_allclose(Session.open(prepared).run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


def numbers_before(
    kinds: list[str], number: Any = 0.7, reads_left: bool = False, **attributes: Any
) -> onnx.ModelProto:
    """A Sigmoid, nodes that compute with constant numbers, and a convolution."""
    nodes, last = [node("Sigmoid", ["x"], ["h"])], "h"
    constants: dict[str, np.ndarray] = {}
    for i, kind in enumerate(kinds):
        constants[f"c{i}"] = np.asarray(np.asarray(number) * (i + 1), np.float32)
        nodes.append(node(kind, [f"c{i}", last] if reads_left else [last, f"c{i}"], [f"h{i}"]))
        last = f"h{i}"
    size = 1 if attributes.pop("pointwise", False) else 3
    nodes.append(node("Conv", [last, "w"], ["y"], **attributes))
    constants["w"] = weight(6, 3, size, size)
    return model(nodes, [tensor("x", [2, 3, 8, 8])], [tensor("y", None)], constants)


def prepared_ops(proto: onnx.ModelProto) -> list[str]:
    feeds = {"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32)}
    return ops(before_and_after(proto, prepare, feeds))


@pytest.mark.parametrize("number", [0.7, [-0.7]])
@pytest.mark.parametrize("kinds", [["Mul"], ["Add"], ["Mul", "Add"], ["Sub", "Div"], ["Add", "Mul", "Add"]])
def test_numbers_before_an_unpadded_convolution_are_part_of_it(kinds: list[str], number: Any) -> None:
    assert prepared_ops(numbers_before(kinds, number)) == ["Sigmoid", "Conv"]
    assert prepared_ops(numbers_before(kinds, number, pointwise=True, auto_pad="VALID")) == [
        "Sigmoid",
        "Conv",
    ]


@pytest.mark.parametrize("padding", [{"pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER"}])
@pytest.mark.parametrize(
    ("kinds", "left"),
    [
        (["Mul"], []),
        (["Div", "Mul"], []),
        (["Add"], ["Add"]),
        (["Mul", "Add"], ["Add"]),
        (["Div", "Sub"], ["Sub"]),
        (["Add", "Mul"], ["Add"]),
    ],
)
def test_what_is_added_before_a_padded_convolution_stays(
    kinds: list[str], left: list[str], padding: dict[str, Any]
) -> None:
    assert prepared_ops(numbers_before(kinds, **padding)) == ["Sigmoid", *left, "Conv"]


def test_numbers_on_the_left_are_read_too() -> None:
    assert prepared_ops(numbers_before(["Mul", "Add"], reads_left=True)) == ["Sigmoid", "Conv"]
    assert prepared_ops(numbers_before(["Sub"], reads_left=True)) == ["Sigmoid", "Sub", "Conv"]


def test_what_is_no_single_number_stays_before_a_convolution() -> None:
    vector = np.linspace(0.5, 1.5, 24).reshape(3, 8, 1)
    assert prepared_ops(numbers_before(["Mul"], vector)) == ["Sigmoid", "Mul", "Conv"]


def test_a_product_that_something_else_reads_stays_before_a_convolution() -> None:
    proto = numbers_before(["Mul"])
    proto.graph.output.append(tensor("h0", None))
    assert prepared_ops(proto) == ["Sigmoid", "Mul", "Conv"]


def test_a_weight_that_two_convolutions_read_is_not_copied_for_a_number_before_one() -> None:
    proto = numbers_before(["Mul"])
    proto.graph.node.append(node("Conv", ["h", "w"], ["z"]))
    proto.graph.output.append(tensor("z", None))
    assert prepared_ops(proto).count("Mul") == 1


def test_a_number_that_ends_an_activation_function_stays_with_it() -> None:
    nodes = [
        node("Div", ["x", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["a"]),
        node("Mul", ["x", "a"], ["m"]),
        node("Mul", ["m", "half"], ["g"]),
        node("Conv", ["g", "w"], ["y"]),
    ]
    constants = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    proto = model(
        nodes,
        [tensor("x", [2, 3, 8, 8])],
        [tensor("y", None)],
        {name: np.asarray(value) for name, value in constants.items()} | {"w": weight(6, 3, 1, 1)},
    )
    assert prepared_ops(proto)[-2:] == ["Mul", "Conv"]
