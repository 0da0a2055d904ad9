"""The placement ``listed``: what is requested is quantized, whatever the target gains by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import error, feeds_for, ops, weights

import octavo
from octavo.core.plan import Bounded, Constant, Derived, Key, Measured, Plan, Shared
from octavo.core.recipe import Listing, WriteOptions
from octavo.model.files import io

LISTED = octavo.W8A8.but(
    placement=octavo.Placement.LISTED,
    op_types=("Conv", "Relu", "Reshape", "Tanh", "Softmax"),
    writing=WriteOptions(explicit=True),
)


def _net() -> onnx.ModelProto:
    """Conv, Relu, Reshape, Tanh, Softmax: the last two have no integer kernel that pays."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("Reshape", ["r", "s"], ["f"], "reshape"),
        node("Tanh", ["f"], ["t"], "tanh"),
        node("Softmax", ["t"], ["y"], "softmax", axis=1),
    ]
    arrays = {"w": weights(4, 3, 3, 3), "b": weights(4, seed=1), "s": np.array([1, -1], np.int64)}
    return model(nodes, [tensor("x", [1, 3, 4, 4])], [tensor("y", [1, 64])], arrays)


def test_entries_sit_on_tensors_and_operators_without_a_rule_are_quantized_too() -> None:
    plan = octavo.plan(_net(), LISTED, prepare=None)
    kinds = {str(key): type(entry) for key, entry in plan.entries.items()}
    assert kinds == {
        "x": Measured, "w": Constant, "b → conv": Derived, "r": Measured, "f": Shared, "t": Measured,
        "y": Bounded,
    }  # fmt: skip
    assert list(plan.fused) == ["relu"]


def test_a_clamp_that_stays_lends_its_range_to_what_it_reads() -> None:
    plan = octavo.plan(_net(), LISTED.but(fuse_clamps=False), prepare=None)
    assert plan.entries[Key("c")] == Measured(LISTED.activations, of="r")
    assert "c" not in plan.needs()


def test_plan_and_recipe_survive_files(tmp_path: Path) -> None:
    recipe = LISTED.but(listing=Listing(float_outputs=("Tanh",), channel_axes=(("MatMul", 1),)))
    recipe.save(tmp_path / "recipe.yaml")
    assert octavo.Recipe.load(tmp_path / "recipe.yaml") == recipe
    plan = octavo.plan(_net(), recipe, prepare=None)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("style", [octavo.Style.QDQ, octavo.Style.QOPERATOR])
def test_the_result_is_close_to_float(style: octavo.Style) -> None:
    made = _net()
    samples = feeds_for(made)
    result = octavo.quantize(made, samples, recipe=LISTED, style=style, prepare=None)
    assert error(result, made, samples) < 0.1
    assert ops(result)["Relu"] == 0


def test_explicit_parameters_are_written_into_typed_fields() -> None:
    made = _net()
    proto = io.to_proto(octavo.quantize(made, feeds_for(made), recipe=LISTED, prepare=None).model)
    stored = {t.name: t for t in proto.graph.initializer}
    assert len(stored["x_scale"].float_data) == 1
    assert len(stored["x_zero_point"].int32_data) == 1
    assert "b_quantized_zero_point" in stored


def test_variants_mean_the_same() -> None:
    made = _net()
    samples = feeds_for(made)
    for writing in (
        WriteOptions(dedicated=True),
        WriteOptions(float_weights=True),
        WriteOptions(domain="com.microsoft"),
    ):
        result = octavo.quantize(made, samples, recipe=LISTED.but(writing=writing), prepare=None)
        assert error(result, made, samples) < 0.1
