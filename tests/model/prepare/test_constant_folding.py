"""Constants computed, and nodes without effect removed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import graph, model, node, tensor
from onnx import TensorProto

from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import constant_folding, shapes

from .helpers import before_and_after, ops

rng = np.random.default_rng(0)


def fold(m: Any) -> None:
    shapes.infer(m)
    constant_folding.remove_no_ops(m)
    constant_folding.fold(m)


def test_what_depends_on_constants_alone_is_computed() -> None:
    nodes = [
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("Mul", ["t", "two"], ["d"]),
        node("MatMul", ["x", "d"], ["y"]),
    ]
    arrays = {"w": rng.standard_normal((5, 3)).astype(np.float32), "two": np.float32(2)}
    found = before_and_after(model(nodes, [tensor("x", [4, 3])], [tensor("y", None)], arrays), fold)
    assert ops(found) == ["MatMul"]
    assert "d" in found.graph.initializers


def test_shape_arithmetic_of_static_shapes_is_computed() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["g"]),
        node("Unsqueeze", ["g", "zero1"], ["u"]),
        node("Concat", ["u", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    arrays = {"zero": np.int64(0), "zero1": np.int64([0]), "rest": np.int64([-1])}
    found = before_and_after(model(nodes, [tensor("x", [4, 3, 2])], [tensor("y", None)], arrays), fold)
    assert ops(found) == ["Reshape"]
    open_shape = model(nodes, [tensor("x", ["n", 3, 2])], [tensor("y", None)], arrays)
    assert "Shape" in ops(before_and_after(open_shape, fold))


def test_quantization_and_chance_stay() -> None:
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"]),
        node("Mul", ["w", "s"], ["v"]),
        node("Add", ["x", "v"], ["y"]),
    ]
    arrays = {"q": np.int8([1, 2, 3]), "s": np.float32(0.5)}
    found = before_and_after(model(nodes, [tensor("x", [3])], [tensor("y", None)], arrays), fold)
    assert ops(found) == ["DequantizeLinear", "Mul", "Add"]
    random = model(
        [node("RandomNormalLike", ["k"], ["r"], dtype=1), node("Add", ["x", "r"], ["y"])],
        [tensor("x", [3])],
        [tensor("y", None)],
        {"k": np.float32([1, 2, 3])},
    )
    loaded = io.load(random)
    fold(loaded)
    assert ops(loaded) == ["RandomNormalLike", "Add"]


@pytest.mark.parametrize(
    ("op", "arrays"),
    [
        ("ConstantOfShape", {"a": np.int64([1 << 12, 1 << 12])}),
        ("Expand", {"a": np.float32([[1]]), "b": np.int64([1 << 12, 1 << 12])}),
        ("Tile", {"a": np.ones((8, 8), np.float32), "b": np.int64([1 << 9, 1 << 9])}),
        ("Range", {"a": np.int64(0), "b": np.int64(1 << 24), "c": np.int64(1)}),
    ],
)
def test_results_that_outgrow_what_they_are_made_from_stay(op: str, arrays: dict[str, np.ndarray]) -> None:
    nodes = [node(op, list(arrays), ["big"]), node("Shape", ["big"], ["s"]), node("Add", ["x", "s"], ["y"])]
    proto = model(
        nodes, [tensor("x", [1], TensorProto.INT64)], [tensor("y", None, TensorProto.INT64)], arrays
    )
    found = io.load(proto)
    normalize(found)
    fold(found)
    assert all(query.constant(v).nbytes < 1 << 20 for v in found.graph.initializers.values())  # type: ignore[union-attr]


def test_a_large_weight_with_another_reader_is_not_stored_twice() -> None:
    arrays = {"w": rng.standard_normal((1000, 300)).astype(np.float32)}
    nodes = [
        node("Gather", ["w", "ids"], ["e"]),
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["e", "t"], ["y"]),
    ]
    proto = model(nodes, [tensor("ids", [2], TensorProto.INT64)], [tensor("y", None)], arrays)
    assert "Transpose" in ops(before_and_after(proto, fold))
    alone = model(nodes[1:], [tensor("e", [2, 300])], [tensor("y", None)], arrays)
    assert ops(before_and_after(alone, fold)) == ["MatMul"]


def test_very_large_weights_are_transposed_when_read() -> None:
    arrays = {"w": rng.standard_normal((2500, 2000)).astype(np.float32)}
    nodes = [node("Transpose", ["w"], ["t"]), node("MatMul", ["x", "t"], ["y"])]
    proto = model(nodes, [tensor("x", [2, 2000])], [tensor("y", None)], arrays)
    found = before_and_after(proto, fold, rtol=1e-4, atol=1e-3)
    assert ops(found) == ["MatMul"]
    assert query.shape(found.graph.initializers["t"]) == (2000, 2500)


def test_widened_half_precision_weights_stay_and_are_noted() -> None:
    arrays = {"w": rng.standard_normal((64, 64)).astype(np.float16)}
    nodes = [node("Cast", ["w"], ["c"], to=TensorProto.FLOAT), node("MatMul", ["x", "c"], ["y"])]
    found = io.load(model(nodes, [tensor("x", [2, 64])], [tensor("y", None)], arrays))
    shapes.infer(found)
    count, notes, _ = constant_folding.fold(found)
    assert count == 0
    assert "half precision" in notes[0]


@pytest.mark.parametrize("cond", [True, False])
def test_constants_in_branches_are_computed(cond: bool) -> None:
    then = graph(
        [node("Add", ["k", "k"], ["two"]), node("Mul", ["x", "two"], ["t"])],
        [],
        [tensor("t", None)],
        {"k": np.float32([3])},
    )
    other = graph([node("Neg", ["outer"], ["e"])], [], [tensor("e", None)])
    nodes = [node("If", ["cond"], ["y"], then_branch=then, else_branch=other)]
    proto = model(
        nodes,
        [tensor("x", [1]), tensor("cond", [], TensorProto.BOOL)],
        [tensor("y", None)],
        {"outer": np.float32([5])},
    )
    found = before_and_after(proto, fold, {"x": np.float32([2]), "cond": np.array(cond)})
    assert [n.op_type for n in query.nodes(found)] == ["If", "Neg", "Mul"]


def test_a_computed_output_keeps_its_name() -> None:
    nodes = [node("Add", ["a", "a"], ["k"]), node("Relu", ["x"], ["y"])]
    proto = model(nodes, [tensor("x", [1])], [tensor("k", None), tensor("y", None)], {"a": np.float32([1])})
    found = before_and_after(proto, fold)
    assert ops(found) == ["Relu"]
    assert [v.name for v in found.graph.outputs] == ["k", "y"]


def test_a_part_that_the_runtime_can_not_compute_is_left_with_a_note() -> None:
    nodes = [node("Foo", ["a"], ["k"]), node("Det", ["b"], ["d"]), node("Add", ["k", "d"], ["y"])]
    proto = model(
        nodes, [tensor("x", [1])], [tensor("y", [])], {"a": np.float32([1]), "b": np.eye(2, dtype=np.float16)}
    )
    found = io.load(proto)
    found.graph[0].outputs[0].type = found.graph.inputs[0].type
    found.graph[0].outputs[0].shape = found.graph.inputs[0].shape
    normalize(found)
    count, notes, _ = constant_folding.fold(found)
    assert count == 0
    assert "left as they are" in notes[0]


def test_nodes_without_effect_go() -> None:
    nodes = [
        node("Identity", ["x"], ["a"], "i1"),
        node("Dropout", ["a"], ["b", "mask"], "d1"),
        node("Cast", ["b"], ["c"], "c1", to=TensorProto.FLOAT),
        node("Relu", ["c"], ["r"], "relu"),
        node("Identity", ["r"], ["y"], "i2"),
    ]
    found = before_and_after(model(nodes, [tensor("x", [3])], [tensor("y", [3])]), fold)
    assert [n.name for n in found.graph] == ["relu"]
    assert found.graph[0].outputs[0].name == "y"


def test_nodes_that_only_look_without_effect_stay() -> None:
    nodes = [
        node("Identity", ["x"], ["copy"], "i1"),
        node("Relu", ["x"], ["r"], "relu"),
        node("Identity", ["r"], ["again"], "i2"),
        node("Cast", ["r"], ["c"], "c1", to=TensorProto.DOUBLE),
        node("Dropout", ["r", "ratio", "training"], ["d"], "d1"),
    ]
    proto = model(
        nodes,
        [tensor("x", [3]), tensor("training", [], TensorProto.BOOL)],
        [
            tensor("copy", [3]),
            tensor("r", [3]),
            tensor("again", [3]),
            tensor("c", [3], TensorProto.DOUBLE),
            tensor("d", [3]),
        ],
        {"ratio": np.float32(0)},
    )
    found = before_and_after(proto, fold, {"x": np.float32([1, 2, 3]), "training": np.array(False)})
    assert [n.name for n in found.graph] == ["i1", "relu", "i2", "c1", "d1"]


def test_a_branch_that_returns_an_outer_value_keeps_its_identity() -> None:
    then = graph([node("Identity", ["x"], ["t"])], [], [tensor("t", None)])
    other = graph([node("Neg", ["x"], ["n"]), node("Identity", ["n"], ["e"])], [], [tensor("e", None)])
    nodes = [node("If", ["cond"], ["y"], then_branch=then, else_branch=other)]
    proto = model(nodes, [tensor("x", [1]), tensor("cond", [], TensorProto.BOOL)], [tensor("y", None)])
    for cond in (True, False):
        found = before_and_after(proto, fold, {"x": np.float32([2]), "cond": np.array(cond)})
        assert [n.op_type for n in query.nodes(found)] == ["If", "Neg", "Identity"]


def test_large_weight_is_folded_when_all_its_consumers_are() -> None:
    nodes = [
        node("Slice", ["w", "zero", "half", "zero"], ["a"]),
        node("Slice", ["w", "half", "end", "zero"], ["b"]),
        node("Concat", ["b", "a"], ["v"], axis=0),
        node("MatMul", ["x", "v"], ["y"]),
    ]
    arrays = {"w": rng.standard_normal((600, 512)).astype(np.float32), "zero": np.int64([0]),
              "half": np.int64([300]), "end": np.int64([600])}  # fmt: skip
    found = before_and_after(model(nodes, [tensor("x", [2, 600])], [tensor("y", None)], arrays), fold)
    assert ops(found) == ["MatMul"]
    kept = model(
        [*nodes, node("MatMul", ["z", "w"], ["u"])], [tensor("x", [2, 600]), tensor("z", [2, 600])],
        [tensor("y", None), tensor("u", None)], arrays,
    )  # fmt: skip
    assert ops(before_and_after(kept, fold)).count("Slice") == 2


def test_copies_of_a_large_weight_beyond_the_budget_are_not_made() -> None:
    count = 70
    nodes = [node("Transpose", ["w"], [f"t{i}"], perm=[1, 0]) for i in range(count)]
    nodes += [node("MatMul", ["x", f"t{i}"], [f"y{i}"]) for i in range(count)]
    arrays = {"w": np.ones((512, 512), np.float32)}
    outputs = [tensor(f"y{i}", None) for i in range(count)]
    m = io.load(model(nodes, [tensor("x", [1, 512])], outputs, arrays))
    normalize(m)
    fold(m)
    assert sum(value.const_value.nbytes for value in m.graph.initializers.values()) == 1 << 20


@pytest.mark.parametrize(("width", "is_folded"), [(64, False), (4096, True)])
def test_tables_are_computed_only_where_they_are_small_beside_the_model(width: int, is_folded: bool) -> None:
    arrays = {
        "rows": np.arange(256, dtype=np.float32).reshape(256, 1),
        "columns": np.arange(256, dtype=np.float32).reshape(1, 256) / 256,
        "w": rng.standard_normal((256, width)).astype(np.float32),
    }
    nodes = [
        node("Mul", ["rows", "columns"], ["angles"]),
        node("Cos", ["angles"], ["table"]),
        node("MatMul", ["x", "table"], ["m"]),
        node("MatMul", ["m", "w"], ["y"]),
    ]
    proto = model(nodes, [tensor("x", [2, 256])], [tensor("y", None)], arrays)
    found = before_and_after(proto, fold, rtol=1e-4, atol=1e-2)
    assert ops(found) == (["MatMul"] * 2 if is_folded else ["Mul", "Cos", "MatMul", "MatMul"])
