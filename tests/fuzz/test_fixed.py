"""Faults that fuzzing brought up, each as the fact that holds now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import helper, numpy_helper

import octavo
from octavo.calibration import tables
from octavo.core.plan import Plan
from octavo.errors import ModelError, TableError, closest
from octavo.model.files import io
from octavo.model.graph.normalize import normalize
from octavo.model.runtime.session import Session

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
WEIGHT = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


def layer() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], "product"), node("Relu", ["m"], ["y"], "relu")]
    return model(nodes, [tensor("x", ["n", 8])], [tensor("y", ["n", 8])], {"w": WEIGHT})


def with_function(function: onnx.FunctionProto, call: onnx.NodeProto) -> onnx.ModelProto:
    ends = [tensor("x", [2, 4])], [tensor("y", [2, 4])]
    return model([call], *ends, domains={"own": 1}, functions=[function])


def test_a_tensor_is_a_parameter_of_a_function() -> None:
    constant = node("Constant", [], ["k"])
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, ref_attr_name="t")
    body = [constant, node("Add", ["a", "k"], ["b"])]
    function = helper.make_function("own", "F", ["a"], ["b"], body, OPSETS, ["t"])
    given = np.float32([1, 2, 3, 4])
    call = node("F", ["x"], ["y"], domain="own", t=numpy_helper.from_array(given))
    loaded = io.load(with_function(function, call))
    normalize(loaded)
    found = Session.open(loaded).run({"x": np.ones((2, 4), np.float32)})
    np.testing.assert_array_equal(found["y"], np.ones((2, 4), np.float32) + given)


def test_a_function_that_reads_what_it_does_not_define_is_refused() -> None:
    function = helper.make_function("own", "F", ["a"], ["b"], [node("Add", ["a", "gone"], ["b"])], OPSETS)
    loaded = io.load(with_function(function, node("F", ["x"], ["y"], domain="own")))
    with pytest.raises(ModelError, match="does not define"):
        normalize(loaded)


@pytest.mark.parametrize("kind", [onnx.AttributeProto.FLOAT, onnx.AttributeProto.GRAPH])
def test_a_parameter_outside_a_function_is_refused(kind: int) -> None:
    made = layer()
    made.graph.node[1].attribute.add(name="alpha", type=kind, ref_attr_name="slope")
    with pytest.raises(ModelError, match="only in a function"):
        io.load(made)


def test_outputs_left_out_at_the_end_make_no_other_model() -> None:
    made = layer()
    plain = io.fingerprint(io.load(made))
    made.graph.node[1].output.append("")
    assert io.fingerprint(io.load(made)) == plain


def test_a_table_beyond_float32_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"x": [0, 1e300]}')
    with pytest.raises(TableError, match="float32"):
        tables.load(path)


def test_names_of_any_length_are_compared_quickly_or_not_at_all() -> None:
    assert closest("a" * 10_000, ["a" * 9_999]) == ""
    assert closest("weigth", ["weight", "b" * 10_000]) == "; did you mean 'weight'?"


def _edited(change: Any) -> Plan:
    plain = octavo.plan(layer()).to_dict()
    change(plain)
    return Plan.from_dict(json.loads(json.dumps(plain)))


def _first_edge(plain: dict[str, Any]) -> list[Any]:
    return next(row for row in plain["entries"] if row[1] is not None or row[0] == "x")


CHANGES: dict[str, Any] = {
    "node": lambda plain: plain["nodes"].update(gone=plain["nodes"]["product"]),
    "op type": lambda plain: plain["nodes"]["product"].update(op_type="Conv"),
    "tensor": lambda plain: plain["entries"].append(["gone", None, plain["entries"][0][2]]),
    "reader": lambda plain: plain["entries"].append(["x", "gone", plain["entries"][0][2]]),
    "edge": lambda plain: plain["entries"].append(["x", "relu", plain["entries"][0][2]]),
    "weight": lambda plain: _first_edge(plain).__setitem__(2, next(
        row[2] for row in plain["entries"] if row[2]["kind"] == "Constant")),
    "derived": lambda plain: plain["entries"].append(
        ["m", None, {"kind": "Derived", "x": ["nowhere", None], "w": ["w", None]}]),
    "bias": lambda plain: plain["nodes"]["product"].update(bias_add="relu"),
    "guard": lambda plain: plain.update(barriers=["gone"]),
    "run time": lambda plain: _first_edge(plain).__setitem__(2, {"kind": "Dynamic"}),
    "fused": lambda plain: plain.update(fused={"gone": "why"}),
    "rounded": lambda plain: plain.update(rounded=[["nowhere", None]]),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_plan_that_does_not_fit_the_model_is_refused(change: Any) -> None:
    data = [{"x": np.ones((2, 8), np.float32)}]
    with pytest.raises(TableError):
        octavo.quantize(layer(), data, plan=_edited(change), threads=1)


def test_a_plan_that_fits_is_carried_out() -> None:
    data = [{"x": np.ones((2, 8), np.float32)}]
    result = octavo.quantize(layer(), data, plan=_edited(lambda plain: None), threads=1)
    assert "product" in result.plan.nodes
