"""Edits of a plan leave it whole, and a plan that contradicts itself is refused with the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import conv_net
from quantizing import feeds_for, session

import octavo
from octavo.core.plan import Bounded, Fixed, Key, Measured, Plan
from octavo.core.qtypes import qtype
from octavo.errors import RecipeError, TableError
from octavo.model.files import io


@pytest.fixture(scope="module")
def proto() -> onnx.ModelProto:
    return conv_net()


@pytest.fixture(scope="module")
def plan(proto: onnx.ModelProto) -> Plan:
    return octavo.plan(proto, octavo.W8A8.but(placement=octavo.Placement.EVERYWHERE))


def weighted(plan: Plan) -> str:
    """The first node that has a weight of its own."""
    return next(
        key.consumer for key, entry in plan.edges() if type(entry).__name__ == "Constant" and key.consumer
    )


def measured(plan: Plan) -> Key:
    return next(key for key, entry in plan.entries.items() if isinstance(entry, Measured))


def test_a_node_that_is_kept_in_float_keeps_its_float_weight(plan: Plan, proto: onnx.ModelProto) -> None:
    name = weighted(plan)
    edited = plan.keep_float(name)
    assert name not in edited.nodes and name in {one.node for one in edited.skipped}
    assert all(key.consumer != name for key in edited.entries)
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, plan=edited)
    weight = next(key.tensor for key, _ in plan.edges() if key.consumer == name and "w" in key.tensor)
    stored = {value.name for value in result.model.graph.initializers.values()}
    assert weight in stored and f"{weight}_quantized" not in stored
    assert any(node.name == name and node.op_type == plan.nodes[name].op_type for node in result.model.graph)


def test_op_types_and_globs_select_nodes(plan: Plan) -> None:
    assert "Conv" not in plan.keep_float("op:Conv").counts()
    assert not plan.keep_float("*").nodes
    with pytest.raises(RecipeError, match="matches no node"):
        plan.keep_float("no such node")


def test_a_tensor_gets_other_settings(plan: Plan, proto: onnx.ModelProto) -> None:
    key = measured(plan)
    edited = plan.set(key.tensor, qtype="uint16", method="percentile:99.9")
    entry = edited.entries[key]
    assert isinstance(entry, Measured)
    assert (entry.scheme.qtype.name, entry.scheme.method) == ("uint16", octavo.Percentile(99.9))
    assert isinstance(plan.set(key.tensor, range=(-1, 2)).entries[key], Bounded)
    fixed = plan.set(key.tensor, scale=0.5, zero_point=3)
    assert isinstance(fixed.entries[key], Fixed)
    result = octavo.quantize(proto, feeds_for(proto), plan=fixed)
    assert float(result.params[key].scale) == 0.5
    assert np.isfinite(next(iter(session(io.to_proto(result.model)).run(feeds_for(proto)[0]).values()))).all()


def test_settings_of_a_tensor_may_be_given_by_name_in_an_override_too() -> None:
    named = octavo.Override("x", qtype="uint16", granularity="channel:1", method="percentile:99.9")
    assert named == octavo.Override(
        "x",
        qtype=qtype("uint16"),
        granularity=octavo.PerChannel(1),
        method=octavo.Percentile(99.9),
    )


def test_the_text_of_a_plan_is_what_its_file_holds(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_text(encoding="utf-8") == plan.to_json()
    assert Plan.from_dict(json.loads(plan.to_json())) == plan


def test_a_keyword_that_plans_do_not_know_is_refused(proto: onnx.ModelProto) -> None:
    with pytest.raises(RecipeError, match="no keyword 'max_drop'"):
        octavo.plan(proto, max_drop="1%")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bits": 8}, "no setting 'bits'"),
        ({"scale": 0.5}, "go together"),
        ({"range": (2, 1)}, "smaller and a larger"),
        ({"qtype": "uint9"}, "uint9"),
    ],
)
def test_settings_that_mean_nothing_are_sentences(plan: Plan, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        plan.set(measured(plan).tensor, **settings)


def test_a_bias_points_to_what_decides_its_scale(plan: Plan) -> None:
    bias = next((k for k, e in plan.entries.items() if type(e).__name__ == "Derived"), None)
    assert bias is not None
    with pytest.raises(RecipeError, match="follows from its input"):
        plan.set(bias.tensor, qtype="int8")
    without = plan.without(bias.tensor)
    assert bias not in without.entries and len(without.entries) == len(plan.entries) - 1


def edited(plan: Plan, tmp_path: Path, change: Any) -> Path:
    data = plan.to_dict()
    change(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    return path


def test_a_node_deleted_from_the_file_is_refused_with_the_place(plan: Plan, tmp_path: Path) -> None:
    name = weighted(plan)
    with pytest.raises(TableError, match=rf"→ {name}, but '{name}' is not among its nodes"):
        Plan.load(edited(plan, tmp_path, lambda data: data["nodes"].pop(name)))


def test_a_node_that_is_quantized_and_skipped_is_refused(plan: Plan, tmp_path: Path) -> None:
    name = weighted(plan)
    row = {"node": name, "op_type": "Conv", "reason": "mine"}
    with pytest.raises(TableError, match="among its nodes and among those skipped"):
        Plan.load(edited(plan, tmp_path, lambda data: data["skipped"].append(row)))


def test_every_node_that_is_deleted_from_the_file_is_refused(
    plan: Plan, proto: onnx.ModelProto, tmp_path: Path
) -> None:
    for name in plan.nodes:
        file = edited(plan, tmp_path, lambda data, name=name: data["nodes"].pop(name))
        with pytest.raises(TableError, match=name):
            octavo.quantize(proto, feeds_for(proto), plan=file)


def test_a_node_without_a_quantized_input_is_refused(plan: Plan, proto: onnx.ModelProto) -> None:
    name = weighted(plan)
    first = next(n for n in io.load(proto).graph if n.name == name).inputs[0]
    assert first is not None and first.name is not None
    weights = [key.tensor for key, _ in plan.edges() if key.consumer == name]
    broken = plan.without(first.name, *[one for one in weights if one != first.name])
    with pytest.raises(TableError, match=f"quantizes node '{name}'"):
        octavo.quantize(proto, feeds_for(proto), plan=broken)
