"""The verbs and what they hand over: one vocabulary at three depths."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import EVERYWHERE, convolutions, error, feeds_for, layers, weights

import octavo
from octavo.core.plan import Bounded, Key, Measured
from octavo.core.qtypes import UINT16
from octavo.errors import DataError, ModelError, OutputError, RecipeError, TableError
from octavo.model.files import io
from octavo.targets import target as find_target


def same(left: octavo.Result, right: octavo.Result) -> bool:
    return io.fingerprint(left.model) == io.fingerprint(right.model)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model with batch normalization, so that preparation matters, of an old opset."""
    onnx.save(builders.conv_net(opset=11), str(tmp_path / "m.onnx"))
    return tmp_path / "m.onnx"


DATA = feeds_for(builders.conv_net())
RECIPES = {
    "W8A8": octavo.W8A8,
    "W8A16": octavo.W8A16,
    "everywhere": EVERYWHERE,
    "qoperator": EVERYWHERE.but(style=octavo.Style.QOPERATOR),
    "percentile": octavo.W8A8.but(activations=octavo.W8A8.activations.but(method=octavo.Percentile(99.9))),  # type: ignore[union-attr]
    "dynamic": octavo.W8.but(op_types=("Gemm",)),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_three_steps_from_a_path_give_what_one_call_gives(recipe: octavo.Recipe, path: Path) -> None:
    plan = octavo.plan(path, recipe)
    stats = octavo.calibrate(path, plan.needs(), DATA) if plan.needs() else None
    result = octavo.emit(path, plan, stats)
    assert same(result, octavo.quantize(path, DATA, recipe=recipe))
    assert error(result, onnx.load(str(path)), DATA) < 0.08


@pytest.mark.parametrize("recipe", [octavo.W8A16, EVERYWHERE], ids=["W8A16", "everywhere"])
def test_three_steps_from_a_prepared_model_give_the_same(recipe: octavo.Recipe, path: Path) -> None:
    prepared = octavo.prepare(path).model
    plan = octavo.plan(prepared, recipe)
    result = octavo.emit(prepared, plan, octavo.calibrate(prepared, plan, DATA))
    assert same(result, octavo.quantize(path, DATA, recipe=recipe))


def test_three_steps_work_for_half_precision(tmp_path: Path) -> None:
    proto = builders.conv_net(dtype=np.float16)
    source = octavo.ready(proto)
    data = feeds_for(proto)
    plan = octavo.plan(source)
    result = octavo.emit(source, plan, octavo.calibrate(source, plan, data))
    assert same(result, octavo.quantize(proto, data, effort="plain"))


def test_three_steps_can_leave_preparation_out(path: Path) -> None:
    plan = octavo.plan(path, prepare=None)
    stats = octavo.calibrate(path, plan, DATA, prepare=None)
    result = octavo.emit(path, plan, stats, prepare=None)
    assert "BN_0" in {s.node for s in plan.skipped}
    assert same(result, octavo.quantize(path, DATA, prepare=None, effort="plain"))


def test_statistics_split_among_workers_give_the_same_model(path: Path) -> None:
    plan = octavo.plan(path)
    halves = [octavo.calibrate(path, plan, DATA, shard=(number, 2)) for number in (2, 1)]
    stats = halves[0].merge(halves[1])
    assert same(octavo.emit(path, plan, stats), octavo.quantize(path, DATA, effort="plain"))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_dry_run_is_the_plan_that_quantize_carries_out(recipe: octavo.Recipe, path: Path) -> None:
    assert octavo.plan(path, recipe) == octavo.quantize(path, DATA, recipe=recipe).plan


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_plan_survives_its_file_and_can_be_carried_out(
    recipe: octavo.Recipe, path: Path, tmp_path: Path
) -> None:
    plan = octavo.plan(path, recipe)
    plan.save(tmp_path / "plan.json")
    assert octavo.Plan.load(tmp_path / "plan.json") == plan
    result = octavo.quantize(path, DATA, plan=tmp_path / "plan.json")
    assert same(result, octavo.quantize(path, DATA, recipe=recipe))
    assert result.recipe is None


def test_guards_survive_the_file(tmp_path: Path) -> None:
    proto = convolutions(3)
    plan = octavo.plan(proto, exclude=["Conv_1"])
    plan.save(tmp_path / "plan.json")
    assert octavo.Plan.load(tmp_path / "plan.json").barriers == plan.barriers


def test_one_edited_line_of_a_plan_changes_one_tensor(path: Path, tmp_path: Path) -> None:
    octavo.plan(path, EVERYWHERE).save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    lines = text.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.strip().startswith('["relu", null')]
    lines[at] = lines[at].replace("uint8", "uint16")
    (tmp_path / "plan.json").write_text("\n".join(lines))
    result = octavo.quantize(path, DATA, plan=tmp_path / "plan.json")
    assert result.params[Key("relu")].qtype == UINT16
    assert dict(result.model.opset_imports)[""] == 21
    assert error(result, onnx.load(str(path)), DATA) < 0.08


def test_a_range_written_into_a_plan_needs_no_data(path: Path) -> None:
    plan = octavo.plan(path)
    entries = {
        k: Bounded(e.scheme, 0.0, 10.0) if isinstance(e, Measured) and k.tensor != "x" else e
        for k, e in plan.entries.items()
    }
    entries = {k: Bounded(e.scheme, -3.0, 3.0) if isinstance(e, Measured) else e for k, e in entries.items()}
    result = octavo.quantize(path, plan=replace(plan, entries=entries))
    assert result.stats is None


def test_a_plan_that_fuses_a_clamp_below_zero_is_refused(path: Path) -> None:
    plan = octavo.plan(path)
    assert plan.fused
    entries = {
        k: Bounded(e.scheme, -5.0, 5.0) if isinstance(e, Measured) else e for k, e in plan.entries.items()
    }
    with pytest.raises(TableError, match=r"fuses the clamp.*bounds 0 "):
        octavo.quantize(path, plan=replace(plan, entries=entries))


def test_a_plan_of_another_model_is_refused(path: Path) -> None:
    with pytest.raises((TableError, ModelError), match=r"does not have|no tensor"):
        octavo.quantize(convolutions(1), [{"x": weights(1, 8, 8, 8)}], plan=octavo.plan(path))


def test_a_plan_without_an_entry_that_another_needs_is_refused(path: Path) -> None:
    plan = octavo.plan(path)
    entries = {k: e for k, e in plan.entries.items() if k.tensor != "w"}
    with pytest.raises(TableError, match="w → Conv_0"):
        octavo.quantize(path, DATA, plan=replace(plan, entries=entries))


def test_a_plan_and_a_recipe_clash(path: Path) -> None:
    plan = octavo.plan(path)
    with pytest.raises(RecipeError, match="A plan has decided"):
        octavo.quantize(path, DATA, plan=plan, recipe=octavo.W8A8)
    with pytest.raises(RecipeError, match="A plan has decided"):
        octavo.quantize(path, DATA, plan=plan, exclude=["op:Conv"])


def test_statistics_that_lack_a_tensor_are_an_error_that_names_it(path: Path) -> None:
    with pytest.raises(DataError, match=r"Tensor 'x'.*calibration data"):
        octavo.emit(path, octavo.plan(path), octavo.Stats())


def test_calibrating_an_unknown_tensor_is_an_error_that_names_it(path: Path) -> None:
    with pytest.raises(ModelError, match="no tensor 'nope'"):
        octavo.calibrate(path, {"nope": octavo.MinMax()}, DATA)


def test_the_target_of_a_recipe_holds_unless_another_is_named() -> None:
    recipe = octavo.W8A8.but(target="portable")
    assert octavo.plan(layers(1), recipe).nodes
    with pytest.raises(RecipeError, match=r"'nowhere' is not a target.*Known: ort-cpu"):
        octavo.plan(layers(1), octavo.W8A8.but(target="nowhere"))
    with pytest.raises(RecipeError, match="is not a target"):
        octavo.quantize(layers(1), target="ort-gpu")


def test_an_explicit_target_wins_over_that_of_a_recipe(tmp_path: Path) -> None:
    recipe = octavo.W8A8.but(target="tensorrt")
    here = octavo.plan(layers(1), recipe, target="ort-cpu")
    assert here == octavo.plan(layers(1), octavo.W8A8)
    with pytest.raises(RecipeError, match="tensorrt"):  # which takes no uint8 activations
        octavo.plan(layers(1), recipe)
    result = octavo.quantize(layers(1), feeds_for(layers(1)), recipe=recipe, target="ort-cpu")
    assert result.recipe is not None
    assert result.recipe.target == "ort-cpu"


def test_a_recipe_is_a_value_a_preset_or_a_file(tmp_path: Path) -> None:
    octavo.W8A16.save(tmp_path / "r.yaml")
    wanted = octavo.plan(layers(1), octavo.W8A16)
    assert octavo.plan(layers(1), "W8A16") == wanted
    assert octavo.plan(layers(1), tmp_path / "r.yaml") == wanted


def test_an_unknown_style_lists_the_known_ones() -> None:
    with pytest.raises(RecipeError, match="qdq, qoperator, integer"):
        octavo.plan(layers(1), style="qlinear")


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (octavo.W8A16.but(style=octavo.Style.QOPERATOR), "qdq style only"),
        (
            octavo.W8A8.but(style=octavo.Style.QOPERATOR, overrides=(octavo.Override("x", qtype=UINT16),)),
            "choose style qdq",
        ),
        (octavo.W8.but(style=octavo.Style.QDQ), "integer style only"),
        (octavo.FP8.but(activations=octavo.W8A8.activations), "float8"),
    ],
)
def test_types_that_clash_are_refused_with_the_way_out(recipe: octavo.Recipe, text: str) -> None:
    with pytest.raises(RecipeError, match=text):
        octavo.plan(layers(1), recipe)


# ---- results


def test_a_result_prints_as_a_summary(path: Path) -> None:
    result = octavo.quantize(path, DATA, effort="plain")
    text = str(result)
    assert text == result.summary()
    assert "Conv" in text
    assert "uint8" in text


def test_a_result_is_json(path: Path) -> None:
    result = octavo.quantize(path, DATA, exclude=[lambda node: node.op_type == "Gemm"], effort="plain")
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["quantized"]["Conv"] == 1
    assert plain["params"]["x → Conv_0"]["type"] == "uint8"
    assert plain["params"]["w → Conv_0"]["count"] == 6
    assert plain["bytes"] < plain["float_bytes"]


def test_the_manifest_names_versions_recipe_and_data(path: Path, tmp_path: Path) -> None:
    result = octavo.quantize(path, DATA, effort="plain")
    written = result.save(tmp_path / "q.onnx", manifest=True)
    assert [p.name for p in written] == ["q.onnx", "q.onnx.manifest.json"]
    manifest = json.loads((tmp_path / "q.onnx.manifest.json").read_text())
    assert set(manifest["versions"]) == {"python", "numpy", "onnx", "onnx_ir", "onnxruntime"}
    assert manifest["octavo"] == octavo.__version__
    assert manifest["samples"] == 4
    assert octavo.Recipe.from_dict(manifest["recipe"]).but(steps=()) == octavo.W8A8
    assert set(manifest["fingerprints"]) == {"model", "data"}


def test_the_data_fingerprint_follows_the_data(path: Path) -> None:
    prints = [
        octavo.quantize(path, data, effort="plain").data_fingerprint
        for data in (DATA, list(DATA), DATA[:2], DATA[::-1])
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_parameters_hold_every_key_of_the_plan(path: Path) -> None:
    result = octavo.quantize(path, DATA, recipe=EVERYWHERE)
    assert set(result.params) == set(result.plan.entries)


def test_a_result_can_be_saved_again_after_its_source_is_gone(path: Path, tmp_path: Path) -> None:
    result = octavo.quantize(path.read_bytes(), DATA, effort="plain")
    result.save(tmp_path / "a.onnx")
    result.save(tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_callable_of_a_recipe_is_named_in_the_manifest() -> None:
    proto = layers(2)
    result = octavo.quantize(
        proto, feeds_for(proto), exclude=[lambda node: node.name == "/block_0/MatMul"], effort="plain"
    )
    assert "lambda" in str(result.manifest()["recipe"]["exclude"])


def test_preparing_a_prepared_model_changes_nothing() -> None:
    once = octavo.ready(builders.conv_net(dtype=np.float16))
    assert io.to_bytes(octavo.ready(once)) == io.to_bytes(once)


def test_mixed_precision_in_one_model_runs(path: Path) -> None:
    proto = model(
        [
            node("Conv", ["x", "w0"], ["t"], "Conv_0", pads=[1, 1, 1, 1]),
            node("Conv", ["t", "w1"], ["y"], "Conv_1", pads=[1, 1, 1, 1]),
        ],
        [tensor("x", [1, 8, 6, 6])],
        [tensor("y", [1, 8, 6, 6])],
        {"w0": weights(8, 8, 3, 3) / 8, "w1": weights(8, 8, 3, 3, seed=1) / 8},
    )
    data = feeds_for(proto)
    recipe = EVERYWHERE.but(
        overrides=(
            octavo.Override("y", qtype=UINT16),
            octavo.Override("t", qtype=UINT16, consumers=("Conv_1",)),
        )
    )
    result = octavo.quantize(proto, data, recipe=recipe)
    assert [str(result.params[Key(*k)].qtype) for k in (("t",), ("t", "Conv_1"), ("y",))] == [
        "uint8",
        "uint16",
        "uint16",
    ]
    assert error(result, proto, data) < 0.03


def test_the_usual_steps_are_taken_where_there_are_samples_enough_for_them(tmp_path: Path) -> None:
    class Again:
        """Data that does not tell its length."""

        def __init__(self, count: int) -> None:
            self.count = count

        def __iter__(self) -> Iterator[dict[str, Any]]:
            return iter(samples(self.count))

    def steps(data: Any, **more: Any) -> list[str]:
        made = octavo.quantize(builders.conv_net(), data, effort="plain", **more)
        return [report.step for report in made.steps]

    def samples(count: int) -> list[dict[str, Any]]:
        return [{"x": np.random.default_rng(i).random((1, 3, 8, 8), np.float32)} for i in range(count)]

    def folder(count: int) -> Path:
        made = tmp_path / str(count)
        made.mkdir()
        for i, sample in enumerate(samples(count)):
            np.savez(made / f"{i}.npz", **sample)
        return made

    all_, fewer = ["smoothquant", "clip", "bias-correction"], ["smoothquant", "bias-correction"]
    assert steps(samples(32)) == steps(Again(32)) == steps(folder(32)) == all_
    assert steps(iter(samples(32))) == all_[1:]  # these samples can't be gone through twice
    assert steps(samples(8)) == steps(Again(31)) == steps(folder(31)) == fewer
    assert steps(samples(32), samples=31) == fewer
    assert steps(samples(7)) == steps(Again(7)) == steps(samples(20), samples=4) == []
    assert steps(samples(32), recipe="W8A8") == []


def test_data_that_comes_once_is_refused_for_steps_that_see_it_twice() -> None:
    taken: list[int] = []

    def once() -> Iterator[dict[str, Any]]:
        for i in range(4):
            taken.append(i)
            yield {"x": np.ones((1, 3, 8, 8), np.float32)}

    recipe = octavo.W8A8.but(steps=("equalize",))
    with pytest.raises(DataError, match="only once; give a list or a path, or leave the steps out"):
        octavo.quantize(builders.conv_net(), once(), recipe=recipe)
    assert not taken


def test_a_reader_that_rewinds_is_gone_through_twice() -> None:
    class Reader:
        def __init__(self) -> None:
            self.rewind()

        def rewind(self) -> None:
            self.left = iter({"x": np.full((1, 3, 8, 8), i, np.float32)} for i in range(9))

        def get_next(self) -> dict[str, Any] | None:
            return next(self.left, None)

    recipe = octavo.W8A8.but(steps=("equalize", "bias-correction"))
    result = octavo.quantize(builders.conv_net(), Reader(), recipe=recipe)
    assert [report.step for report in result.steps] == ["equalize", "bias-correction"]
    assert result.stats is not None
    assert result.stats.samples == 9


def test_an_explicit_target_wins_over_that_of_the_recipe() -> None:
    proto = convolutions()
    recipe = find_target("tensorrt").static_recipe
    assert recipe.target == "tensorrt"
    assert octavo.plan(proto, recipe) == octavo.plan(proto, recipe, target="tensorrt")
    assert octavo.plan(proto, recipe, target="ort-cpu") == octavo.plan(
        proto, recipe, target=find_target("ort-cpu")
    )
    assert octavo.plan(proto, recipe, target="ort-cpu") != octavo.plan(proto, recipe)


@pytest.mark.parametrize("call", [octavo.quantize, octavo.tune, octavo.convert_qat])
def test_an_output_that_is_the_data_is_refused(call: Callable[..., object], tmp_path: Path) -> None:
    data = tmp_path / "calib.npz"
    np.savez(data, **feeds_for(convolutions(), 1)[0])
    before = data.read_bytes()
    with pytest.raises(OutputError, match=r"data .* never overwritten"):
        call(convolutions(), str(data), output=data)
    assert data.read_bytes() == before


@pytest.mark.parametrize("samples", ["10", 2.5, True])
def test_samples_that_are_not_a_whole_number_are_refused(samples: Any) -> None:
    with pytest.raises(RecipeError, match="whole number"):
        octavo.quantize(convolutions(), feeds_for(convolutions(), 1), samples=samples, effort="plain")


def test_a_misspelt_keyword_is_compared_with_those_of_the_signature_too() -> None:
    misspelt: dict[str, Any] = {"efort": "plain"}
    with pytest.raises(RecipeError, match="did you mean 'effort'"):
        octavo.quantize(convolutions(), **misspelt)
