"""From flags to a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli.main import parse
from octavo.cli.selection import changes_of
from octavo.core.granularity import PerBlock, PerTensor
from octavo.core.qtypes import INT4, INT8, UINT8, UINT16
from octavo.core.recipe import W8, W8A8, W8A16, DynamicScheme, Recipe, Style
from octavo.core.scheme import Percentile, Scheme
from octavo.errors import RecipeError
from octavo.pipeline.request import RecipeRequest
from octavo.targets import target


def recipe(*flags: str, static: bool = True) -> Recipe:
    options = parse(["plan", "m.onnx", *flags])
    return RecipeRequest.of(options.recipe, options.target, changes_of(options)).resolve(static=static)[0]


def test_no_flag_leaves_the_choice_to_the_target() -> None:
    assert recipe() == target("ort-cpu").static_recipe
    assert recipe(static=False) == target("ort-cpu").dynamic_recipe


def test_dynamic_is_the_targets_dynamic_recipe() -> None:
    assert recipe("--dynamic", static=False) == W8


@pytest.mark.parametrize("name", ["W8A16", "w8a16"])
def test_a_preset_may_be_written_in_any_case(name: str) -> None:
    assert recipe("--recipe", name) == W8A16


def test_a_recipe_file_is_read_and_changed_by_flags(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("base: W8A8\nactivations: {method: mse}\n")
    made = recipe("--recipe", str(path), "--weights", "uint8")
    assert made.weights.qtype is UINT8
    assert not made.weights.symmetric
    assert isinstance(made.activations, Scheme)


def test_flags_change_what_they_name_and_nothing_else() -> None:
    made = recipe(
        "--weights", "int4", "--per", "block:32", "--activations", "uint16", "--method", "percentile:99.9"
    )
    assert made.weights.qtype is INT4
    assert made.weights.granularity == PerBlock(32)
    assert made.weights.symmetric
    assert made.activations == Scheme(UINT16, method=Percentile(99.9))
    assert made.but(weights=W8A8.weights, activations=W8A8.activations, steps=()) == W8A8.but(
        target="ort-cpu"
    )


def test_a_method_leaves_out_the_step_that_chooses_ranges_itself() -> None:
    assert any(text.startswith("clip") for text in recipe("--weights", "uint8").steps)
    assert not any(text.startswith("clip") for text in recipe("--method", "percentile:99.9").steps)
    assert recipe("--method", "entropy", "--steps", "clip").steps == ("clip",)


def test_per_tensor_weights() -> None:
    made = recipe("--per", "tensor")
    usual = target("ort-cpu").static_recipe
    assert made == usual.but(weights=usual.weights.but(granularity=PerTensor()))


def test_activations_may_be_left_out_or_dynamic() -> None:
    none, dynamic = recipe("--activations", "none"), recipe("--activations", "dynamic")
    assert none.activations is None
    assert dynamic.activations == DynamicScheme()
    assert dynamic.style is Style.INTEGER
    typed = recipe("--activations", "int8", static=False)
    assert typed.activations == DynamicScheme(INT8)


def test_a_target_brings_its_own_defaults() -> None:
    made = recipe("--target", "portable", "--per", "tensor")
    assert made.weights.reduce_range


def test_a_method_without_calibration_is_a_contradiction() -> None:
    with pytest.raises(RecipeError, match="method"):
        recipe("--dynamic", "--method", "entropy", static=False)


def test_op_types_are_a_list() -> None:
    assert recipe("--op-types", "Conv, MatMul").op_types == ("Conv", "MatMul")
    assert recipe().op_types is None
    with pytest.raises(RecipeError, match="no op type"):
        recipe("--op-types", ",")


def test_a_size_with_one_number_and_an_x_is_one_of_weights() -> None:
    options = parse(["quantize", "m.onnx", "--size", "0.2x"])
    assert (options.size, changes_of(options)["size"]) == (None, 0.2)
    options = parse(["quantize", "m.onnx", "--size", "224x160"])
    assert options.size == (224, 160)
    assert "size" not in changes_of(options)
