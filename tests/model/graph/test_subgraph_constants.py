"""Constants of bodies: they go where they alone are read, and the model computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import graph, model, node, tensor

from octavo.model.files import io
from octavo.model.graph import query, subgraph_constants
from octavo.model.runtime.session import Session

RNG = np.random.default_rng(0)
W = {name: RNG.normal(size=(4, 4)).astype(np.float32) for name in ("own", "shared", "deep")}
Q = RNG.integers(-127, 127, size=(4, 4)).astype(np.int8)
BOOL, INT64, FLOAT = onnx.TensorProto.BOOL, onnx.TensorProto.INT64, onnx.TensorProto.FLOAT


def branches() -> onnx.ModelProto:
    """A weight of one branch, one of both, and one of an If inside; and a stored one."""
    out = [tensor("z", [2, 4])]
    deep = [
        graph([node("MatMul", ["x", "deep"], ["z"], "deep_yes")], [], out, name="a"),
        graph([node("Identity", ["x"], ["z"], "deep_no")], [], out, name="b"),
    ]
    then = [
        node("MatMul", ["x", "own"], ["t"], "first"),
        node("MatMul", ["t", "shared"], ["u"], "second"),
        node("MatMul", ["u", "restored"], ["v"], "third"),
        node("If", ["flag"], ["d"], "inner", then_branch=deep[0], else_branch=deep[1]),
        node("Add", ["v", "d"], ["z"], "sum"),
    ]
    other = [node("MatMul", ["x", "shared"], ["z"], "only")]
    nodes = [
        node("Cast", ["integers"], ["wide"], "cast", to=FLOAT),
        node("Mul", ["wide", "scale"], ["restored"], "mul"),
        node(
            "If",
            ["flag"],
            ["y"],
            "if",
            then_branch=graph(then, [], out, name="then"),
            else_branch=graph(other, [], out, name="else"),
        ),
    ]
    inputs = [tensor("x", [2, 4]), tensor("flag", [], BOOL)]
    arrays = {**W, "integers": Q, "scale": np.float32(0.1)}
    return model(nodes, inputs, [tensor("y", [2, 4])], arrays)


def loop() -> onnx.ModelProto:
    """``x ← x · (restored)``, three times."""
    body = graph(
        [node("MatMul", ["s", "restored"], ["n"], "step"), node("Identity", ["go"], ["on"], "keep")],
        [tensor("i", [], INT64), tensor("go", [], BOOL), tensor("s", [2, 4])],
        [tensor("on", [], BOOL), tensor("n", [2, 4])],
        name="body",
    )
    nodes = [
        node("Cast", ["integers"], ["wide"], "cast", to=FLOAT),
        node("Mul", ["wide", "scale"], ["restored"], "mul"),
        node("Loop", ["count", "", "x"], ["y"], "loop", body=body),
    ]
    arrays = {"integers": Q, "scale": np.float32(0.01), "count": np.int64(3)}
    return model(nodes, [tensor("x", [2, 4])], [tensor("y", [2, 4])], arrays)


def held(model: ir.Model) -> dict[str, list[str]]:
    """The names of nodes and of constants of each graph."""
    return {
        part.name or "": sorted([*part.initializers, *(one.name or "" for one in part)])
        for part in query.graphs(model)
    }


def test_constants_go_into_the_innermost_graph_that_holds_their_readers() -> None:
    found = io.load(branches())
    assert subgraph_constants.sink(found) == 6
    assert held(found) == {
        "graph": ["if", "shared"],
        "then": ["cast", "first", "inner", "integers", "mul", "own", "scale", "second", "sum", "third"],
        "a": ["deep", "deep_yes"],
        "b": ["deep_no"],
        "else": ["only"],
    }


@pytest.mark.parametrize("flag", [True, False])
def test_the_model_computes_the_same(flag: bool) -> None:
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    found = io.load(branches())
    subgraph_constants.sink(found)
    restored = Q.astype(np.float64) * 0.1
    wanted = x @ W["own"].astype(np.float64) @ W["shared"] @ restored + x @ W["deep"]
    wanted = wanted if flag else x @ W["shared"].astype(np.float64)
    for again in (found, io.load(io.to_proto(found))):
        answer = Session.open(again).run({"x": x, "flag": np.array(flag)})["y"]
        np.testing.assert_allclose(answer, wanted, rtol=1e-4, atol=1e-4)


def test_what_has_been_moved_stays_there() -> None:
    found = io.load(branches())
    subgraph_constants.sink(found)
    assert subgraph_constants.sink(found) == 0


def test_a_loop_does_not_get_what_it_would_compute_again() -> None:
    found = io.load(loop())
    assert subgraph_constants.sink(found) == 0
    x = RNG.normal(size=(2, 4)).astype(np.float32)
    step = Q.astype(np.float64) * np.float32(0.01)
    answer = Session.open(found).run({"x": x})["y"]
    np.testing.assert_allclose(answer, x @ step @ step @ step, rtol=1e-4, atol=1e-4)


def test_no_more_goes_into_bodies_than_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subgraph_constants, "MAX_BYTES", 20)  # integers and their scale, and no float weight
    found = io.load(branches())
    subgraph_constants.sink(found)
    assert held(found)["graph"] == ["deep", "if", "own", "shared"]


def test_old_models_whose_constants_are_inputs_are_left_alone() -> None:
    found = io.load(branches())
    found.ir_version = 3
    assert subgraph_constants.sink(found) == 0
