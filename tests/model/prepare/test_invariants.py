"""What loops and branches hand on unchanged is read from outside; what changes stays a state."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor
from onnx import TensorProto

import octavo
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.scopes import remove_unused
from octavo.model.prepare import constant_folding, control_flow
from octavo.model.prepare.prepare_report import describe_kind

from .exporters import HABITS, LOOP, STEP, cell, weight
from .helpers import before_and_after

FEEDS = {"x": np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)}


def looped(results: list[str], carried: list[str], outputs: list[str], steps: int = 3) -> onnx.ModelProto:
    body = cell(["h", "k", "c"], STEP, results)
    nodes = [node("Loop", ["steps", "go", *carried], ["y", "k_out", "c_out"], "loop", body=body)]
    arrays = {**LOOP, "steps": np.int64(steps), "kernel": weight(16, 16), "bias": np.ones(16, np.float32)}
    return model(nodes, [tensor("x", [16, 16])], [tensor(name, None) for name in outputs], arrays)


def hoist(m: query.ir.Model) -> None:
    control_flow.hoist_invariants(m)
    remove_unused(m)


def loop_of(found: onnx.ModelProto) -> query.ir.Node:
    return next(n for n in query.nodes(found) if n.op_type == "Loop")


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_invariant_states_go_and_results_keep_their_names(steps: int) -> None:
    proto = looped(["h_next", "k", "c"], ["x", "kernel", "bias"], ["y", "k_out"], steps)
    found = before_and_after(proto, hoist, FEEDS)
    node = loop_of(found)
    assert [value.name for value in node.inputs] == ["steps", "go", "x"]
    assert len(node.outputs) == 1
    assert [value.name for value in found.graph.outputs] == ["y", "k_out"]


def test_states_that_trade_places_stay() -> None:
    swapped = looped(["h_next", "c", "k"], ["x", "kernel", "kernel"], ["y", "k_out", "c_out"])
    found = before_and_after(swapped, hoist, FEEDS)
    assert len(loop_of(found).inputs) == 5


def test_state_set_to_its_first_value_is_invariant() -> None:
    body = cell(["h", "k", "c"], [*STEP, node("Identity", ["kernel"], ["again"])], ["h_next", "again", "c"])
    nodes = [node("Loop", ["steps", "go", "x", "kernel", "bias"], ["y", "k_out", "c_out"], "loop", body=body)]
    arrays = {**LOOP, "kernel": weight(16, 16), "bias": np.ones(16, np.float32)}
    proto = model(nodes, [tensor("x", [16, 16])], [tensor("y", None)], arrays)
    assert len(loop_of(before_and_after(proto, hoist, FEEDS)).inputs) == 3


def test_loop_without_anything_else_goes() -> None:
    body = cell(["h"], [], ["h"])
    nodes = [node("Loop", ["steps", "go", "x"], ["same"], "loop", body=body), node("Relu", ["same"], ["y"])]
    proto = model(nodes, [tensor("x", [16, 16])], [tensor("y", None)], LOOP)
    found = before_and_after(proto, hoist, FEEDS)
    assert [n.op_type for n in found.graph] == ["Relu"]


def test_state_that_is_also_listed_step_by_step_is_still_listed() -> None:
    body = graph(
        [node("Identity", ["cond"], ["cond_out"]), node("Relu", ["h"], ["h_next"]),
         node("Neg", ["k"], ["n"])],
        [tensor("i", [], TensorProto.INT64), tensor("cond", [], TensorProto.BOOL), tensor("h", None),
         tensor("k", None)],
        [tensor("cond_out", [], TensorProto.BOOL), tensor("h_next", None), tensor("k", None),
         tensor("n", None)],
    )  # fmt: skip
    nodes = [node("Loop", ["steps", "go", "x", "x"], ["y", "k_out", "each"], "loop", body=body)]
    proto = model(nodes, [tensor("x", [16, 16])], [tensor("y", None), tensor("each", None)], LOOP)
    found = before_and_after(proto, hoist, FEEDS)
    assert len(loop_of(found).outputs) == 2


def test_branch_results_that_are_one_outer_value_are_that_value() -> None:
    case = HABITS["paddle_branches_hand_on_the_weight"]()
    found = before_and_after(case.proto, lambda m: (constant_folding.remove_no_ops(m), hoist(m)), FEEDS)
    choice = next(n for n in found.graph if n.op_type == "If")
    assert len(choice.outputs) == 1


def test_kind_is_said_in_a_sentence_by_plan_doctor_and_quantize() -> None:
    proto = HABITS["tf_loop_carries_its_weights"]().proto
    sentence = "1 weight is carried through a Loop"
    assert describe_kind(io.load(proto)) == sentence
    assert any(sentence in note for note in octavo.plan(proto).notes)
    assert sentence in str(octavo.doctor(proto))
    assert sentence in str(octavo.quantize(proto, [FEEDS] * 4, effort="plain"))


def test_kind_names_half_precision_and_earlier_quantization() -> None:
    half = io.load(HABITS["keras_mixed_precision_in_float16"]().proto)
    assert describe_kind(half) == "weights are float16"
    plain = HABITS["torch_old_keeps_weights_as_inputs"]().proto
    assert describe_kind(io.load(plain)) is None
    quantized = octavo.quantize(plain, [FEEDS] * 4, effort="plain").model
    assert "already quantized" in (describe_kind(quantized) or "")
