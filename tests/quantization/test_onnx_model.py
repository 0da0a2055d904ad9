"""``ONNXModel``: each method once, on a model that runs before and after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import chain, graph, model, node, tensor, two_branches
from onnx import numpy_helper

from octavo.model.runtime.session import Session
from octavo.quantization.onnx_model import ONNXModel

F32 = np.float32


def sample(**attributes: object) -> onnx.ModelProto:
    """Constant, Mul, Gemm, Relu, an unused constant, an initializer that is an input, one that is dead."""
    rng = np.random.default_rng(0)
    two = numpy_helper.from_array(np.array([2.0], F32))
    return model(
        [
            node("Constant", [], ["k"], "c0", value=two),
            node("Mul", ["x", "k"], ["m"], "Mul_3"),
            node("Gemm", ["m", "w", "b"], ["g"], "Gemm_0", **attributes),
            node("Relu", ["g"], ["y"], "Mul_x"),
            node("Constant", [], ["unused"], "c1", value=two),
        ],
        [tensor("x", [2, 3]), tensor("w", [4, 3])],
        [tensor("y", [2, 4])],
        {
            "w": rng.standard_normal((4, 3)).astype(F32),
            "b": rng.standard_normal(4).astype(F32),
            "dead": np.ones(1, F32),
        },
    )


def run(proto: onnx.ModelProto) -> np.ndarray:
    feeds = {"x": np.arange(6, dtype=F32).reshape(2, 3)}
    opened = Session.open(proto.SerializeToString())
    weights = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    return opened.run({s.name: feeds.get(s.name, weights.get(s.name)) for s in opened.inputs})["y"]  # type: ignore[misc]


@pytest.fixture
def found() -> ONNXModel:
    return ONNXModel(sample(transB=1))


def test_parts_of_the_model(found: ONNXModel) -> None:
    assert [n.name for n in found.nodes()] == ["c0", "Mul_3", "Gemm_0", "Mul_x", "c1"]
    assert [t.name for t in found.initializer()] == ["w", "b", "dead"]
    assert found.graph() is found.model.graph
    assert found.ir_version() == 8
    found.set_opset_import("com.microsoft", 1)
    found.set_opset_import("", 18)
    assert [(e.domain, e.version) for e in found.opset_import()] == [("", 18), ("com.microsoft", 1)]


def test_values_types_and_constants(found: ONNXModel) -> None:
    assert found.get_constant_value("k") == 2
    assert found.get_constant_value("b").shape == (4,)  # type: ignore[union-attr]
    assert found.get_constant_value("m") is None
    assert found.get_tensor_type("x").elem_type == onnx.TensorProto.FLOAT
    assert found.get_tensor_type("m") is None
    assert found.get_initializer_name_set() == {"w", "b", "dead"}
    assert found.get_non_initializer_inputs() == {"x"}
    assert found.find_graph_input("x").name == "x"  # type: ignore[union-attr]
    assert found.find_graph_output("x") is None
    assert (found.is_graph_input("x"), found.is_graph_output("y"), found.is_graph_output("g")) == (
        True,
        True,
        False,
    )


def test_neighbours_with_and_without_given_maps(found: ONNXModel) -> None:
    nodes = {n.name: n for n in found.nodes()}
    for maps in ((None, None), (found.input_name_to_nodes(), found.output_name_to_node())):
        assert [n.name for n in found.get_children(nodes["Mul_3"], maps[0])] == ["Gemm_0"]
        assert [n.name for n in found.get_parents(nodes["Gemm_0"], maps[1])] == ["Mul_3"]
        assert found.get_parent(nodes["Gemm_0"], 0, maps[1]) is nodes["Mul_3"]
        assert found.get_parent(nodes["Gemm_0"], 1, maps[1]) is None
        assert found.get_parent(nodes["Gemm_0"], 9, maps[1]) is None
    assert {k: [n.name for n in v] for k, v in found.input_name_to_nodes().items()}["w"] == ["Gemm_0"]


def test_nodes_are_found_by_name_number_and_initializer(found: ONNXModel) -> None:
    new = node("Relu", ["y"], ["z"], "new")
    assert found.find_node_by_name("Mul_3", [], found.graph()).op_type == "Mul"  # type: ignore[union-attr]
    assert found.find_node_by_name("new", [new], found.graph()) is new
    assert found.find_node_by_name("none", [], found.graph()) is None
    assert found.get_largest_node_name_suffix("Mul_") == 3
    assert found.get_largest_node_name_suffix("Add_") == -1
    found.add_initializer(numpy_helper.from_array(np.ones(1, F32), "w12"))
    assert found.get_largest_initializer_name_suffix("w") == 12
    weight = found.get_initializer("w")
    assert weight is not None
    assert [n.name for n in found.find_nodes_by_initializer(found.graph(), weight)] == ["Gemm_0"]


def test_tensors_are_renamed_everywhere_or_at_some_nodes(found: ONNXModel) -> None:
    wanted = run(found.model)
    found.replace_input_of_all_nodes("m", "q")
    found.replace_output_of_all_nodes("m", "q")
    np.testing.assert_array_equal(run(found.model), wanted)
    found.replace_input_of_nodes("q", "r", {"Gemm_0", "other"})
    found.replace_output_of_nodes("q", "r", {"Mul_3"})
    np.testing.assert_array_equal(run(found.model), wanted)
    found.replace_input_of_nodes("r", "s", {"other"})
    gemm = found.find_node_by_name("Gemm_0", [], found.graph())
    assert gemm is not None
    assert gemm.input[0] == "r"
    ONNXModel.replace_node_input(gemm, "r", "t")
    ONNXModel.replace_node_output(gemm, "g", "h")
    assert (gemm.input[0], gemm.output[0]) == ("t", "h")


def test_edits_by_hand_are_noticed(found: ONNXModel) -> None:
    assert found.get_initializer("new") is None
    found.model.graph.initializer.append(numpy_helper.from_array(np.ones(1, F32), "new"))
    assert found.get_initializer("new") is not None
    found.get_children(found.nodes()[1])
    found.model.graph.node[2].input[0] = "by hand"
    found.replace_input_of_all_nodes("by hand", "m")
    assert found.model.graph.node[2].input[0] == "m"
    del found.model.graph.node[1]
    assert found.find_node_by_name("Mul_3", [], found.graph()) is None


def test_nodes_and_initializers_come_and_go(found: ONNXModel) -> None:
    found.add_nodes([node("Neg", ["y"], ["z"], "neg")])
    found.add_node(node("Abs", ["z"], ["a"], "abs"))
    assert [n.name for n in found.get_children(found.find_node_by_name("neg", [], found.graph()))] == ["abs"]  # type: ignore[arg-type]
    found.remove_node(found.find_node_by_name("abs", [], found.graph()))  # type: ignore[arg-type]
    found.remove_nodes([node("Neg", ["y"], ["z"], "neg"), node("Neg", ["y"], ["z"], "not there")])
    assert found.get_parent(node("Abs", ["z"], ["a"]), 0) is None
    found.initializer_extend([numpy_helper.from_array(np.ones(1, F32), "more")])
    assert found.get_initializer("more") is not None
    found.add_initializer(numpy_helper.from_array(np.zeros(1, F32), "more"))
    assert found.get_constant_value("more") == 1
    found.remove_initializer(found.get_initializer("w"))  # type: ignore[arg-type]
    found.remove_initializers([found.get_initializer("more")])  # type: ignore[list-item]
    assert found.get_initializer("w") is None
    assert [v.name for v in found.graph().input] == ["x"]


def test_unused_constants_and_initializers_go(found: ONNXModel) -> None:
    wanted = run(found.model)
    found.remove_unused_constant()
    found.clean_initializers()
    assert [n.name for n in found.nodes()] == ["c0", "Mul_3", "Gemm_0", "Mul_x"]
    assert [t.name for t in found.initializer()] == ["w", "b"]
    np.testing.assert_array_equal(run(found.model), wanted)


@pytest.mark.parametrize("attributes", [{"transB": 1}, {"transB": 1, "alpha": 1.0, "beta": 1.0}])
def test_plain_gemm_becomes_matmul_and_add(attributes: dict[str, float]) -> None:
    proto = sample(**attributes)
    wanted = run(proto)
    found = ONNXModel(proto)
    found.replace_gemm_with_matmul()
    assert [n.name for n in found.nodes()][2:4] == ["Gemm_0_MatMul", "Gemm_0_Add"]
    assert list(found.get_initializer("w").dims) == [3, 4]  # type: ignore[union-attr]
    np.testing.assert_allclose(run(found.model), wanted, rtol=1e-5)


def test_gemm_with_factors_stays() -> None:
    found = ONNXModel(sample(transB=1, alpha=0.5))
    found.replace_gemm_with_matmul()
    assert "Gemm" in {n.op_type for n in found.nodes()}


def test_shared_and_computed_weights_of_a_gemm_are_transposed_beside() -> None:
    rng = np.random.default_rng(0)
    proto = model(
        [
            node("Gemm", ["x", "w"], ["a"], "one", transB=1),
            node("Gemm", ["x", "w"], ["b"], "two", transB=1),
            node("Neg", ["w"], ["n"], "neg"),
            node("Gemm", ["x", "n"], ["c"], "three", transB=1),
            node("Sum", ["a", "b", "c"], ["y"], "sum"),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 4])],
        {"w": rng.standard_normal((4, 3)).astype(F32)},
    )
    wanted = run(proto)
    ONNXModel(proto).replace_gemm_with_matmul()
    assert {n.op_type for n in proto.graph.node} == {"MatMul", "Neg", "Sum", "Transpose"}
    np.testing.assert_allclose(run(proto), wanted, rtol=1e-5)


def test_nodes_are_sorted_behind_what_their_subgraphs_read() -> None:
    proto = two_branches()
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in reversed(proto.graph.node)]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    ONNXModel(proto).topological_sort()
    assert [n.op_type for n in proto.graph.node] == ["Relu", "If"]


def test_nodes_with_subgraphs_keep_their_domain_and_unused_weights_inside_go() -> None:
    body = graph(
        [node("Add", ["h", "c"], ["out"], "a")], [], [tensor("out", None)], {"c": F32([1]), "dead": F32([2])}
    )
    proto = model(
        [
            node("Relu", ["x"], ["h"], "r"),
            node("BeamSearch", ["h", "used"], ["y"], "beam", domain="com.microsoft", decoder=body),
        ],
        [tensor("x", [1])],
        [tensor("y", [1])],
        {"used": F32([1]), "dead": F32([2])},
        domains={"com.microsoft": 1},
    )
    ONNXModel(proto).clean_initializers()
    beam = proto.graph.node[1]
    assert (beam.op_type, beam.domain) == ("BeamSearch", "com.microsoft")
    assert [t.name for t in proto.graph.initializer] == ["used"]
    assert [t.name for t in beam.attribute[0].g.initializer] == ["c"]


def test_weight_read_only_inside_a_subgraph_is_kept() -> None:
    body = graph([node("Add", ["x", "w"], ["out"])], [], [tensor("out", None)])
    proto = model(
        [node("If", ["c"], ["y"], then_branch=body, else_branch=body)],
        [tensor("x", [1]), tensor("c", [], onnx.TensorProto.BOOL)],
        [tensor("y", [1])],
        {"w": F32([1])},
    )
    ONNXModel(proto).clean_initializers()
    assert [t.name for t in proto.graph.initializer] == ["w"]


@pytest.mark.parametrize("external", [False, True])
def test_saved_model_runs_and_is_the_same_size_each_time(tmp_path: Path, external: bool) -> None:
    proto = model(
        [node("Relu", ["m"], ["y"], "r"), node("MatMul", ["x", "w"], ["m"], "mm")],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 400])],
        {"w": np.ones((3, 400), F32)},
    )
    sizes = []
    for _ in range(2):
        ONNXModel(proto).save_model_to_file(tmp_path / "m.onnx", external)
        sizes.append([p.stat().st_size for p in sorted(tmp_path.iterdir())])
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) == 1 + external
    out = Session.open(tmp_path / "m.onnx").run({"x": np.ones((2, 3), F32)})["y"]
    assert out.shape == (2, 400)
    assert (out == 3).all()


def test_number_of_lookups_grows_with_the_edits_not_with_their_square() -> None:
    """Counted, not timed: how often nodes are gone through while every tensor of a chain is renamed."""

    class Counted(ONNXModel):
        walks = 0

        def graph(self) -> onnx.GraphProto:
            Counted.walks += 1
            return super().graph()

    proto = chain(200)
    found = Counted(proto)
    for index in range(199):
        found.replace_input_of_all_nodes(f"t{index}", f"q{index}")
        found.add_node(node("Relu", [f"t{index}"], [f"q{index}"], f"r{index}"))
        found.add_initializer(numpy_helper.from_array(np.ones(1, F32), f"new{index}"))
        assert found.get_initializer(f"new{index}") is not None
    assert Counted.walks < 20
    found.topological_sort()
    feeds = {"x": np.ones((1, 4), F32)}
    assert Session.open(proto.SerializeToString()).run(feeds)["t199"].shape == (1, 4)
