"""Layers that stay float between quantized ones are left alone by the runtime, and float8 models load."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from builders import conv_net, model, node, tensor

import octavo
from emission.models import EVERYWHERE, IMAGE, feeds, is_close, normal, ops, quantize, run, sqnr
from octavo.core.qtypes import FLOAT8E4M3FN
from octavo.core.recipe import Override, Placement
from octavo.model.files import io

BETWEEN = {
    "nothing": ((), ()),
    "relu": ((), ("Relu",)),
    "pool": ((), ("MaxPool",)),
    "relu_pool": ((), ("Relu", "MaxPool")),
    "pool_before": (("MaxPool",), ("Relu",)),
}


def three_convs(before: tuple[str, ...], behind: tuple[str, ...]) -> onnx.ModelProto:
    """The middle one has a outlier channel, so that one scale for the tensor would show."""
    outlier = normal(8, 8, 3, 3, seed=2, scale=0.2)
    outlier[0] *= 30
    arrays = {
        "w1": normal(8, 4, 3, 3, seed=1, scale=0.2),
        "w2": outlier,
        "w3": normal(4, 8, 3, 3, seed=3, scale=0.2),
    }
    arrays["b2"] = normal(8, seed=4)
    nodes, last = [node("Conv", ["x", "w1"], ["a"], "first", pads=[1] * 4)], "a"

    def follow(kinds: tuple[str, ...], tag: str) -> None:
        nonlocal last
        for i, op in enumerate(kinds):
            settings = {"kernel_shape": [2, 2]} if op == "MaxPool" else {}
            nodes.append(node(op, [last], [f"{tag}{i}"], f"{tag}{i}", **settings))
            last = f"{tag}{i}"

    follow(before, "before")
    nodes.append(node("Conv", [last, "w2", "b2"], ["b"], "middle", pads=[1] * 4))
    last = "b"
    follow(behind, "behind")
    nodes.append(node("Conv", [last, "w3"], ["y"], "last"))
    return model(nodes, [tensor("x", [1, 4, 10, 10])], [tensor("y", None)], arrays)


@pytest.mark.parametrize("placement", [Placement.TARGET, Placement.EVERYWHERE])
@pytest.mark.parametrize("between", BETWEEN)
def test_excluded_conv_keeps_its_float_weights(between: str, placement: Placement) -> None:
    source, data = three_convs(*BETWEEN[between]), feeds((1, 4, 10, 10))
    result = quantize(source, data, octavo.W8A8.but(placement=placement), exclude=("middle",))
    assert result.plan.barriers[0] == "middle"
    optimized, plain = run(result.model, data), run(result.model, data, optimize=False)
    np.testing.assert_allclose(optimized, plain, atol=1e-3 * np.abs(plain).max())
    assert is_close(result, source, data, 30.0)


@pytest.mark.parametrize("between", ["nothing", "pool"])
def test_without_the_guard_the_runtime_rounds_the_weights(between: str) -> None:
    """What the guard is for; should this fail one day, the guard can go."""
    source, data = three_convs(*BETWEEN[between]), feeds((1, 4, 10, 10))
    plan = octavo.plan(source, EVERYWHERE, exclude=("middle",))
    result = octavo.quantize(source, data, plan=dataclasses.replace(plan, barriers=()))
    assert sqnr(run(result.model, data, optimize=False), run(result.model, data)) < 40.0


def test_float_pool_in_front_of_integers_pools_floats_in_the_runtime_too(tmp_path: Path) -> None:
    """Pooling integers that no integer convolution has made takes 40 times as long."""
    source, data = three_convs((), ("Relu", "MaxPool")), feeds((1, 4, 10, 10))
    result = quantize(source, data, octavo.W8A8, exclude=("middle",))
    assert result.plan.barriers == ("middle", "behind1")
    assert pooled_types(result.model, tmp_path) == {onnx.TensorProto.FLOAT}
    without = octavo.quantize(source, data, plan=dataclasses.replace(result.plan, barriers=("middle",)))
    np.testing.assert_array_equal(run(result.model, data), run(without.model, data))
    assert pooled_types(without.model, tmp_path) == {onnx.TensorProto.UINT8}  # else the guard can go


def pooled_types(model: ir.Model, folder: Path) -> set[int]:
    """The types that the MaxPools of the model read once the runtime has optimized it."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    ort.InferenceSession(io.to_bytes(model), options)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(folder / "optimized.onnx"))
    types = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
    return {types[one.input[0]] for one in inferred.graph.node if one.op_type == "MaxPool"}


def test_pool_between_integers_has_no_guard() -> None:
    result = quantize(three_convs((), ("MaxPool",)), feeds((1, 4, 10, 10)), octavo.W8A8)
    assert result.plan.barriers == ()


def test_pool_in_front_of_float_padding_has_no_guard() -> None:
    nodes = [
        node("Softplus", ["x"], ["a"], "soft"),
        node("MaxPool", ["a"], ["b"], "pool", kernel_shape=[2, 1]),
        node("Pad", ["b", "widths"], ["c"], "pad"),
        node("Conv", ["c", "w"], ["y"], "conv"),
    ]
    arrays = {"w": normal(8, 16, 3, 1), "widths": np.array([0, 0, 1, 0, 0, 0, 1, 0])}
    source = model(nodes, [tensor("x", [1, 16, 10, 1])], [tensor("y", None)], arrays)
    assert quantize(source, feeds((1, 16, 10, 1)), octavo.W8A8).plan.barriers == ()
    nodes[3] = node("Conv", ["b", "w"], ["y"], "conv")
    result = quantize(
        model(nodes[:2] + nodes[3:], [tensor("x", [1, 16, 10, 1])], [tensor("y", None)], {"w": arrays["w"]}),
        feeds((1, 16, 10, 1)),
        octavo.W8A8,
    )
    assert result.plan.barriers == ("pool",)
    (guard,) = [one for one in result.model.graph if one.op_type == "Max"]
    assert guard.inputs[0] is guard.inputs[1]  # a scalar is slow behind an axis of size one


def test_conv_beside_float_neighbours_has_no_guard() -> None:
    source = three_convs((), ())
    result = quantize(source, feeds((1, 4, 10, 10)), EVERYWHERE, exclude=("first", "middle"))
    assert result.plan.barriers == ()
    assert "Max" not in ops(result)


def test_other_styles_have_no_guard() -> None:
    source = three_convs((), ())
    result = quantize(
        source, feeds((1, 4, 10, 10)), EVERYWHERE.but(style=octavo.Style.QOPERATOR), exclude=("middle",)
    )
    assert result.plan.barriers == ()


@pytest.mark.parametrize("between", BETWEEN)
def test_float8_model_loads_and_keeps_its_relu(between: str) -> None:
    source, data = three_convs(*BETWEEN[between]), feeds((1, 4, 10, 10))
    result = quantize(source, data, octavo.FP8)
    optimized, plain = run(result.model, data), run(result.model, data, optimize=False)
    np.testing.assert_allclose(optimized, plain, atol=1e-3 * np.abs(plain).max())


def test_float8_classifier_loads() -> None:
    data = feeds((2, 3, 8, 8))
    assert is_close(quantize(conv_net(), data, octavo.FP8), conv_net(), data, 18.0)


def test_float8_model_with_an_excluded_operator_loads() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv", pads=[1] * 4),
        node("Add", ["a", "a"], ["b"], "add"),
        node("MaxPool", ["b"], ["c"], "pool", kernel_shape=[2, 2]),
        node("Conv", ["c", "v"], ["y"], "last"),
    ]
    arrays = {"w": normal(8, 4, 3, 3, seed=1), "v": normal(4, 8, 3, 3, seed=2)}
    source = model(nodes, [tensor("x", IMAGE)], [tensor("y", None)], arrays)
    result = quantize(source, feeds(IMAGE), octavo.FP8, exclude=("add", "pool"))
    assert is_close(result, source, feeds(IMAGE), 18.0)


def test_float8_model_with_sizes_computed_on_integers_loads() -> None:
    """Only floats are guarded: shapes are joined and moved by the same operators."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv"),
        node("Shape", ["a"], ["s"], "shape"),
        node("Gather", ["s", "zero"], ["n"], "first"),
        node("Concat", ["n", "minus"], ["to"], "join", axis=0),
        node("Reshape", ["a", "to"], ["r"], "reshape"),
        node("MatMul", ["r", "v"], ["m"], "last"),
        node("ArgMax", ["m"], ["i"], "best", axis=1),
    ]
    arrays = {"w": normal(8, 4, 3, 3, seed=1), "v": normal(288, 4, seed=2)}
    arrays |= {"zero": np.int64([0]), "minus": np.int64([-1])}
    outputs = [tensor("m", None), tensor("i", None, onnx.TensorProto.INT64)]
    source = model(nodes, [tensor("x", ["n", 4, 8, 8])], outputs, arrays)
    result = quantize(source, feeds(IMAGE), octavo.FP8)
    assert is_close(result, source, feeds(IMAGE), 18.0)


def test_one_float8_tensor_is_guarded_too() -> None:
    source, data = three_convs((), ("Relu",)), feeds((1, 4, 10, 10))
    recipe = EVERYWHERE.but(overrides=(Override("behind0", qtype=FLOAT8E4M3FN),), fuse_clamps=False)
    result = quantize(source, data, recipe)
    assert is_close(result, source, data, 18.0)


def convs_with_gelu(kind: str) -> onnx.ModelProto:
    """Two convolutions and a Gelu between them, in parts, at an opset without the operator."""
    one = {"half": np.float32(0.5), "one": np.float32(1.0), "root": np.float32(np.sqrt(2.0))}
    arrays = {"w1": normal(32, 16, 3, 3, seed=1, scale=0.1), "w2": normal(8, 32, 3, 3, seed=2, scale=0.1)}
    if kind == "erf":
        inner = [node("Div", ["a", "root"], ["d"]), node("Erf", ["d"], ["e"], "core")]
    else:
        one |= {"three": np.float32(3.0), "cube": np.float32(0.044715)}
        one["outer"] = np.float32(np.sqrt(2 / np.pi))
        inner = [
            node("Pow", ["a", "three"], ["a3"]),
            node("Mul", ["a3", "cube"], ["c"]),
            node("Add", ["a", "c"], ["s"]),
            node("Mul", ["s", "outer"], ["d"]),
            node("Tanh", ["d"], ["e"], "core"),
        ]
    nodes = [
        node("Conv", ["x", "w1"], ["a"], "first", pads=[1] * 4),
        *inner,
        node("Add", ["e", "one"], ["p"]),
        node("Mul", ["a", "p"], ["m"]),
        node("Mul", ["m", "half"], ["g"], "end"),
        node("Conv", ["g", "w2"], ["y"], "second", pads=[1] * 4),
    ]
    arrays |= {name: np.asarray(value) for name, value in one.items()}
    return model(nodes, [tensor("x", [1, 16, 10, 10])], [tensor("y", None)], arrays)


@pytest.mark.parametrize(("kind", "joined"), [("erf", "Gelu"), ("tanh", "FastGelu")])
def test_a_gelu_in_parts_that_reads_integers_becomes_one_operator(kind: str, joined: str) -> None:
    source, data = convs_with_gelu(kind), feeds((1, 16, 10, 10))
    result = quantize(source, data, octavo.W8A8, target="ort-cpu-vnni")
    assert result.plan.barriers == ("core",)
    kinds = [node.op_type for node in result.model.graph]
    assert joined in kinds
    assert not {"Erf", "Tanh", "Div", "Mul", "Pow"} & set(kinds)
    assert is_close(result, source, data, 30.0)
    portable = quantize(source, data, octavo.W8A8, target="portable")
    assert {node.domain for node in portable.model.graph} == {""}
    assert is_close(portable, source, data, 25.0)


def test_a_gelu_that_reads_float_stays_in_parts() -> None:
    source, data = convs_with_gelu("erf"), feeds((1, 16, 10, 10))
    result = quantize(source, data, octavo.W8A8, exclude=("first",))
    assert "core" not in result.plan.barriers
    assert "Erf" in [node.op_type for node in result.model.graph]
