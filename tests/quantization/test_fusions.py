"""Fusions: the fused model computes the same, and the base class finds its way around a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor

from octavo.model.files import io
from octavo.model.prepare import raise_opset
from octavo.model.runtime.session import Session
from octavo.quantization.fusions import (
    Fusion,
    FusionGelu,
    FusionLayerNormalization,
    ReplaceUpsampleWithResize,
)
from octavo.quantization.onnx_model import ONNXModel

F32 = np.float32
FEEDS = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(F32)}


def gelu(order: int) -> onnx.ModelProto:
    """Three variants: ½ last, ½ on x first, ½ on the sum."""
    last = {
        0: [node("Mul", ["x", "a"], ["m"], "m"), node("Mul", ["m", "half"], ["y"], "y")],
        1: [node("Mul", ["x", "half"], ["m"], "m"), node("Mul", ["m", "a"], ["y"], "y")],
        2: [node("Mul", ["a", "half"], ["m"], "m"), node("Mul", ["x", "m"], ["y"], "y")],
    }[order]
    first = [
        node("Div", ["x", "root"], ["d"], "d"),
        node("Erf", ["d"], ["e"], "e"),
        node("Add", ["e", "one"], ["a"], "a"),
    ]
    arrays = {"root": F32(np.sqrt(2)), "one": F32(1), "half": F32(0.5)}
    return model([*first, *last], [tensor("x", [2, 4])], [tensor("y", [2, 4])], arrays)


def layer_norm() -> onnx.ModelProto:
    nodes = [
        node("ReduceMean", ["x"], ["mu"], "mu", axes=[-1]),
        node("Sub", ["x", "mu"], ["s"], "s"),
        node("Pow", ["s", "two"], ["p"], "p"),
        node("ReduceMean", ["p"], ["v"], "v", axes=[-1]),
        node("Add", ["v", "eps"], ["ve"], "ve"),
        node("Sqrt", ["ve"], ["sd"], "sd"),
        node("Div", ["s", "sd"], ["n"], "n"),
        node("Mul", ["n", "g"], ["ng"], "ng"),
        node("Add", ["ng", "b"], ["y"], "yy"),
    ]
    arrays = {"two": F32(2), "eps": F32(1e-5), "g": np.arange(4, dtype=F32), "b": np.ones(4, F32)}
    return model(nodes, [tensor("x", [2, 4])], [tensor("y", [2, 4])], arrays)


def run(proto: onnx.ModelProto, feeds: dict[str, Any] = FEEDS) -> np.ndarray:
    return Session.open(proto.SerializeToString()).run(feeds)["y"]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_gelu_in_any_order_becomes_one_operator(order: int) -> None:
    proto = gelu(order)
    wanted = run(proto)
    fusion = FusionGelu(ONNXModel(proto))
    assert fusion.apply()
    (fused,) = proto.graph.node
    assert (fused.op_type, fused.domain, fused.name) == ("Gelu", "com.microsoft", "Gelu_fused_Erf_0")
    assert not proto.graph.initializer
    np.testing.assert_allclose(run(proto), wanted, atol=1e-6)


def test_gelu_can_be_fused_around_one_node() -> None:
    found = ONNXModel(gelu(0))
    fusion = FusionGelu(found)
    maps = found.input_name_to_nodes(), found.output_name_to_node()
    assert fusion.fuse_1(found.output_name_to_node()["e"], *maps)
    assert len(fusion.nodes_to_remove) == 5
    assert [n.op_type for n in fusion.nodes_to_add] == ["Gelu"]


def test_what_is_read_elsewhere_is_not_fused() -> None:
    proto = gelu(0)
    proto.graph.output.append(tensor("e", [2, 4]))
    assert not FusionGelu(ONNXModel(proto)).apply()
    assert len(proto.graph.node) == 5


def test_layer_normalization_becomes_one_operator() -> None:
    proto = layer_norm()
    wanted = run(proto)
    assert FusionLayerNormalization(ONNXModel(proto)).apply()
    (fused,) = proto.graph.node
    assert (fused.op_type, list(fused.input)) == ("LayerNormalization", ["x", "g", "b"])
    np.testing.assert_allclose(run(proto), wanted, atol=1e-5)


def test_nothing_to_fuse_leaves_the_model_alone() -> None:
    proto = layer_norm()
    before = proto.SerializeToString()
    assert not FusionGelu(ONNXModel(proto)).apply()
    assert proto.SerializeToString() == before


@pytest.mark.parametrize(("opset", "mode"), [(7, "nearest"), (9, "nearest"), (9, "linear")])
def test_upsample_becomes_the_resize_of_opset_11(opset: int, mode: str) -> None:
    scales = [1.0, 1.0, 2.0, 2.0]
    up = (
        node("Upsample", ["x"], ["y"], "up", mode=mode, scales=scales)
        if opset == 7
        else node("Upsample", ["x", "s"], ["y"], "up", mode=mode)
    )
    arrays = {} if opset == 7 else {"s": np.array(scales, F32)}
    proto = model([up], [tensor("x", [1, 1, 2, 2])], [tensor("y", [1, 1, 4, 4])], arrays, opset=opset)
    feeds = {"x": np.arange(4, dtype=F32).reshape(1, 1, 2, 2)}
    wanted = run(proto, feeds)
    assert ReplaceUpsampleWithResize(ONNXModel(proto), opset).apply()
    assert [n.op_type for n in proto.graph.node] == ["Resize"]
    proto.opset_import[0].version = 11
    np.testing.assert_allclose(run(proto, feeds), wanted)
    raised = io.load(proto)
    raise_opset(raised, 17)
    np.testing.assert_allclose(Session.open(raised).run(feeds)["y"], wanted)


class Doubled(Fusion):
    """A user's own: Add of a tensor to itself becomes Mul by two."""

    def __init__(self, found: ONNXModel) -> None:
        super().__init__(found, "Mul", "Add")

    def fuse(self, node: onnx.NodeProto, input_name_to_nodes: Any, output_name_to_node: Any) -> None:
        if node.input[0] == node.input[1]:
            self.model.add_initializer(onnx.numpy_helper.from_array(F32(2), "two"))
            self.nodes_to_remove.append(node)
            new = onnx.helper.make_node(
                "Mul", [node.input[0], "two"], list(node.output), self.create_unique_node_name()
            )
            self.nodes_to_add.append(new)


def test_fusion_of_a_users_own() -> None:
    proto = model(
        [
            node("Relu", ["x"], ["r"], "r"),
            node("Add", ["r", "r"], ["s"], "s"),
            node("Neg", ["s"], ["y"], "n"),
        ],
        [tensor("x", [2, 4])],
        [tensor("y", [2, 4])],
    )
    wanted = run(proto)
    assert Doubled(ONNXModel(proto)).apply()
    assert [n.op_type for n in proto.graph.node] == ["Relu", "Mul", "Neg"]
    np.testing.assert_array_equal(run(proto), wanted)


@pytest.fixture
def base() -> Fusion:
    """``y = (c · r) + r`` with ``r = relu(x)``."""
    proto = model(
        [
            node("Relu", ["x"], ["r"], "r0"),
            node("Mul", ["c", "r"], ["m"], "m0"),
            node("Add", ["m", "r"], ["y"], "a0"),
        ],
        [tensor("x", [2, "n"])],
        [tensor("y", [2, "n"])],
        {"c": F32(3)},
    )
    return Fusion(ONNXModel(proto), "A", "B")


def test_constants_attributes_and_shapes(base: Fusion) -> None:
    relu, mul, _ = base.model.nodes()
    assert base.get_constant_input(mul) == (0, 3)
    assert base.get_constant_input(relu) == (None, None)
    assert (base.find_constant_input(mul, 3.0), base.find_constant_input(mul, 2.0)) == (0, -1)
    assert base.has_constant_input(mul, 3.0000001)
    assert base.is_constant_with_specified_rank("c", 0)
    assert not base.is_constant_with_specified_rank("r", 0)
    assert base.tensor_shape_to_list(base.model.get_tensor_type("x")) == [2, "n"]
    assert base.input_index("r", mul) == 1
    assert base.input_index("y", mul) == -1
    assert base.get_node_attribute(onnx.helper.make_node("X", [], [], to=3), "to") == 3
    assert base.get_node_attribute(relu, "to") is None
    assert [base.create_unique_node_name() for _ in range(2)] == ["A_fused_B_0", "A_fused_B_1"]


def test_parents_and_children(base: Fusion) -> None:
    relu, mul, add = base.model.nodes()
    makers, readers = base.model.output_name_to_node(), base.model.input_name_to_nodes()
    assert base.match_first_parent(add, "Mul", makers) == (mul, 0)
    assert base.match_first_parent(add, "Mul", makers, exclude=[mul]) == (None, None)
    assert base.match_parent(add, "Relu", None, makers) is relu
    assert base.match_parent(add, "Relu", 0, makers) is None
    places: list[int] = []
    assert base.match_parent_path(add, ["Mul", "Relu"], None, makers, places) == [mul, relu]
    assert places == [0, 1]
    assert base.match_parent_path(add, ["Mul", "Erf"], [0, 1], makers) is None
    paths: Any = [(["Erf"], [0]), (["Mul", "Relu"], [0, None])]
    assert base.match_parent_paths(add, paths, makers) == (1, [mul, relu], [1])
    assert base.match_parent_paths(add, paths[:1], makers) == (-1, None, None)
    assert base.find_first_child_by_type(relu, "Add", readers, recursive=False) is add
    assert base.find_first_child_by_type(relu, "Erf", readers) is None
    with pytest.raises(ValueError, match="as many places"):
        base.match_parent_path(add, ["Mul"], [0, 1], makers)
    with pytest.raises(NotImplementedError, match="write its method fuse"):
        base.fuse(add, readers, makers)


def test_nodes_are_safe_to_fuse_when_nobody_else_reads_them(base: Fusion) -> None:
    relu, mul, add = base.model.nodes()
    maps = base.model.input_name_to_nodes(), base.model.output_name_to_node()
    assert base.is_safe_to_fuse_nodes([mul, add], ["y"], *maps)
    assert base.is_safe_to_fuse_nodes([relu], ["r"], *maps)
    assert not base.is_safe_to_fuse_nodes([relu, mul], ["m"], *maps)
    assert not base.is_safe_to_fuse_nodes([mul, add], [], *maps)
