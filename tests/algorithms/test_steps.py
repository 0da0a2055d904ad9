from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from quantizing import run

import octavo
from octavo.algorithms import steps as stepping
from octavo.algorithms.layers.subject import Subject
from octavo.algorithms.steps import NAMES, Change, Phase, Refusal, StepReport
from octavo.algorithms.steps.smoothquant import SmoothQuant
from octavo.calibration.statistics import SumState
from octavo.cli.main import main
from octavo.errors import DataError, RecipeError
from octavo.model.files import io

from .nets import conv_chain, images, outlier_block, sentences
from .stepping import EVERYWHERE, PER_TENSOR, error

ALL = ("smoothquant", "equalize", "rounding", "bias-correction")


def test_options_are_read_from_the_text() -> None:
    assert stepping.step("smoothquant:alpha=0.7:fold=no") == SmoothQuant(alpha=0.7, fold=False)
    for auto in ("smoothquant:alpha=auto", "smoothquant:mul=auto"):
        assert stepping.step(auto) == SmoothQuant()
    for auto in ("bias-correction:layers=auto", "bias-correction:sequential=auto"):
        assert stepping.step(auto) == stepping.step("bias-correction")


@pytest.mark.parametrize(
    "text, words",
    [
        ("equalise", "Known: smoothquant, awq, cache, equalize"),
        ("smoothquant:beta=1", "has no option 'beta'"),
        ("smoothquant:alpha=big", "alpha must be a number or auto"),
        ("mixed-precision:min-sqnr=nan", "min-sqnr must be a number"),
        ("smoothquant:fold=perhaps", "must be yes or no"),
        ("smoothquant:alpha=7", "alpha must be between 0 and 1, not 7"),
        ("smoothquant:mul=-1", "mul must be between 0 and 1, not -1"),
        ("bias-correction:sequential=perhaps", "must be yes, no or auto"),
        ("bias-correction:layers=0", "1 or more"),
    ],
)
def test_what_can_not_be_read_is_said(text: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        stepping.step(text)


def test_a_step_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(RecipeError, match="listed twice"):
        stepping.steps(["equalize", "equalize:absorb=no"])


def test_steps_run_in_the_order_in_which_they_build_on_each_other() -> None:
    chosen = stepping.steps(["bias-correction", "rounding", "equalize"])
    assert [one.name for one in chosen] == ["equalize", "rounding", "bias-correction"]
    assert [one.name for one in stepping.of_phase(chosen, Phase.FLOAT)] == ["equalize"]


def test_every_step_has_a_summary_and_a_phase() -> None:
    for name in NAMES:
        kind = stepping.step_class(name)
        assert kind.name == name and kind.summary and isinstance(kind.phase, Phase)


def test_a_report_says_what_changed_and_what_was_left_alone() -> None:
    report = StepReport(
        "equalize",
        (Change("a", "scaled", 0.4, 0.1),),
        (Refusal("b", "it has no bias"), Refusal("c", "it has no bias")),
    )
    assert str(report) == "equalize: changed 1 of 3 layers, estimated error −75 %"
    clip = StepReport("clip", report.changed, report.refused, "narrowed", "ranges", total=16)
    assert str(clip) == "clip: narrowed 1 of 16 ranges, estimated error −75 %"
    none = StepReport("equalize", (), (*report.refused, Refusal("d", "its output is read twice")))
    assert str(none) == "equalize: changed none of 3 layers: it has no bias (2 of them)"
    assert str(StepReport("equalize")) == "equalize: nothing to change"


def test_all_steps_together_make_less_error_than_none() -> None:
    for proto, samples, fresh in (
        (conv_chain("Clip", gain=0.1), images(), images(4, seed=7)),
        (outlier_block(), sentences(), sentences(6, seed=9)),
    ):
        plain = error(proto, samples, fresh, PER_TENSOR)
        assert error(proto, samples, fresh, PER_TENSOR.but(steps=ALL)) < 0.5 * plain


@pytest.mark.parametrize("style", ["qdq", "qoperator"])
def test_the_result_is_no_larger_and_has_the_same_operators(style: str) -> None:
    proto, recipe = conv_chain("Clip"), EVERYWHERE.but(style=octavo.Style(style))
    plain = octavo.quantize(proto, images(), recipe=recipe)
    result = octavo.quantize(proto, images(), recipe=recipe.but(steps=ALL))
    assert result.bytes <= plain.bytes
    assert sorted(n.op_type for n in result.model.graph) == sorted(n.op_type for n in plain.model.graph)
    assert [report.step for report in result.steps] == list(ALL)


def test_dynamic_quantization_can_take_steps_with_data() -> None:
    proto, samples = outlier_block(), sentences()
    fresh = sentences(6, seed=9)
    plain = error(proto, [], fresh, octavo.W8)
    recipe = octavo.W8.but(steps=("smoothquant", "rounding"), placement=octavo.Placement.EVERYWHERE)
    assert error(proto, samples, fresh, recipe) < plain * 1.05


def test_statistics_of_steps_do_not_show_in_the_result() -> None:
    result = octavo.quantize(conv_chain(), images(), recipe=EVERYWHERE.but(steps=ALL))
    assert result.stats is not None
    assert not any(name.startswith("octavo/") for name in result.stats)
    assert any(note.startswith("rounding: ") for note in result.notes)


def test_processes_give_the_same_model() -> None:
    recipe = EVERYWHERE.but(steps=ALL)
    one, other = (
        octavo.quantize(conv_chain(), images(), recipe=recipe, engine=engine, workers=workers)
        for engine, workers in (("serial", None), ("processes", 2))
    )
    for name, array in run(one, images(1)[0]).items():
        np.testing.assert_allclose(run(other, images(1)[0])[name], array, atol=1e-2)


def test_steps_without_data_are_refused() -> None:
    with pytest.raises(DataError, match="need calibration data"):
        octavo.quantize(conv_chain(), recipe=octavo.W8.but(steps=("rounding",)))


def test_steps_and_saved_statistics_do_not_go_together() -> None:
    proto = conv_chain()
    stats = octavo.calibrate(proto, octavo.plan(proto, EVERYWHERE), images())
    with pytest.raises(RecipeError, match="instead of statistics"):
        octavo.quantize(proto, stats=stats, recipe=EVERYWHERE.but(steps=("rounding",)))


def test_a_recipe_with_steps_is_saved_and_read(tmp_path: Path) -> None:
    recipe = octavo.W8A8.but(steps=("smoothquant:alpha=0.5", "rounding"))
    recipe.save(tmp_path / "recipe.yaml")
    assert octavo.Recipe.load(tmp_path / "recipe.yaml") == recipe


def test_the_command_line_lists_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES)
    assert main(["steps", "equalize"]) == 0
    assert "equalize:absorb=yes" in capsys.readouterr().out


def test_the_command_line_takes_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(conv_chain(gain=0.1), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", x=np.concatenate([f["x"] for f in images()]))
    common = ["quantize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx")]
    common += ["--data", str(tmp_path / "c.npz")]
    assert main([*common, "--steps", "equalize,rounding", "--per", "tensor"]) == 0
    shown = capsys.readouterr().out
    assert "note: equalize: " in shown and "note: rounding: " in shown
    assert main([*common, "--steps", "rounding", "--dynamic"]) == 1
    assert "quantized at run time" in capsys.readouterr().err  # which pays for no Conv
    assert main([*common, "--steps", "equalise"]) == 2
    assert "did you mean 'equalize'?" in capsys.readouterr().err


def test_totals_merge_to_the_same_bits_in_any_order() -> None:
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((9, 3, 4))
    whole = SumState()
    for index, sample in enumerate(samples):
        whole.update(sample, index)
    left, right = SumState(), SumState()
    for index in (8, 1, 4, 3):
        left.update(samples[index], index)
    for index in (0, 7, 2, 6, 5):
        right.update(samples[index], index)
    assert left.merge(right).to_bytes() == right.merge(left).to_bytes() == whole.to_bytes()
    np.testing.assert_allclose(whole.total, samples.sum(0))
    assert SumState.from_bytes(whole.to_bytes()).to_bytes() == whole.to_bytes()
    with pytest.raises(DataError, match="fixed shape"):
        whole.update(np.zeros(3), 9)


def test_progress_counts_items_by_their_cost() -> None:
    told: list[tuple[str, int, int | None]] = []
    model = io.load(conv_chain())
    subject = Subject(model, octavo.W8A8, octavo.plan(conv_chain()), progress=lambda *said: told.append(said))
    assert list(subject.each("a", [1, 1, 2, 4], float)) == [1, 1, 2, 4]
    assert told == [("a", 0, 4), ("a", 0, 4), ("a", 1, 4), ("a", 2, 4)]
    assert list(subject.each("a", [])) == []
