"""Faults that fuzzing brought up in how nodes are told and followed, each as the fact that holds now."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import helper
from quantizing import EVERYWHERE
from runtime_schemas import schemas

import octavo
from octavo.algorithms.layers.layer import layer_of
from octavo.calibration.methods import read
from octavo.calibration.statistics import HistogramState
from octavo.core.qtypes import qtype
from octavo.core.scheme import MSE, Entropy, Method, Percentile, Scheme
from octavo.errors import DataError, ModelError
from octavo.model.files import io
from octavo.model.graph.normalize import normalize
from octavo.model.graph.schema import CONTRIB, LEAST_INPUTS
from octavo.model.prepare import PrepareOptions, prepare
from octavo.model.runtime import session
from octavo.reporting.inspection import inspect

WEIGHT = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
ENDS = [tensor("x", [2, 8])], [tensor("y", [2, 8])]


@pytest.mark.parametrize("op_type", ["Identity", "Transpose"])
@pytest.mark.parametrize("length", [1, 3])
def test_a_cycle_is_refused_when_a_model_is_read(op_type: str, length: int) -> None:
    names = [f"a{i}" for i in range(length)]
    ring = [node(op_type, [names[i - 1]], [names[i]]) for i in range(length)]
    made = model([*ring, node("DequantizeLinear", ["a0", "s"], ["y"])], *ENDS, {"s": np.float32(1)})
    with pytest.raises(ModelError, match="cycle"):
        io.load(made)
    with pytest.raises(ModelError, match="cycle"):
        io.load(made.SerializeToString())


def test_a_cycle_in_a_subgraph_is_refused_when_a_model_is_read() -> None:
    inner = [node("Relu", ["b"], ["a"]), node("Relu", ["a"], ["b"])]
    branches = [helper.make_graph(inner, "g", [], [tensor("a", None)]) for _ in range(2)]
    branch = node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    with pytest.raises(ModelError, match="cycle"):
        io.load(model([branch], *ENDS, {"c": np.bool_(True)}))


@pytest.mark.parametrize("op_type", ["Shape", "Unheard"])
@pytest.mark.parametrize("several", [False, True])
def test_a_graph_in_an_operator_that_takes_none_is_refused(op_type: str, several: bool) -> None:
    inner = helper.make_graph([node("Relu", ["r"], ["i"])], "g", [], [tensor("i", None)])
    carried = {"bodies": [inner]} if several else {"body": inner}
    nodes = [node(op_type, ["x"], ["c"], "odd", **carried), node("Relu", ["c"], ["r"])]
    with pytest.raises(ModelError, match="carries a graph"):
        normalize(io.load(model([*nodes, node("Relu", ["r"], ["y"])], *ENDS)))


def test_nodes_in_any_order_are_read() -> None:
    loaded = io.load(
        model([node("Relu", ["m"], ["y"]), node("MatMul", ["x", "w"], ["m"])], *ENDS, {"w": WEIGHT})
    )
    assert [one.op_type for one in loaded.graph] == ["Relu", "MatMul"]


@pytest.mark.parametrize("alias", ["Identity", "Transpose", "Cast"])
def test_a_node_without_inputs_is_looked_at_with_care(alias: str) -> None:
    nodes = [
        node(alias, [], ["a"]),
        node("DequantizeLinear", ["a", "s"], ["d"]),
        node("Mul", ["a", "d"], ["y"]),
    ]
    assert not inspect(io.load(model(nodes, *ENDS, {"s": np.float32(1)}))).weights


@pytest.mark.parametrize("field", ["domain", "name", "input", "output", "attribute", "import"])
def test_names_in_functions_are_text(field: str) -> None:
    body = [node("Relu", ["aQQ"], ["bQQ"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("importQQ", 1)]
    function = helper.make_function(
        "domainQQ", "nameQQ", ["inputQQ"], ["outputQQ"], body, opsets, ["attributeQQ"]
    )
    made = model([node("Relu", ["x"], ["y"])], *ENDS, functions=[function])
    damaged = made.SerializeToString().replace(f"{field}QQ".encode(), field.encode() + b"\xff\xff")
    with pytest.raises(ModelError, match="damaged"):
        io.load(damaged)


def test_a_function_of_an_impossible_opset_is_refused() -> None:
    function = helper.make_function("own", "F", ["a"], ["b"], [node("Relu", ["a"], ["b"])],
                                    [helper.make_opsetid("", 2**63 - 1)])  # fmt: skip
    with pytest.raises(ModelError, match="opset version"):
        io.load(
            model([node("F", ["x"], ["y"], domain="own")], *ENDS, domains={"own": 1}, functions=[function])
        )


@pytest.mark.parametrize(("op_type", "opset"), [("Erf", 7), ("Upsample", 13), ("Gelu", 17)])
def test_an_operator_of_another_opset_needs_its_inputs_too(op_type: str, opset: int) -> None:
    made = model([node(op_type, [], ["y"])], *ENDS, opset=opset)
    with pytest.raises(ModelError, match="0 inputs and needs"):
        normalize(io.load(made))


@pytest.mark.parametrize("op_type", sorted(LEAST_INPUTS))
def test_an_operator_of_the_runtime_needs_its_inputs(op_type: str) -> None:
    assert LEAST_INPUTS[op_type] == min(schema.min_input for schema in schemas()[CONTRIB, op_type])
    made = model([node(op_type, [], ["y"], domain=CONTRIB)], *ENDS, domains={CONTRIB: 1})
    with pytest.raises(ModelError, match="0 inputs and needs"):
        normalize(io.load(made))


def _beside(op_type: str, domain: str) -> onnx.ModelProto:
    """An operator without inputs before and behind all that the planner looks at by name."""
    nodes = [
        node(op_type, [], ["o"], "odd", domain=domain),
        node("MatMul", ["x", "w"], ["m"], "product"), node("Mul", ["m", "o"], ["g"], "gate"),
        node("MatMul", ["g", "w"], ["n"], "down"), node("Sqrt", ["o"], ["r"], "root"),
        node("Softmax", ["n"], ["p"], "softmax"), node("MatMul", ["p", "o"], ["v"], "values"),
        node("Gemm", ["v", "o", "b"], ["e"], "gemm"), node("Add", ["e", "r"], ["y"], "sum"),
    ]  # fmt: skip
    known = [tensor(name, [8, 8]) for name in ("o", "m", "g", "n", "p", "v", "e")]
    made = model(nodes, [tensor("x", [8, 8])], [tensor("y", [8, 8])],
                 {"w": WEIGHT, "b": np.ones(8, np.float32)}, domains={domain: 1})  # fmt: skip
    made.graph.value_info.extend(known)
    return made


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm", "Mul", "Sigmoid", "Pow", "Transpose", "Identity",
                                     "Reshape", "Softmax", "MatMulInteger", "DequantizeLinear"])  # fmt: skip
def test_an_operator_of_another_domain_only_shares_the_name(op_type: str) -> None:
    made = _beside(op_type, "own")
    for style in ("qdq", "qoperator"):
        plan = octavo.plan(made, EVERYWHERE, style=style)
        assert "odd" not in plan.nodes
    octavo.lint(made)


@pytest.mark.parametrize("shape", [(64,), (2, 4, 8)])
def test_a_gemm_by_anything_but_a_matrix_stays_float(shape: tuple[int, ...]) -> None:
    made = model([node("Gemm", ["x", "w", "b"], ["y"], "layer")], *ENDS,
                 {"w": WEIGHT.reshape(shape), "b": np.ones(8, np.float32)})  # fmt: skip
    for style in ("qdq", "qoperator"):
        plan = octavo.plan(made, EVERYWHERE, style=style)
        assert "matrix" in next(one.reason for one in plan.skipped if one.node == "layer")


@pytest.mark.parametrize(("op_type", "shape", "bias", "more"), [
    ("Gemm", (8, 3), 4, {}), ("Conv", (8, 2, 1), 4, {}), ("Conv", (8,), 8, {}),
    ("Conv", (8, 2, 1), 8, {"group": 3}), ("Conv", (8, 2, 1), 8, {"group": 0}),
])  # fmt: skip
def test_a_product_whose_parts_do_not_fit_is_no_layer(
    op_type: str, shape: tuple[int, ...], bias: int, more: dict[str, int]
) -> None:
    content = {"w": np.ones(shape, np.float32), "b": np.ones(bias, np.float32)}
    made = model([node(op_type, ["x", "w", "b"], ["y"], **more)], ENDS[0], [tensor("y", None)], content)
    assert isinstance(layer_of(io.load(made).graph[0]), str)


@pytest.mark.parametrize("tail", ["Sqrt", "MatMul"])
def test_paths_that_meet_again_are_followed_once(tail: str) -> None:
    depth = 60
    nodes = [node("MatMul", ["x", "w"], ["v0"], "first")]
    nodes += [node("Add", [f"v{i}", f"v{i}"], [f"v{i + 1}"], f"add{i}") for i in range(depth)]
    nodes += [node("MatMul", ["x", "w"], ["u"], "second"), node("Mul", ["u", f"v{depth}"], ["g"], "gate")]
    nodes += [node("MatMul", ["g", "w"], ["t"], "down")]
    nodes += [node("Sqrt", [f"v{depth}"], ["r"]), node("Add", ["t", "r"], ["y"])] if tail == "Sqrt" else [
        node("Softmax", ["t"], ["p"]), node("MatMul", ["p", f"v{depth}"], ["y"])]  # fmt: skip
    made = model(nodes, [tensor("x", [8, 8])], [tensor("y", [8, 8])], {"w": WEIGHT})
    plan = octavo.plan(made, EVERYWHERE)
    assert {"first", "down"} <= {*plan.nodes, *(one.node for one in plan.skipped)}


def test_a_negative_size_is_an_unknown_one() -> None:
    bounds = {name: np.array([number], np.int64) for name, number in (("from", 1), ("to", 4), ("along", 1))}
    made = model([node("Slice", ["x", "from", "to", "along"], ["y"])], [tensor("x", [2, -1])],
                 [tensor("y", [2, -1])], bounds)  # fmt: skip
    loaded = io.load(made)
    prepare(loaded, PrepareOptions(symbolic_shapes=False))
    assert [dim if isinstance(dim, int) else None for dim in loaded.graph.inputs[0].shape or ()] == [2, None]
    found = session.Session.open(loaded).run({"x": np.arange(10, dtype=np.float32).reshape(2, 5)})
    np.testing.assert_array_equal(found["y"], [[1, 2, 3], [6, 7, 8]])


@pytest.mark.parametrize("shape", [[2, 4], [3]])
def test_a_resize_by_more_than_a_number_for_each_axis_is_refused(shape: list[int]) -> None:
    made = model(
        [node("Resize", ["x", "", "s"], ["y"], "bigger")], [*ENDS[0], tensor("s", shape)], [tensor("y", None)]
    )
    with pytest.raises(ModelError, match="number for each axis"):
        prepare(io.load(made), PrepareOptions())


def test_a_resize_of_some_axes_is_prepared() -> None:
    nodes = [node("Resize", ["x", "", "s"], ["y"], axes=[1], mode="nearest")]
    loaded = io.load(model(nodes, ENDS[0], [tensor("y", [2, 16])], {"s": np.float32([2])}, opset=18))
    prepare(loaded, PrepareOptions())
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    np.testing.assert_array_equal(session.Session.open(loaded).run({"x": x})["y"], x.repeat(2, axis=1))


METHODS: tuple[Method, ...] = (Percentile(99.0), Percentile(60.0), Entropy(), MSE())


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_range_goes_upward_within_the_extremes(method: Method, symmetric: bool, sign: int) -> None:
    ones = np.ones(1000, np.float32)
    ones[0] = 0.0
    for values in (ones, np.linspace(5, 5.1, 1000, dtype=np.float32)):
        state = HistogramState()
        state.update(sign * values, 0)
        kind = qtype("int8" if symmetric else "uint8")
        low, high, _ = read(state, Scheme(kind, symmetric=symmetric, method=method))
        assert math.isfinite(low) and math.isfinite(high)
        assert low <= high


def test_an_image_that_is_a_line_is_refused(tmp_path: object) -> None:
    image = pytest.importorskip("PIL.Image")
    from octavo.data.images.image_decoding import open_image

    path = f"{tmp_path}/line.tiff"
    image.new("1", (1_000_001, 1)).save(path)
    with pytest.raises(DataError, match="1000001"):
        open_image(path, "RGB")


def test_the_memory_for_another_mode_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    image = pytest.importorskip("PIL.Image")
    from octavo.data.images.image_decoding import open_image

    path = f"{tmp_path}/plain.png"
    image.new("L", (8, 8)).save(path)

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(image.Image, "convert", full)
    with pytest.raises(DataError, match="memory"):
        open_image(path, "RGB")
