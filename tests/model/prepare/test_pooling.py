"""A mean over all spatial axes becomes a GlobalAveragePool, and nothing else does."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from octavo.model.files.io import load
from octavo.model.prepare import prepare
from octavo.model.runtime.session import Session


def model(axes, keepdims, opset, rank=4):
    dims = ["N", 3, 5, 5][:rank]
    constants = []
    inputs, attributes = ["x"], {"keepdims": keepdims}
    if opset >= 18:
        inputs.append("axes")
        constants.append(onnx.numpy_helper.from_array(np.asarray(axes, np.int64), "axes"))
    else:
        attributes["axes"] = axes
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", inputs, ["y"], name="mean", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[2, 3], [-1, -2]])
def test_mean_over_all_spatial_axes_becomes_a_pool_with_the_same_result(axes, keepdims, opset):
    source = model(axes, keepdims, opset)
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 5)).astype(np.float32)
    expected = Session.open(load(source)).run({"x": x})["y"]
    prepared = load(source)
    prepare(prepared)
    assert "GlobalAveragePool" in [node.op_type for node in prepared.graph]
    found = Session.open(prepared).run({"x": x})["y"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", [[1], [1, 2, 3], [3], [0, 2, 3]])
def test_mean_over_other_axes_stays(axes):
    prepared = load(model(axes, 1, 13))
    prepare(prepared)
    assert [node.op_type for node in prepared.graph] == ["ReduceMean"]


def test_the_mean_of_a_norm_stays_so_that_the_runtime_sees_the_norm():
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[-1]),
        helper.make_node("Sub", ["x", "mean"], ["centred"]),
        helper.make_node("Pow", ["centred", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["variance"], axes=[-1]),
        helper.make_node("Add", ["variance", "epsilon"], ["positive"]),
        helper.make_node("Sqrt", ["positive"], ["deviation"]),
        helper.make_node("Div", ["centred", "deviation"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "T", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(np.float32(2), "two"),
            onnx.numpy_helper.from_array(np.float32(1e-5), "epsilon"),
        ],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    prepared = load(source)
    prepare(prepared)
    assert [node.op_type for node in prepared.graph].count("ReduceMean") == 2
