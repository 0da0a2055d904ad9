"""Branches that are always taken stand where the If stood; those that are decided at run time stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor

import octavo
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.prepare import prepare

from .helpers import before_and_after, ops

X = [tensor("x", ["n", 3])]
FEEDS = {"x": np.float32([[1, -2, 3], [4, 5, -6]])}


def branch(name: str, nodes: list[onnx.NodeProto], outputs: list[str], **arrays: Any) -> onnx.GraphProto:
    return graph(nodes, [], [tensor(output, None) for output in outputs], arrays, name=name)


def by_rank(expected: int, size: int = 3) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    """Asks for the rank of x, as exporters do: the size of its shape."""
    then = branch("then", [node("Mul", ["x", "two"], ["a"])], ["a"], two=np.float32(2))
    other = branch("else", [node("MatMul", ["x", "w"], ["b"])], ["b"], w=np.ones((size, size), np.float32))
    return [
        node("Shape", ["x"], ["shape"]),
        node("Size", ["shape"], ["rank"]),
        node("Equal", ["rank", "wanted"], ["same"]),
        node("If", ["same"], ["y"], then_branch=then, else_branch=other),
    ], {"wanted": np.int64(expected)}


@pytest.mark.parametrize("expected, op", [(2, "Mul"), (3, "MatMul")])
def test_a_question_about_a_rank_is_answered(expected: int, op: str) -> None:
    nodes, arrays = by_rank(expected)
    proto = model(nodes, X, [tensor("y", ["n", 3])], arrays)
    found = before_and_after(proto, prepare, FEEDS)
    assert ops(found) == [op]
    assert ("w" in found.graph.initializers) == (op == "MatMul")


def test_one_dimension_of_an_open_shape_is_enough() -> None:
    then = branch("then", [node("Neg", ["x"], ["a"])], ["a"])
    other = branch("else", [node("Abs", ["x"], ["b"])], ["b"])
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "place"], ["size"]),
        node("Equal", ["size", "three"], ["same"]),
        node("If", ["same"], ["y"], then_branch=then, else_branch=other),
    ]
    three = {"three": np.int64([3])}
    last = model(nodes, X, [tensor("y", ["n", 3])], {**three, "place": np.int64([-1])})
    assert ops(before_and_after(last, prepare, FEEDS)) == ["Neg"]
    first = model(nodes, X, [tensor("y", ["n", 3])], {**three, "place": np.int64([0])})
    assert "If" in ops(before_and_after(first, prepare, FEEDS))


def test_one_answer_leads_to_the_next() -> None:
    """The rank behind the outer If, which the inner one asks for, is known when that is settled."""
    flat = branch("flat", [node("Squeeze", ["x3", "zero"], ["f"])], ["f"], zero=np.int64([0]))
    same = branch("same", [node("Identity", ["x3"], ["s"])], ["s"])
    then = branch("then", [node("Relu", ["t"], ["a"])], ["a"])
    other = branch("else", [node("Sigmoid", ["t"], ["b"])], ["b"])
    nodes = [
        node("Unsqueeze", ["x", "zero_"], ["x3"]),
        node("Shape", ["x3"], ["shape"]),
        node("Size", ["shape"], ["rank"]),
        node("Equal", ["rank", "three"], ["is3"]),
        node("If", ["is3"], ["t"], "outer", then_branch=flat, else_branch=same),
        node("Shape", ["t"], ["shape2"]),
        node("Size", ["shape2"], ["rank2"]),
        node("Equal", ["rank2", "two"], ["is2"]),
        node("If", ["is2"], ["y"], "inner", then_branch=then, else_branch=other),
    ]
    arrays = {"zero_": np.int64([0]), "three": np.int64(3), "two": np.int64(2)}
    found = before_and_after(model(nodes, X, [tensor("y", None)], arrays), prepare, FEEDS)
    assert ops(found) == ["Unsqueeze", "Squeeze", "Relu"]
    (told,) = [change for change in prepare(io.load(model(nodes, X, [tensor("y", None)], arrays))).changes
               if change.pass_name == "branches"]  # fmt: skip
    assert told.count == 2


def test_one_inside_another() -> None:
    inner = [
        branch("in_then", [node("Neg", ["x"], ["p"])], ["p"]),
        branch("in_else", [node("Abs", ["x"], ["q"])], ["q"]),
    ]
    then = branch(
        "then",
        [node("If", ["no"], ["r"], then_branch=inner[0], else_branch=inner[1]), node("Exp", ["r"], ["a"])],
        ["a"],
    )
    other = branch("else", [node("Log", ["x"], ["b"])], ["b"])
    nodes = [node("If", ["yes"], ["y"], then_branch=then, else_branch=other)]
    arrays = {"yes": np.array(True), "no": np.array([False])}
    found = before_and_after(model(nodes, X, [tensor("y", ["n", 3])], arrays), prepare, FEEDS)
    assert ops(found) == ["Abs", "Exp"]


def test_several_results_that_are_one_tensor_or_an_outer_one() -> None:
    then = branch(
        "then",
        [node("Neg", ["x"], ["a"]), node("Identity", ["a"], ["a2"]), node("Identity", ["x"], ["outer"])],
        ["a", "a2", "outer"],
    )
    other = branch(
        "else",
        [node(op, ["x"], [name]) for op, name in (("Abs", "b"), ("Exp", "b2"), ("Sin", "b3"))],
        ["b", "b2", "b3"],
    )
    nodes = [node("If", ["yes"], ["y", "z", "u"], then_branch=then, else_branch=other)]
    outputs = [tensor(name, ["n", 3]) for name in "yzu"]
    before_and_after(model(nodes, X, outputs, {"yes": np.array(True)}), prepare, FEEDS)


def test_a_branch_taken_is_quantized_like_any_other_part() -> None:
    nodes, arrays = by_rank(3, size=64)
    proto = model(nodes, [tensor("x", ["n", 64])], [tensor("y", ["n", 64])], arrays)
    result = octavo.quantize(proto, [{"x": np.ones((2, 64), np.float32)}] * 4, effort="plain")
    assert not any(query.is_op(n, "If") for n in query.nodes(result.model))
    assert [n.op_type for n in result.plan.nodes.values()] == ["MatMul"]


def test_constants_of_the_main_graph_tell_shapes_inside_branches() -> None:
    then = branch("then", [node("Unsqueeze", ["x", "axis"], ["a"])], ["a"], axis=np.int64([1]))
    other = branch("else", [node("Reshape", ["x", "to"], ["b"])], ["b"], to=np.int64([0, 1, 3]))
    nodes = [node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    found = io.load(model(nodes, [*X, tensor("c", [], onnx.TensorProto.BOOL)], [tensor("y", None)]))
    prepare(found)
    inside = [value for n in query.nodes(found) for value in n.outputs if n.graph is not found.graph]
    assert len(inside) == 2
    assert all(query.rank(value) == 3 for value in inside)


@pytest.mark.parametrize("count", [1, 3])
def test_a_branch_of_another_number_of_results_is_left_alone(count: int) -> None:
    then = branch("then", [node("Neg", ["x"], ["a"]), node("Abs", ["x"], ["a2"])], ["a", "a2"])
    other = branch("else", [node("Exp", ["x"], ["b"]), node("Sin", ["x"], ["b2"])], ["b", "b2"])
    names = [f"y{i}" for i in range(count)]
    nodes = [node("If", ["yes"], names, then_branch=then, else_branch=other)]
    found = io.load(model(nodes, X, [tensor(name, ["n", 3]) for name in names], {"yes": np.array(True)}))
    prepare(found)
    assert ops(found) == ["If"]


def test_what_may_be_computed_stays_within_its_budget() -> None:
    """However many rounds branches take: five weights that tiling makes three times as large."""
    arrays: dict[str, Any] = {f"w{i}": np.ones((2048, 2048), np.float32) for i in range(5)}
    arrays["times"] = np.int64([1, 3])
    nodes = [node("Tile", [f"w{i}", "times"], [f"t{i}"]) for i in range(5)]
    nodes += [node("MatMul", [f"x{i}", f"t{i}"], [f"y{i}"]) for i in range(5)]
    inputs = [tensor(f"x{i}", ["n", 2048]) for i in range(5)]
    outputs = [tensor(f"y{i}", ["n", 6144]) for i in range(5)]
    plain = io.load(model(nodes, inputs, outputs, arrays))
    then = branch("then", [node("Neg", ["x"], ["a"])], ["a"])
    other = branch("else", [node("Abs", ["x"], ["b"])], ["b"])
    asks = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    inputs += [*X, tensor("c", [], onnx.TensorProto.BOOL)]
    asked = io.load(model([*nodes, asks], inputs, [*outputs, tensor("y", ["n", 3])], arrays))
    prepare(plain)
    prepare(asked)
    assert ops(plain).count("Tile") == ops(asked).count("Tile") > 0
