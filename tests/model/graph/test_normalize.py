"""The canonical form: what holds after normalize(), and that the model still computes the same."""

from __future__ import annotations

import time

import builders
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import graph, model, node, tensor
from onnx import TensorProto, helper, numpy_helper

from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import meta, query
from octavo.model.graph.normalize import normalize
from octavo.model.runtime.session import Session
from octavo.model.runtime.verification import verify

Feeds = dict[str, np.ndarray]


def normalized(proto: onnx.ModelProto) -> tuple[ir.Model, list[str]]:
    found = io.load(proto)
    notes = normalize(found)
    _check_canonical(found)
    assert normalize(found) == []
    return found, notes


def _check_canonical(found: ir.Model) -> None:
    assert meta.of(found).one_graph == (len(list(found.graphs())) == 1)
    assert not found.functions
    values = [v.name for g in found.graphs() for v in _defined(g)]
    assert len(values) == len(set(values))
    names = [n.name for n in query.nodes(found)]
    assert all(names)
    assert len(names) == len(set(names))
    assert not any(n.op_type == "Constant" for n in query.nodes(found))
    assert all(not g.initializers for g in found.graph.subgraphs())
    assert not any(v.is_initializer() for v in found.graph.inputs)


def _defined(found: ir.Graph) -> list[ir.Value]:
    outputs = [v for n in found for v in n.outputs if v.name]
    return [*found.inputs, *found.initializers.values(), *outputs]


def same(proto: onnx.ModelProto, feeds: Feeds) -> tuple[ir.Model, list[str]]:
    want = Session.open(proto.SerializeToString()).run(feeds)
    found, notes = normalized(proto)
    verify(found, feeds=feeds)
    got = Session.open(io.to_bytes(found)).run(feeds)
    assert list(got) == list(want)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-6, atol=1e-6)
    return found, notes


X = {"x": np.float32([-1, 0.5, 2])}


@pytest.mark.parametrize("cond", [True, False])
def test_names_reused_in_branches_become_unique(cond: bool) -> None:
    found, notes = same(builders.two_branches(), {**X, "cond": np.array(cond)})
    assert "2 Constant nodes turned into initializers" in notes
    assert "2 initializers of subgraphs moved to the main graph" not in notes
    assert any("moved to the main graph" in note for note in notes)
    assert [v.name for v in found.graph.outputs] == ["y"]


@pytest.mark.parametrize(
    ("attribute", "content"),
    [
        ("value_float", 2.0),
        ("value_floats", [2.0]),
        ("value", numpy_helper.from_array(np.float32(2.0))),
        ("value", numpy_helper.from_array(np.float32([[2.0]]))),
    ],
)
def test_every_variant_of_a_constant_becomes_an_initializer(attribute: str, content: object) -> None:
    nodes = [node("Constant", [], ["k"], **{attribute: content}), node("Mul", ["x", "k"], ["y"])]
    found, _ = same(model(nodes, [tensor("x", [3])], [tensor("y", None)]), X)
    assert found.graph.initializers["k"].dtype == ir.DataType.FLOAT


def test_integer_and_string_constants_become_initializers() -> None:
    nodes = [
        node("Constant", [], ["a"], value_int=3),
        node("Constant", [], ["b"], value_ints=[1, 2]),
        node("Constant", [], ["c"], value_string="text"),
        node("Constant", [], ["d"], value_strings=["p", "q"]),
    ]
    outputs = [
        tensor("a", [], TensorProto.INT64),
        tensor("b", [2], TensorProto.INT64),
        tensor("c", [], TensorProto.STRING),
        tensor("d", [2], TensorProto.STRING),
    ]
    found, _ = same_strings(
        model([*nodes, node("Relu", ["x"], ["y"])], [tensor("x", [3])], [*outputs, tensor("y", [3])])
    )
    assert set(found.graph.initializers) == {"a", "b", "c", "d"}


def same_strings(proto: onnx.ModelProto) -> tuple[ir.Model, list[str]]:
    found, notes = normalized(proto)
    got = Session.open(io.to_bytes(found)).run(X)
    assert got["a"] == 3
    assert got["b"].tolist() == [1, 2]
    assert got["c"] == "text"
    assert got["d"].tolist() == ["p", "q"]
    return found, notes


def test_a_branch_that_returns_a_constant_returns_it_through_identity() -> None:
    def branch(value: float) -> onnx.GraphProto:
        return graph([], [], [tensor("c", [1])], {"c": np.float32([value])})

    nodes = [node("If", ["cond"], ["y"], then_branch=branch(1.0), else_branch=branch(2.0))]
    proto = model(nodes, [tensor("cond", [], TensorProto.BOOL)], [tensor("y", [1])])
    for cond in (True, False):
        same(proto, {"cond": np.array(cond)})


def test_a_constant_that_is_an_output_of_the_model_stays_one() -> None:
    nodes = [node("Constant", [], ["k"], value_float=1.5), node("Relu", ["x"], ["y"])]
    found, _ = same(model(nodes, [tensor("x", [3])], [tensor("k", []), tensor("y", [3])]), X)
    assert [v.name for v in found.graph.outputs] == ["k", "y"]


def test_initializers_are_no_longer_inputs() -> None:
    proto = model(
        [node("Add", ["x", "c"], ["y"])],
        [tensor("x", [3]), tensor("c", ["n"])],
        [tensor("y", [3])],
        {"c": np.float32([1, 2, 3])},
    )
    found, notes = same(proto, X)
    assert [v.name for v in found.graph.inputs] == ["x"]
    assert query.shape(found.graph.initializers["c"]) == (3,)
    assert notes == ["1 name made unique", "1 initializer no longer graph input"]


def test_nodes_are_put_in_order() -> None:
    nodes = [node("Relu", ["a"], ["y"], "second"), node("Neg", ["x"], ["a"], "first")]
    found, notes = normalized(model(nodes, [tensor("x", [3])], [tensor("y", [3])]))
    assert [n.name for n in found.graph] == ["first", "second"]
    assert notes == ["nodes put in topological order"]


def test_order_counts_what_a_branch_reads() -> None:
    then = graph([node("Relu", ["late"], ["t"])], [], [tensor("t", None)])
    other = graph([node("Neg", ["late"], ["e"])], [], [tensor("e", None)])
    nodes = [
        node("If", ["cond"], ["y"], "If", then_branch=then, else_branch=other),
        node("Exp", ["x"], ["late"], "Exp"),
    ]
    found, _ = normalized(
        model(nodes, [tensor("x", [3]), tensor("cond", [], TensorProto.BOOL)], [tensor("y", [3])])
    )
    assert [n.name for n in found.graph] == ["Exp", "If"]


def test_a_cycle_is_named() -> None:
    nodes = [
        node("Add", ["x", "c"], ["a"], "one"),
        node("Relu", ["a"], ["b"], "two"),
        node("Neg", ["b"], ["c"], "three"),
        node("Exp", ["c"], ["y"], "after"),
    ]
    with pytest.raises(ModelError, match="cycle through") as caught:
        normalize(io.load(model(nodes, [tensor("x", [3])], [tensor("y", [3])])))
    assert all(name in str(caught.value) for name in ("one", "two", "three"))
    assert "after" not in str(caught.value)


def test_a_missing_input_is_named() -> None:
    proto = model([node("Add", ["x", "ghost"], ["y"], "N")], [tensor("x", [3])], [tensor("y", [3])])
    with pytest.raises(ModelError, match=r"'N' reads 'ghost'"):
        normalize(io.load(proto))


def test_an_outer_scope_is_visible_and_an_inner_one_is_not() -> None:
    branch = graph([node("Relu", ["x"], ["inner"])], [], [tensor("inner", None)])
    nodes = [
        node("If", ["cond"], ["a"], then_branch=branch, else_branch=branch),
        node("Neg", ["inner"], ["y"], "peeks"),
    ]
    proto = model(nodes, [tensor("x", [3]), tensor("cond", [], TensorProto.BOOL)], [tensor("y", [3])])
    with pytest.raises(ModelError, match="peeks"):
        normalize(io.load(proto))


def test_an_output_that_nothing_makes_is_named() -> None:
    proto = model([node("Relu", ["x"], ["a"])], [tensor("x", [3])], [tensor("ghost", [3])])
    with pytest.raises(ModelError, match="ghost"):
        normalize(io.load(proto))


@pytest.mark.parametrize("second", ["t", "x"])
def test_a_tensor_defined_twice_is_a_model_error(second: str) -> None:
    nodes = [node("Relu", ["x"], ["t"]), node("Neg", ["x"], [second]), node("Exp", ["t"], ["y"])]
    with pytest.raises(ModelError, match=second):
        normalize(io.load(model(nodes, [tensor("x", [3])], [tensor("y", [3])])))


def test_nameless_and_equal_node_names_are_made_unique() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Neg", ["b"], ["c"], "same"),
        node("Neg", ["c"], ["y"], "same"),
    ]
    found, _ = normalized(model(nodes, [tensor("x", [3])], [tensor("y", [3])]))
    assert [n.name for n in found.graph] == ["Relu_0", "Relu_1", "same", "same_1"]


def test_the_default_domain_has_one_variant() -> None:
    proto = model([node("Relu", ["x"], ["y"], domain="ai.onnx")], [tensor("x", [3])], [tensor("y", [3])])
    proto.opset_import[0].domain = "ai.onnx"
    found, _ = normalized(proto)
    assert dict(found.opset_imports) == {"": 17}
    assert found.graph[0].domain == ""


def test_unused_nodes_and_weights_go_and_used_ones_stay() -> None:
    branch = graph([node("Neg", ["used_inside"], ["n"])], [], [tensor("n", None)])
    nodes = [
        node("Relu", ["x"], ["used_inside"], "Relu"),
        node("Exp", ["x"], ["d1"], "dead_1"),
        node("Add", ["d1", "w"], ["d2"], "dead_2"),
        node("If", ["cond"], ["dead"], "dead_if", then_branch=branch, else_branch=branch),
        node("If", ["cond"], ["y"], "If", then_branch=branch, else_branch=branch),
    ]
    proto = model(
        nodes,
        [tensor("x", [3]), tensor("cond", [], TensorProto.BOOL)],
        [tensor("y", [3])],
        {"w": np.float32([1])},
    )
    found, notes = same(proto, {**X, "cond": np.array(True)})
    assert [n.name for n in found.graph] == ["Relu", "If"]
    assert "3 unused nodes removed" in notes
    assert "1 unused initializer removed" in notes


def test_a_dead_if_does_not_keep_what_it_reads() -> None:
    branch = graph([node("Neg", ["only_there"], ["n"])], [], [tensor("n", None)])
    nodes = [
        node("Relu", ["x"], ["only_there"], "Relu"),
        node("If", ["cond"], ["dead"], "dead_if", then_branch=branch, else_branch=branch),
        node("Exp", ["x"], ["y"], "Exp"),
    ]
    found, _ = normalized(
        model(nodes, [tensor("x", [3]), tensor("cond", [], TensorProto.BOOL)], [tensor("y", [3])])
    )
    assert [n.name for n in found.graph] == ["Exp"]


def function(
    name: str, nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str]
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs, outputs, nodes, imports)


def test_functions_are_inlined_and_outputs_keep_their_names() -> None:
    twice = function("Twice", [node("Add", ["a", "a"], ["b"])], ["a"], ["b"])
    outer = function(
        "Outer", [node("Twice", ["p"], ["q"], domain="local"), node("Neg", ["q"], ["r"])], ["p"], ["r"]
    )
    nodes = [
        node("Outer", ["x"], ["m"], domain="local"),
        node("Twice", ["m"], ["y"], domain="local"),
        node("Outer", ["x"], ["z"], domain="local"),
    ]
    proto = model(
        nodes,
        [tensor("x", [3])],
        [tensor("y", [3]), tensor("z", [3])],
        domains={"local": 1},
        functions=[twice, outer],
    )
    found, notes = same(proto, X)
    assert [v.name for v in found.graph.outputs] == ["y", "z"]
    assert "inlined" in notes[0]
    assert {n.op_type for n in query.nodes(found)} == {"Add", "Neg"}


def test_function_parameters_defaults_and_passed_through_inputs() -> None:
    body = [
        node("LeakyRelu", ["a"], ["b"]),
        node("Clip", ["b", "low"], ["c"]),
        node("Constant", [], ["k"]),
        node("Mul", ["c", "k"], ["d"]),
    ]
    body[0].attribute.append(
        onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    )
    body[2].attribute.append(
        onnx.AttributeProto(name="value_float", type=onnx.AttributeProto.FLOAT, ref_attr_name="k")
    )
    made = helper.make_function(
        "local",
        "Leaky",
        ["a", "low"],
        ["d", "a", "d"],
        body,
        [helper.make_opsetid("", 17)],
        attributes=["slope"],
        attribute_protos=[helper.make_attribute("k", 2.0)],
    )
    nodes = [
        node("Leaky", ["x"], ["y1", "y2", "y3"], "call", domain="local", slope=0.5),
        node("Leaky", ["x", "zero"], ["z1"], domain="local", k=3.0),
    ]
    outputs = [tensor(name, [3]) for name in ("y1", "y2", "y3", "z1")]
    proto = model(
        nodes, [tensor("x", [3])], outputs, {"zero": np.float32(0)}, domains={"local": 1}, functions=[made]
    )
    found, _ = normalized(proto)
    assert [v.name for v in found.graph.outputs] == ["y1", "y2", "y3", "z1"]
    got = Session.open(io.to_bytes(found)).run(X)
    np.testing.assert_allclose(got["y1"], [-1, 1, 4])
    np.testing.assert_allclose(got["y2"], X["x"])
    np.testing.assert_allclose(got["y3"], got["y1"])
    np.testing.assert_allclose(got["z1"], [0, 1.5, 6])


def test_functions_called_in_branches_and_holding_branches() -> None:
    then = graph([node("Neg", ["a"], ["t"])], [], [tensor("t", None)])
    other = graph([node("Exp", ["a"], ["e"])], [], [tensor("e", None)])
    pick = function(
        "Pick", [node("If", ["c"], ["r"], then_branch=then, else_branch=other)], ["c", "a"], ["r"]
    )
    branch = graph([node("Pick", ["cond", "x"], ["u"], domain="local")], [], [tensor("u", None)])
    nodes = [
        node("If", ["cond"], ["v"], then_branch=branch, else_branch=branch),
        node("Pick", ["cond", "v"], ["y"], domain="local"),
    ]
    proto = model(
        nodes,
        [tensor("x", [3]), tensor("cond", [], TensorProto.BOOL)],
        [tensor("y", None)],
        domains={"local": 1},
        functions=[pick],
    )
    for cond in (True, False):
        same(proto, {**X, "cond": np.array(cond)})


def test_a_function_of_another_opset_is_refused_by_name() -> None:
    made = helper.make_function(
        "local", "Old", ["a"], ["b"], [node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 12)]
    )
    proto = model(
        [node("Old", ["x"], ["y"], domain="local")],
        [tensor("x", [3])],
        [tensor("y", [3])],
        domains={"local": 1},
        functions=[made],
    )
    with pytest.raises(ModelError, match=r"local::Old.*opset 12"):
        normalize(io.load(proto))


def test_thousands_of_calls_take_linear_time() -> None:
    twice = function("Twice", [node("Add", ["a", "a"], ["t"]), node("Relu", ["t"], ["b"])], ["a"], ["b"])
    calls = [node("Twice", ["x" if i == 0 else f"h{i - 1}"], [f"h{i}"], domain="local") for i in range(3000)]
    proto = model(calls, [tensor("x", [3])], [tensor("h2999", [3])], domains={"local": 1}, functions=[twice])
    found = io.load(proto)
    start = time.process_time()
    normalize(found)
    assert time.process_time() - start < 3
    assert len(found.graph) == 6000


def test_functions_that_call_themselves_are_refused() -> None:
    one = function("One", [node("Two", ["a"], ["b"], domain="local")], ["a"], ["b"])
    two = function("Two", [node("One", ["a"], ["b"], domain="local")], ["a"], ["b"])
    proto = model(
        [node("One", ["x"], ["y"], domain="local")],
        [tensor("x", [3])],
        [tensor("y", [3])],
        domains={"local": 1},
        functions=[one, two],
    )
    with pytest.raises(ModelError, match="calls itself"):
        normalize(io.load(proto))


def test_functions_that_unfold_without_end_are_refused_at_once() -> None:
    functions = [function("F0", [node("Relu", ["a"], ["b"])], ["a"], ["b"])]
    for level in range(1, 60):
        body = [
            node(f"F{level - 1}", ["a"], ["t"], domain="local"),
            node(f"F{level - 1}", ["t"], ["b"], domain="local"),
        ]
        functions.append(function(f"F{level}", body, ["a"], ["b"]))
    proto = model(
        [node("F59", ["x"], ["y"], domain="local")],
        [tensor("x", [3])],
        [tensor("y", [3])],
        domains={"local": 1},
        functions=functions,
    )
    start = time.process_time()
    with pytest.raises(ModelError, match="unfold"):
        normalize(io.load(proto))
    assert time.process_time() - start < 5


def test_a_loop_body_keeps_its_meaning() -> None:
    body = graph(
        [
            node("Constant", [], ["one"], value_float=1.0),
            node("Identity", ["go"], ["go_on"]),
            node("Add", ["state", "one"], ["next"], "op"),
            node("Mul", ["next", "x"], ["row"], "op2"),
        ],
        [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("state", None)],
        [tensor("go_on", [], TensorProto.BOOL), tensor("next", None), tensor("row", None)],
    )
    nodes = [
        node("Relu", ["x"], ["state"], "op"),
        node("Loop", ["trips", "", "state"], ["y", "rows"], "op2", body=body),
    ]
    proto = model(
        nodes,
        [tensor("x", [3])],
        [tensor("y", None), tensor("rows", None)],
        {"trips": np.int64(4)},
    )
    same(proto, X)


def test_five_thousand_nodes_take_well_under_a_second() -> None:
    content = builders.chain(5000).SerializeToString()
    start = time.process_time()
    found = io.load(content)
    normalize(found)
    assert time.process_time() - start < 1.0


def test_time_is_linear_when_all_names_clash() -> None:
    nodes = [node("Relu", ["x" if i == 0 else f"t{i - 1}"], [f"t{i}"], "same") for i in range(5000)]
    found = io.load(model(nodes, [tensor("x", [3])], [tensor("t4999", [3])]))
    start = time.process_time()
    normalize(found)
    assert time.process_time() - start < 1.0
