"""The automatic choice: what is tried, what is left float, and what happens if nothing will do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor

import octavo
from octavo import pipeline
from octavo import tune as tuned_by
from octavo.errors import ModelError, RecipeError
from octavo.evaluation.timing.latency import Ratio
from octavo.model.files import io
from octavo.targets import target
from octavo.tuning import runner
from octavo.tuning.candidates import Candidate, groups, repaired, without_groups, without_layers
from octavo.tuning.requirements import Drop, Requirements, TaskCheck
from octavo.tuning.split import Split
from tuning.nets import conv_and_linear, many_convs, samples

LENIENT = Requirements(min_speed=0.0)


def tune(data: Any, **more: Any) -> octavo.Tuned:
    options = {"threads": 1, "seconds": 0.02, "requirements": LENIENT, "engine": "serial", **more}
    return tuned_by(conv_and_linear(), data, **options)


@pytest.fixture
def _untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All speeds are the same: for tests of what is tried, which do not depend on them."""
    same = Ratio(1.5, 1.5, 1.5)
    monkeypatch.setattr(runner, "speeds", lambda _, models, *rest, **more: [same] * len(models))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[octavo.Tuned, Path]:
    path = tmp_path_factory.mktemp("tuned") / "out.onnx"
    return tune(samples(24), output=path), path


def test_static_mixed_repaired_and_dynamic_are_tried_and_measured(found: tuple[octavo.Tuned, Path]) -> None:
    names = [trial.name for trial in found[0].trials]
    assert names[:3] == ["dynamic", "static", "mixed"]  # the quick ones first: time may run out
    assert names[3:6] == ["static, clipped", "static, averaged ranges", "static, repaired"]
    assert any("linear layers float" in name for name in names)
    for trial in found[0].trials:
        assert trial.error is None
        assert trial.speed is not None
        assert trial.speed.value > 0
        assert trial.sqnr_db is not None
    assert found[0].held_back == 6


def test_the_best_is_written_and_runs(found: tuple[octavo.Tuned, Path]) -> None:
    tuned, path = found
    assert tuned.met
    assert tuned.best is not None
    assert octavo.inspect(path)
    assert "chosen: " in str(tuned)
    assert json.loads(json.dumps(tuned.to_dict()))["best"] == tuned.best.name


def test_layers_are_listed_by_what_they_lose_alone(found: tuple[octavo.Tuned, Path]) -> None:
    layers = found[0].layers
    assert {"conv", "first", "second"} <= {layer.node for layer in layers}
    assert [layer.sqnr_db for layer in layers] == sorted(layer.sqnr_db for layer in layers)
    assert "layers that lose most" in str(found[0])


@pytest.mark.usefixtures("_untimed")
def test_the_trial_to_be_chosen_is_fitted_to_probabilities_that_the_model_returns() -> None:
    proto = conv_and_linear()
    assert not any("distilled" in trial.name for trial in tune(samples(16)).trials)  # it returns scores
    arrays = {"b2": np.linspace(-1, 1, 5, dtype=np.float32)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
    proto.graph.node.extend(
        [node("Add", ["logits", "b2"], ["z"], "bias2"), node("Softmax", ["z"], ["p"], "softmax", axis=-1)]
    )
    proto.graph.output[0].CopyFrom(tensor("p", ["n", 5]))
    options: dict[str, Any] = {"threads": 1, "seconds": 0.02, "engine": "serial"}
    tuned = tuned_by(proto, samples(32), requirements=LENIENT, **options)
    assert tuned.best is not None
    fitted = tuned.trials[-1]
    refined = tuned.best.candidate.refines or tuned.best.name
    assert fitted.name == f"{refined}, distilled"
    assert fitted.result is not None
    assert fitted.result.steps[-1].step == "distill"


@pytest.mark.usefixtures("_untimed")
def test_statistics_are_collected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[set[str]] = []
    real = runner.statistics

    def counted(model: Any, needs: Any, *rest: Any, **more: Any) -> Any:
        passes.append(set(needs.needs() if hasattr(needs, "needs") else needs))
        return real(model, needs, *rest, **more)

    monkeypatch.setattr(runner, "statistics", counted)
    tune(samples(8))
    assert passes
    assert sum(len(one) for one in passes) == len(set().union(*passes))


@pytest.mark.usefixtures("_untimed")
def test_what_steps_want_to_know_is_collected_once() -> None:
    class Counted(list[Any]):
        """Counts how often a sample near the end is read."""

        read = 0

        def __getitem__(self, index: Any) -> Any:
            Counted.read += index == 90
            return super().__getitem__(index)

        def __iter__(self) -> Any:
            for index, sample in enumerate(super().__iter__()):
                Counted.read += index == 90
                yield sample

    known = pipeline.KnownStatistics()
    recipe = target("ort-cpu").static_recipe.but(steps=("clip", "bias-correction"))
    usual = recipe.but(activations=recipe.activations.but(method=octavo.MinMax(average=True)))
    results = []
    for wanted in (recipe, usual, recipe):
        run = pipeline.run_of({"threads": 1, "engine": "serial"})
        run = replace(run, observation=replace(run.observation, known=known))
        data = Counted(samples(100))
        results.append(pipeline.quantize(conv_and_linear(), data, wanted, target("ort-cpu"), run))
    assert Counted.read == 2  # the second has to know the extremes of each sample, the third nothing
    first, second, third = (io.to_bytes(result.model) for result in results)
    assert first == third != second
    alone = octavo.quantize(conv_and_linear(), samples(100), recipe=recipe, engine="serial", threads=1)
    assert io.to_bytes(alone.model) == third


@pytest.mark.usefixtures("_untimed")
def test_trials_calibrate_with_as_many_samples_as_the_recipe_says_and_name_them() -> None:
    recipe = target("ort-cpu").static_recipe.but(calibration_samples=20)
    tuned = tune(samples(100), recipe=recipe)
    static = [trial.result for trial in tuned.trials if trial.result is not None and trial.result.stats]
    assert static
    for result in static:
        assert result.stats.samples == 20
        assert {state.count for state in result.stats.values()} == {20}
    assert len({result.data_fingerprint for result in static if result.steps} - {None}) == 1
    clipped = next(trial for trial in tuned.trials if trial.name.endswith(", clipped"))
    assert clipped.result is not None
    given = Split.of(samples(100), io.load(conv_and_linear()), None).calibration
    alone = octavo.quantize(conv_and_linear(), given, recipe=clipped.candidate.recipe, threads=1)
    assert io.to_bytes(alone.model) == io.to_bytes(clipped.result.model)


@pytest.mark.usefixtures("_untimed")
def test_serial_and_processes_judge_alike() -> None:
    one = tune(samples(8), engine="serial", time_limit=0.0)
    other = tune(samples(8), engine="processes", workers=2, time_limit=0.0)
    assert [t.sqnr_db for t in one.trials] == pytest.approx([t.sqnr_db for t in other.trials], abs=1e-6)
    assert [t.agreement for t in one.trials] == [t.agreement for t in other.trials]


@pytest.mark.usefixtures("_untimed")
def test_constraints_hold_for_every_trial() -> None:
    tuned = tune(samples(8), exclude=("conv",))
    made = [trial for trial in tuned.trials if trial.result is not None]
    assert made
    assert all("conv" not in trial.result.plan.nodes for trial in made if trial.result is not None)


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="matches no node"):
        tune(samples(8), exclude=("cnov",))


def test_without_data_only_what_needs_none_is_tried() -> None:
    weights = {"w": np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["y"], "product")]
    source = model(nodes, [tensor("x", [4, 16])], [tensor("y", None)], weights)
    tuned = octavo.tune(source, seconds=0.02, requirements=Requirements(min_speed=0.0, min_sqnr=0.0))
    assert [trial.name for trial in tuned.trials] == ["dynamic"]


@pytest.mark.usefixtures("_untimed")
def test_one_sample_serves_twice_and_a_note_says_so() -> None:
    tuned = tune(samples(1), time_limit=0.0)
    assert tuned.held_back == 0
    assert any("only one sample" in note for note in tuned.notes)


@pytest.mark.usefixtures("_untimed")
def test_after_the_time_no_further_trial_is_started() -> None:
    tuned = tune(samples(8), time_limit=0.0)
    assert tuned.trials[0].error is None
    assert all("time limit" in (trial.error or "") for trial in tuned.trials[1:])


@pytest.mark.usefixtures("_untimed")
def test_while_nothing_is_faithful_enough_more_layers_stay_float() -> None:
    requirements = Requirements(min_speed=0.0, min_sqnr=200.0)
    tuned = tuned_by(convs_and_product(), samples(8), threads=1, engine="serial", requirements=requirements)
    assert not tuned.met
    counts = [name for name in (trial.name for trial in tuned.trials) if "layer" in name and "float" in name]
    assert any("1 layer float" in name for name in counts)
    assert any("2 layers float" in name for name in counts)
    assert any(trial.speed is None for trial in tuned.trials)  # what is too far from float is not timed


def test_a_slow_trial_that_is_close_enough_does_not_end_the_search_for_a_faster_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fixed(_: Any, models: Any, *rest: Any, **more: Any) -> list[Ratio]:
        static = [isinstance(one, Path) and has_static_scales(one) for one in models]
        return [Ratio(2, 2, 2) if fast else Ratio(1, 1, 1) for fast in static]

    monkeypatch.setattr(runner, "speeds", fixed)
    requirements = Requirements(min_sqnr=37)
    tuned = tuned_by(convs_and_product(), samples(48), threads=1, engine="serial", requirements=requirements)
    dynamic = next(trial for trial in tuned.trials if trial.name == "dynamic")
    assert requirements.unfaithful(dynamic) is None
    assert tuned.met
    assert tuned.best is not None
    assert tuned.best.speed == Ratio(2, 2, 2)
    assert "layers float" in tuned.best.name


def has_static_scales(file: Path) -> bool:
    return any(one.op_type == "QuantizeLinear" for one in onnx.load(file).graph.node)


def convs_and_product() -> onnx.ModelProto:
    """Convs, pooling and a small product: quantizing that alone is close to float and no faster."""
    proto = many_convs(6)
    w = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    more = [
        node("GlobalAveragePool", ["r5"], ["g"], "pool"),
        node("Flatten", ["g"], ["f"], "flat"),
        node("MatMul", ["f", "w"], ["y"], "last"),
    ]
    proto.graph.node.extend(more)
    proto.graph.output[0].CopyFrom(tensor("y", ["n", 8]))
    return proto


@octavo.metric(name="tuning_answer")
def answer(outputs: dict[str, Any], label: Any) -> float:
    return float(outputs["logits"].argmax() == label)


@pytest.mark.usefixtures("_untimed")
def test_a_task_gives_every_trial_the_tasks_figure_beside_floats() -> None:
    labelled = [(sample, 0) for sample in samples(6)]
    tuned = tune(
        samples(8),
        requirements=Requirements(min_speed=0.0, min_sqnr=0.0, max_drop=Drop.parse("1.0")),
        task=TaskCheck("tuning_answer", labelled),
    )
    assert tuned.met
    for trial in tuned.trials:
        assert trial.score is not None
        assert 0 <= trial.score.value <= 1
    assert len({trial.score.float_value for trial in tuned.trials if trial.score is not None}) == 1


def test_a_largest_drop_needs_a_task() -> None:
    with pytest.raises(RecipeError, match="task"):
        tune(samples(4), requirements=Requirements(max_drop=Drop(0.1)))


def test_agreement_is_no_task_that_can_drop() -> None:
    with pytest.raises(RecipeError, match="min-sqnr"):
        tune(samples(4), task=TaskCheck("agreement", samples(2)))


def test_a_group_is_never_all_that_is_quantized(found: tuple[octavo.Tuned, Path]) -> None:
    best = found[0].trials[0]
    assert best.result is not None
    for group in groups(best.result.plan, target("ort-cpu")):
        assert group.nodes < set(best.result.plan.nodes)


def test_what_is_left_float_is_no_longer_quantized_at_run_time(found: tuple[octavo.Tuned, Path]) -> None:
    mixed = next(trial for trial in found[0].trials if trial.name == "mixed")
    assert set(mixed.candidate.recipe.dynamic_nodes) == {"first", "second"}
    assert without_layers(mixed.candidate, ["first"]).recipe.dynamic_nodes == ("second",)
    once = without_layers(mixed.candidate, ["first"])
    twice = without_layers(once, ["second", "third"])
    assert once.name == f"{mixed.candidate.name}, 1 layer float"
    assert twice.name == f"{mixed.candidate.name}, 3 layers float"
    assert mixed.result is not None
    linear = [g for g in groups(mixed.result.plan, target("ort-cpu")) if g.words == "linear layers"]
    assert without_groups(mixed.candidate, linear).recipe.dynamic_nodes == ()


@pytest.mark.usefixtures("_untimed")
def test_a_trial_that_breaks_is_a_line_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo import pipeline

    real = pipeline.quantize

    def broken(source: Any, data: Any, recipe: octavo.Recipe, *rest: Any) -> Any:
        if recipe.steps:
            raise ValueError("inhomogeneous shape")
        return real(source, data, recipe, *rest)

    monkeypatch.setattr(pipeline, "quantize", broken)
    tuned = tune(samples(8))
    assert tuned.met
    assert "unexpected error: ValueError: inhomogeneous shape" in str(tuned)


@pytest.mark.usefixtures("_untimed")
def test_the_first_convolutions_are_left_float_once() -> None:
    options: dict[str, Any] = {"threads": 1, "seconds": 0.02, "requirements": LENIENT, "engine": "serial"}
    deep = tuned_by(many_convs(16), samples(12), **options)
    trial = next(one for one in deep.trials if one.name.endswith("first 2 convolutions float"))
    assert trial.error is None
    assert trial.result is not None
    assert {"conv0", "conv1"}.isdisjoint(trial.result.plan.nodes)
    assert "conv2" in trial.result.plan.nodes
    shallow = tuned_by(many_convs(3), samples(12), **options)
    assert any(one.name.endswith("first convolution float") for one in shallow.trials)


def test_steps_build_on_the_float_start_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def starts_float(file: Any) -> bool:
        model = io.load(file)
        return any(node.name == "conv0" and node.inputs[1].is_initializer() for node in model.graph)

    def speeds(_: Any, models: Any, *rest: Any, **more: Any) -> list[Ratio]:
        return [Ratio(2, 2, 2) if starts_float(one) else Ratio(1.5, 1.5, 1.5) for one in models]

    monkeypatch.setattr(runner, "speeds", speeds)
    found = tuned_by(many_convs(4), samples(12), threads=1, requirements=LENIENT, engine="serial")
    names = {trial.name for trial in found.trials}
    assert "static, first convolution float, repaired" in names
    assert "static, repaired" not in names
    assert found.result is not None
    assert "conv0" not in found.result.plan.nodes


def test_trials_that_differ_in_numbers_alone_have_one_speed(found: tuple[octavo.Tuned, Path]) -> None:
    speeds = {trial.name: trial.speed for trial in found[0].trials}
    assert speeds["static, clipped"] == speeds["static, averaged ranges"]
    assert speeds["static"] != speeds["dynamic"]


def test_a_model_with_a_scalar_output_is_tuned() -> None:
    proto = conv_and_linear()
    proto.graph.node.append(node("ReduceMean", ["logits"], ["mean"], "mean", keepdims=0))
    proto.graph.output.append(tensor("mean", []))
    tuned = octavo.tune(proto, samples(8), seconds=0.05, time_limit=5)
    assert tuned.best is not None
    assert "mean" in tuned.best.parts


def test_a_model_that_runs_on_batches_of_the_data_alone_is_tuned() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 64)).astype(np.float32)
    proto = model(
        [node("MatMul", ["x", "w"], ["h"]), node("Reshape", ["h", "by"], ["y"])],
        [tensor("x", ["n", 64])],
        [tensor("y", [12, "m"])],
        {"w": weight, "by": np.array([12, -1], np.int64)},
    )  # no size of a batch that would be guessed is divisible by 12
    data = [{"x": rng.standard_normal((12, 64)).astype(np.float32)} for _ in range(8)]
    made = tuned_by(proto, data, threads=1, seconds=0.02, requirements=LENIENT, engine="serial")
    assert {trial.name: trial.error for trial in made.trials}["dynamic"] is None


def test_functions_that_unfold_without_bound_are_refused_before_the_runtime_sees_them() -> None:
    def doubled(name: str, callee: str | None) -> onnx.FunctionProto:
        body = [node(callee or "Relu", ["p"], ["t"], domain="own" if callee else ""),
                node(callee or "Relu", ["t"], ["q"], domain="own" if callee else "")]  # fmt: skip
        imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
        return onnx.helper.make_function("own", name, ["p"], ["q"], body, imports)

    functions = [doubled(f"f{i}", f"f{i - 1}" if i else None) for i in range(24)]
    call = node("f23", ["x"], ["y"], "call", domain="own")
    proto = model([call], [tensor("x", [2])], [tensor("y", [2])], domains={"own": 1}, functions=functions)
    data = [{"x": np.ones(2, np.float32)}]
    for verb in (octavo.tune, octavo.quantize, octavo.evaluate, octavo.bench):
        with pytest.raises(ModelError, match="unfold"):
            verb(proto, data)


def uneven(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Kernels whose channels differ in size by a hundred: one scale does not fit them all."""
    sizes = np.logspace(0, -2, 8, dtype=np.float32).reshape(8, 1, 1, 1)
    for one in proto.graph.initializer:
        one.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(one) * sizes * 4, one.name))
    return proto


def names_with_an_outlier(proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[str]:
    def static_is_fast(_: Any, models: Any, *rest: Any, **options: Any) -> list[Ratio]:
        fast = [isinstance(one, Path) and has_static_scales(one) for one in models]
        return [Ratio(2, 2, 2) if one else Ratio(1, 1, 1) for one in fast]

    monkeypatch.setattr(runner, "speeds", static_is_fast)
    data = samples(64)
    data[9] = {"x": data[9]["x"] * 12}
    tuned = tuned_by(proto, data, threads=1, engine="serial", effort="standard", **more)
    return [trial.name for trial in tuned.trials]


def test_weights_are_rounded_with_care_only_where_their_rounding_loses_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_channel = names_with_an_outlier(many_convs(4), monkeypatch)
    assert "static, averaged ranges" in by_channel
    assert not [name for name in by_channel if "repaired" in name]
    recipe = target("ort-cpu").static_recipe.but(steps=())
    whole = recipe.but(weights=recipe.weights.but(granularity=octavo.PerTensor()))
    together = names_with_an_outlier(uneven(many_convs(4)), monkeypatch, recipe=whole)
    assert [name for name in together if "repaired" in name]


def test_channels_are_equalized_only_where_weights_have_one_scale() -> None:
    recipe = target("ort-cpu").static_recipe.but(steps=())
    by_channel = Candidate("static", recipe, "")
    together = recipe.but(weights=recipe.weights.but(granularity=octavo.PerTensor()))
    averaged = recipe.activations.but(method=octavo.MinMax(average=True))
    best = Candidate("static, averaged ranges", recipe.but(activations=averaged), "")
    assert repaired(by_channel, best).recipe.steps == ("smoothquant", "clip", "rounding", "bias-correction")
    assert repaired(by_channel, best).recipe.activations == averaged
    assert "equalize" in repaired(Candidate("static", together, ""), best).recipe.steps
