"""The short way from protobuf to a model gives what onnx-ir's own reader gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from octavo.model.files import io
from octavo.model.files.building import build
from octavo.model.graph.normalize import normalize

FLOAT = TensorProto.FLOAT


def info(name: str, shape: list[int | str | None] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def constant(name: str, content: np.ndarray) -> onnx.NodeProto:
    return helper.make_node(
        "Constant", [], [name], name=f"{name}_node", value=numpy_helper.from_array(content)
    )


def model_of(graph: onnx.GraphProto) -> onnx.ModelProto:
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    proto.producer_version, proto.doc_string, proto.model_version = "1", "what it is", 3
    helper.set_model_props(proto, {"author": "somebody"})
    return proto


def plain() -> onnx.ModelProto:
    nodes = [
        constant("k", np.ones(3, np.float32)),
        helper.make_node("Clip", ["x", "", "top"], ["c"], name="clip", doc_string="a clamp"),
        helper.make_node("Add", ["c", "k"], ["a"]),
        helper.make_node("Cast", ["a"], ["b"], to=FLOAT),
        helper.make_node("Selu", ["b"], ["s"], alpha=1.5),
        helper.make_node("Transpose", ["s"], ["t"], perm=[1, 0]),
        helper.make_node("Gelu", ["t"], ["y"], domain="com.microsoft"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", ["rows", 3]), info("top", [])],
        [info("y", [None, "columns"])],
        [numpy_helper.from_array(np.float32(6.0).reshape(()), "top")],
        doc_string="a graph",
        value_info=[info("a", ["rows", 3]), info("b")],
    )
    graph.value_info[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    graph.value_info[0].doc_string = "a sum"
    return model_of(graph)


def nested() -> onnx.ModelProto:
    then = helper.make_graph(
        [constant("k", np.ones(2, np.float32)), helper.make_node("Add", ["x", "k"], ["t"])],
        "then",
        [],
        [info("t", [2])],
    )
    other = helper.make_graph([constant("e", np.zeros(2, np.float32))], "else", [], [info("e", [2])])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    return model_of(helper.make_graph([choice], "g", [info("x", [2]), flag], [info("y", [2])]))


def annotated() -> onnx.ModelProto:
    proto = plain()
    proto.graph.quantization_annotation.add(tensor_name="a")
    return proto


def with_function() -> onnx.ModelProto:
    proto = plain()
    body = [helper.make_node("Relu", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("own", "F", ["x"], ["y"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


def with_text() -> onnx.ModelProto:
    proto = plain()
    proto.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [1], [b"word"]))
    return proto


@pytest.mark.parametrize("make", [plain, nested, annotated, with_function, with_text])
def test_the_short_way_reads_what_onnx_ir_reads(make: Callable[[], onnx.ModelProto]) -> None:
    proto = make()
    assert ir.to_proto(build(proto)) == ir.to_proto(ir.from_proto(proto))


@pytest.mark.parametrize("make", [plain, nested])
def test_gathered_constants_make_no_difference_after_normalizing(make: Callable[[], onnx.ModelProto]) -> None:
    proto = make()
    early, late = io.load(proto, lift_constants=True), io.load(proto)
    normalize(early)
    normalize(late)
    assert io.to_bytes(early) == io.to_bytes(late)


def test_constants_become_initializers_when_gathered() -> None:
    model = io.load(plain(), lift_constants=True)
    assert "Constant" not in {node.op_type for node in model.graph}
    assert list(model.graph.initializers) == ["top", "k"]


def test_gathering_leaves_the_callers_model_alone() -> None:
    proto = nested()
    before = proto.SerializeToString()
    normalize(io.load(proto, lift_constants=True))
    assert proto.SerializeToString() == before


def test_a_name_that_nothing_defines_is_left_to_onnx_ir() -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["lost"], ["y"])], "g", [], [info("y")])
    assert [value.name for node in build(model_of(graph)).graph for value in node.inputs if value] == ["lost"]
