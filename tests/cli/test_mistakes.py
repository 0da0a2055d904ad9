"""Mistakes that are easily made, and the sentence that each of them gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo.algorithms.steps.step import Refusal, StepReport
from octavo.cli.main import main
from octavo.errors import RecipeError, TableError


def _said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) in (1, 2)
    return capsys.readouterr().err


def test_a_missing_model_gets_the_file_with_a_similar_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _said(capsys, "quantize", "modell.onnx", "--data", "calib.npz")
    assert "There is no model at modell.onnx; did you mean 'model.onnx'?" in said


def test_missing_data_gets_the_file_with_a_similar_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _said(capsys, "quantize", "model.onnx", "--data", "calibr.npz")
    assert "There is no calibration data at calibr.npz; did you mean 'calib.npz'?" in said


def test_flat_images_are_told_how_to_be_reshaped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("flat.npz", image=np.zeros((4, 784), np.float32))
    said = _said(capsys, "quantize", "model.onnx", "--data", "flat.npz", "--plain")
    assert "reshape it: array.reshape(-1, 1, 28, 28)." in said


def test_a_folder_in_place_of_a_model_is_called_a_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _said(capsys, "quantize", ".", "--data", "calib.npz")
    assert ". is a folder" in said
    assert "-o OUT" in said


def test_a_plan_is_not_written_under_a_name_of_another_format(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "a plan is written as JSON" in _said(capsys, "plan", "model.onnx", "-o", "plan.yaml")
    assert not Path("plan.yaml").exists()


def test_a_file_that_is_not_text_is_not_a_plan(folder: Path) -> None:
    with pytest.raises(TableError, match=r"Plan calib\.npz is not text; give a file that Plan\.save"):
        octavo.Plan.load("calib.npz")


def test_an_unknown_task_gets_the_nearest_and_all_tasks(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"did you mean 'classification'.*The tasks are .*detection"):
        octavo.evaluate("model.onnx", "calib.npz", task="clasification")


def test_a_misspelt_name_of_the_package_gets_the_nearest() -> None:
    with pytest.raises(AttributeError, match="no attribute 'quantise'; did you mean 'quantize'"):
        _ = octavo.quantise  # type: ignore[attr-defined]


def test_a_misspelt_preset_of_images_is_refused_at_once(folder: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'imagenet'"):
        octavo.images(".", "imagenett")


def test_four_bits_in_a_model_of_convolutions_get_advice(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "model.onnx", "--weights", "int4", "-o", "out.onnx"]) == 0
    assert "--weights int4 is for matrix products" in capsys.readouterr().err


def test_a_step_with_one_refusal_speaks_of_one() -> None:
    report = StepReport("smoothquant", refused=(Refusal("a", "no gain"),), verb="smoothed", noun="groups")
    assert str(report) == "smoothquant: the only group was not smoothed: no gain"


def test_a_step_with_one_bias_speaks_of_a_bias() -> None:
    report = StepReport("bias", refused=(Refusal("a", "no gain"),), verb="corrected", noun="biases")
    assert str(report) == "bias: the only bias was not corrected: no gain"


@pytest.mark.parametrize("words", [("--data", ""), ("-o", ""), ("--recipe", "")])
def test_an_empty_value_is_called_empty(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    assert "is empty" in _said(capsys, "quantize", "model.onnx", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--threads 100000", "--threads 100000 is out of range"),
        ("--time-limit -3", "--time-limit -3.0 is not a time"),
        ("--max-size 0", "--max-size 0 allows no weights"),
        ("--scale 0", "'0' is not a number above 0"),
        ("--engine serial --workers 4", "--workers 4 can't be combined with --engine serial"),
        ("--exclude *", "excluded by '*' (13 Conv, 7 Clip, 6 Relu, 3 Add, 1 GlobalAveragePool)"),
        ("--preprocess imagenet", "arrays need no preprocess"),
    ],
)
def test_values_that_make_no_sense_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    said = _said(capsys, "quantize", "model.onnx", "-o", "x.onnx", "--data", "calib.npz", *words.split())
    assert message in said
    assert not Path("x.onnx").exists()


def test_data_that_is_cut_short_is_called_damaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("half.npz").write_bytes(Path("calib.npz").read_bytes()[:3000])
    assert "damaged or cut short" in _said(capsys, "quantize", "model.onnx", "--data", "half.npz")


def test_a_home_folder_that_the_shell_left_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert main(["inspect", "~/model.onnx"]) == 0
    assert main(["plan", "model.onnx", "--output=~/plan.json"]) == 0
    assert (folder / "plan.json").is_file()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"image": np.zeros((16, 28), np.float32)}, "along its first axis: [samples, 1, 28, 28]"),
        ({"image": np.array(["a", "b"])}, "along its first axis: [samples, 1, 28, 28]"),
        (
            {"image": np.zeros((2, 1, 28, 28), np.float32), "labels": np.arange(2)},
            "'labels', which is not an input of the model. Save the inputs alone: np.savez(path, image=…).",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_told_how_to_be_saved(
    folder: Path, capsys: pytest.CaptureFixture[str], arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez("odd.npz", **arrays)  # type: ignore[arg-type]
    assert message in _said(capsys, "quantize", "model.onnx", "--data", "odd.npz", "--plain", "-o", "o.onnx")
    assert not Path("o.onnx").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("quantize model.onnx -d calib.npz", "did you mean '--data'?"),
        ("quantize model.onnx --data calib.npz,more.npz", "Several files are given one by one"),
        ("quantize model.onnx --data calib.npz --weights 4", "did you mean 'int4'?"),
        ("quantize model.onnx --data calib.npz --exclude re:(", "write a name or a glob"),
        ("quantize model.onnx --data calib.npz --plain --evaluate classification", "give --max-drop"),
        ("quantize model.onnx --data damaged.png --preprocess unit --plain", "replace or remove it"),
        (
            "quantize model.onnx --data calib.npz --recipe list.yaml",
            "list.yaml: expected a mapping of settings",
        ),
        ("doctor model.onnx --data calibr.npz", "did you mean 'calib.npz'?"),
        ("quantize model.onnx --data calib.npz --plan list.yml", "does not exist; did you mean 'list.yaml'?"),
        ("quantize model.onnx --data calib.npz --recipe lists.yaml", "did you mean 'list.yaml'?"),
        ("quantize model.onnx --stats nothing.stats", "does not exist; check the path"),
        ("import-gguf list.gguf --graph model.onnx", "list.gguf does not exist; did you mean 'list.yaml'?"),
        ("quantize model.onnx --data calib.npz --size 32", "--size has no meaning for arrays"),
        ("quantize model.onnx --data calib.npz --compressed some", "--compressed can't be 'some'"),
        ("stats list model.stats", "octavo stats has no 'list'. It takes merge, show"),
    ],
)
def test_what_is_given_in_another_form_gets_the_right_one(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    Path("damaged.png").write_bytes(b"\x89PNG no more")
    Path("list.yaml").write_text("- W8A8\n")
    assert message in _said(capsys, *words.split())
    assert not Path("model.int8.onnx").exists()


def test_no_steps_is_a_choice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "model.onnx", "-o", "out.onnx", "--data", "calib.npz", "--steps", "none"]) == 0
    assert "bias-correction" not in capsys.readouterr().out
    made = octavo.quantize("model.onnx", "calib.npz", output="again.onnx", steps="none")
    assert Path("again.onnx").read_bytes() == Path("out.onnx").read_bytes()
    assert octavo.Recipe.from_dict({"base": "W8A8", "steps": "none"}).steps == made.recipe.steps == ()


def test_a_model_is_not_converted_to_an_older_opset(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "model.onnx", "-o", "old.onnx", "--opset", "7"]) == 0
    assert "models are not converted to older opsets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keyword", "called"),
    [
        ("per_channel", "per"),
        ("format", "style"),
        ("nodes_to_exclude", "exclude"),
        ("model_output", "output"),
    ],
)
def test_keywords_of_other_places_are_known_by_their_names_here(keyword: str, called: str) -> None:
    with pytest.raises(RecipeError, match=f"no keyword '{keyword}'; here it is called '{called}'"):
        octavo.quantize("model.onnx", **{keyword: True})


def test_types_may_be_those_of_numpy(folder: Path) -> None:
    recipe = octavo.W8A8.but(weights=np.uint8, activations=np.dtype("int8"))  # type: ignore[arg-type]
    assert recipe == octavo.W8A8.but(weights="uint8", activations="int8")
    assert octavo.Recipe(weights=np.int8, activations=None) == octavo.Recipe("int8", None)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="'float32' is not a quantized type"):
        octavo.quantize("model.onnx", "calib.npz", activations=np.float32)
    for wrong in ({"weights": 4}, {"activations": 8}):
        with pytest.raises(RecipeError, match="must be the name of a type, such as 'int8', or a Scheme"):
            octavo.W8A8.but(**wrong)
    assert octavo.W8A8.but(exclude=None) == octavo.W8A8


def test_an_output_in_the_place_of_data_is_told_so(folder: Path) -> None:
    with pytest.raises(octavo.DataError, match=r"output is output='out\.onnx'"):
        octavo.quantize("model.onnx", "out.onnx")
    with pytest.raises(octavo.ModelError, match="expanduser"):
        octavo.quantize("~/model.onnx")
