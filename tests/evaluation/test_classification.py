"""Classification: every form of labelled data, and what is wrong with bad ones."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from evaluation.made import class_folders, colour_classifier, colour_images, constant_output, save
from octavo.errors import DataError, ModelError, RecipeError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fashion_mnist"
UNIT: dict[str, Any] = {"preprocess": "unit"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(colour_classifier(), tmp_path / "model.onnx")


def test_folders_are_classes_in_alphabetical_order(model: Path, tmp_path: Path) -> None:
    result = octavo.evaluate(model, class_folders(tmp_path / "val", (3, 2, 4)), **UNIT)
    assert result["top1"] == 1.0
    assert result.samples == 9
    assert [(one.name, one.count) for one in result.per_class] == [
        ("a_red", 3),
        ("b_green", 2),
        ("c_blue", 4),
    ]


def test_a_list_of_classes_says_which_folder_is_which(model: Path, tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "val")
    names = tmp_path / "names.txt"
    names.write_text("b_green\na_red\nc_blue\n")
    assert octavo.evaluate(model, folder, classes=names, **UNIT)["top1"] == pytest.approx(1 / 3)
    swapped = save(colour_classifier(swapped=True), tmp_path / "swapped.onnx")
    assert octavo.evaluate(swapped, folder, classes=names, **UNIT)["top1"] == 1.0


def test_some_samples_of_class_folders_are_of_all_classes(model: Path, tmp_path: Path) -> None:
    result = octavo.evaluate(model, class_folders(tmp_path / "val"), samples=3, **UNIT)
    assert [one.count for one in result.per_class] == [1, 1, 1]


@pytest.mark.parametrize("form", ["csv", "heading", "semicolon", "tsv", "txt", "json", "list", "objects"])
def test_labels_files_of_every_form(form: str, model: Path, tmp_path: Path) -> None:
    rows = colour_images(tmp_path / "val")
    text = {
        "csv": "\n".join(f"{n},{c}" for n, c in rows),
        "heading": "label,file_name\n" + "\n".join(f"{c},{n}" for n, c in rows),
        "semicolon": "\n".join(f"{n};{c}" for n, c in rows),
        "tsv": "\n".join(f"{n}\t{c}" for n, c in rows),
        "txt": "\n".join(f"{n} {c}" for n, c in rows) + "\n\n",
        "json": json.dumps(dict(rows)),
        "list": json.dumps([[n, c] for n, c in rows]),
        "objects": json.dumps([{"file_name": n, "label": c} for n, c in rows]),
    }[form]
    suffix = {"heading": "csv", "semicolon": "csv", "list": "json", "objects": "json"}.get(form, form)
    file = tmp_path / f"labels.{suffix}"
    file.write_text(text)
    assert octavo.evaluate(model, tmp_path / "val", labels=file, **UNIT)["top1"] == 1.0


def test_a_labels_file_can_be_the_data(model: Path, tmp_path: Path) -> None:
    rows = colour_images(tmp_path / "val")
    file = tmp_path / "dev.txt"
    file.write_text("\n".join(f"val/{name} {number}" for name, number in rows))
    assert octavo.evaluate(model, file, **UNIT)["top1"] == 1.0


def test_labels_beside_images_and_labels_by_place(model: Path, tmp_path: Path) -> None:
    rows = sorted(colour_images(tmp_path / "val"))
    (tmp_path / "val" / "labels.csv").write_text("\n".join(f"{n},{c}" for n, c in rows))
    assert octavo.evaluate(model, tmp_path / "val", **UNIT)["top1"] == 1.0
    images = octavo.images(tmp_path / "val", "unit")
    assert octavo.evaluate(model, images, labels=[number for _, number in rows])["top1"] == 1.0


def test_arrays_archives_and_pairs_give_the_same_figure(tmp_path: Path) -> None:
    with np.load(EXAMPLE / "test.npz") as archive:
        pixels, labels = archive["pixels"][:60], archive["labels"][:60]
    np.savez(tmp_path / "some.npz", pixels=pixels, labels=labels)
    floats = pixels.astype(np.float32) / np.float32(255)
    pairs = [({"image": floats[i : i + 20]}, labels[i : i + 20]) for i in range(0, 60, 20)]
    model = EXAMPLE / "model.onnx"
    figures = [
        octavo.evaluate(model, tmp_path / "some.npz", scale=255)["top1"],
        octavo.evaluate(model, (floats, labels))["top1"],
        octavo.evaluate(model, pairs)["top1"],
        octavo.evaluate(model, floats, labels=labels, batch=7)["top1"],
    ]
    assert len(set(figures)) == 1
    assert figures[0] > 0.85


def test_a_fixed_batch_is_filled_up_and_counts_each_sample_once(tmp_path: Path) -> None:
    fixed = save(colour_classifier(4), tmp_path / "four.onnx")
    result = octavo.evaluate(fixed, class_folders(tmp_path / "val"), **UNIT)
    assert (result.samples, result["top1"]) == (9, 1.0)
    with pytest.raises(ModelError, match="batches of 4"):
        octavo.evaluate(fixed, tmp_path / "val", batch=3, **UNIT)


def test_scores_with_trailing_ones_are_scores(tmp_path: Path) -> None:
    path = save(colour_classifier(rank=4), tmp_path / "four.onnx")
    assert octavo.evaluate(path, class_folders(tmp_path / "val"), **UNIT)["top1"] == 1.0


def test_two_models_side_by_side(model: Path, tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "val", (10, 10, 10))
    swapped = save(colour_classifier(swapped=True), tmp_path / "swapped.onnx")
    result = octavo.evaluate(swapped, folder, against=model, **UNIT)
    difference = result.differences[0]
    assert difference.value == pytest.approx(1 / 3 - 1)
    assert difference.low < difference.value < difference.high < 0
    assert difference.significant
    assert difference.p_value is not None and difference.p_value < 0.001
    assert "points ±" in str(result)
    assert "worse" in str(result)
    same = octavo.evaluate(model, folder, against=model, **UNIT)
    assert same.differences[0].value == 0
    assert not same.differences[0].significant


def test_the_dictionary_says_everything(model: Path, tmp_path: Path) -> None:
    data = octavo.evaluate(model, class_folders(tmp_path / "val"), against=model, **UNIT).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["schema"] == 1
    assert {score["name"] for score in data["scores"]} == {"top1", "top5"}
    assert len(data["per_class"]["model"]) == len(data["per_class"]["against"]) == 3
    assert data["settings"]["preprocess"] == "unit"


def fails(kind: type[Exception], words: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(kind, match=words) as caught:
        octavo.evaluate(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_missing_and_wrong_labels_are_told(model: Path, tmp_path: Path) -> None:
    rows = colour_images(tmp_path / "val")
    fails(DataError, "have no labels", model, tmp_path / "val", **UNIT)
    file = tmp_path / "labels.csv"
    file.write_text("\n".join(f"x{n},{c}" for n, c in rows))
    fails(DataError, "9 of 9 images", model, tmp_path / "val", labels=file, **UNIT)
    file.write_text("\n".join(str(c) for _, c in rows[:4]))
    fails(DataError, "9 samples.* 4 labels", model, tmp_path / "val", labels=file, **UNIT)
    file.write_text("\n".join(f"{n},{c + 1}" for n, c in rows))
    fails(DataError, "label 3.* 3 classes", model, tmp_path / "val", labels=file, **UNIT)
    assert octavo.evaluate(model, tmp_path / "val", labels=file, offset=-1, **UNIT)["top1"] == 1.0
    file.write_text("\n".join(f"{n},red" for n, c in rows))
    fails(DataError, "'red', which is not a number", model, tmp_path / "val", labels=file, **UNIT)
    fails(
        DataError,
        "not one of the classes",
        model,
        tmp_path / "val",
        labels=file,
        classes=["rad", "x", "y"],
        **UNIT,
    )
    file.write_text("a,1\nb,2,3\n")
    fails(DataError, "Line 2 of .* has 3 fields", model, tmp_path / "val", labels=file, **UNIT)
    file.write_text("")
    fails(DataError, "holds no label", model, tmp_path / "val", labels=file, **UNIT)
    fails(DataError, "There is no labels file", model, tmp_path / "val", labels=tmp_path / "no.csv", **UNIT)
    fails(DataError, "There is no data", model, tmp_path / "nowhere", **UNIT)


def test_folders_that_are_not_the_models_classes_are_told(model: Path, tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "val")
    for file in (folder / "c_blue").iterdir():
        file.unlink()
    (folder / "c_blue").rmdir()
    fails(DataError, "2 class folders.* 3 classes", model, folder, **UNIT)


def test_archives_without_labels_and_unscaled_pixels_are_told(tmp_path: Path) -> None:
    model = EXAMPLE / "model.onnx"
    np.savez(tmp_path / "a.npz", image=np.zeros((4, 1, 28, 28), np.float32))
    fails(DataError, "no labels; add them", model, tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", image=np.zeros((4, 1, 28, 28), np.uint8), labels=np.zeros(4, int))
    fails(DataError, "scale=255", model, tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", image=np.zeros((4, 1, 28, 28), np.float32), labels=np.zeros(3, int))
    fails(DataError, "4 samples.* 3 labels", model, tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 broken")
    fails(DataError, "can't be read as numpy data", model, tmp_path / "a.npz")
    fails(DataError, "Sample 0 has no label", model, [{"image": np.zeros((1, 1, 28, 28), np.float32)}])


def test_a_corrupt_image_is_named(model: Path, tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "val")
    (folder / "a_red" / "r1.png").write_bytes(b"\x89PNG no image")
    fails(DataError, r"r1\.png can't be read as an image", model, folder, **UNIT)


def test_models_with_other_outputs_are_told(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "val")
    boxes = save(constant_output({"boxes": np.zeros((1, 6, 50), np.float32)}), tmp_path / "boxes.onnx")
    fails(ModelError, "is this a classifier", boxes, folder, **UNIT)
    two = {"a": np.zeros((1, 4), np.float32), "b": np.zeros((1, 4), np.float32)}
    double = save(constant_output(two), tmp_path / "double.onnx")
    fails(ModelError, "output='a'", double, folder, **UNIT)
    fails(RecipeError, "no output 'c'", double, folder, output="c", **UNIT)


def test_scores_that_are_no_numbers_are_told(tmp_path: Path) -> None:
    path = save(constant_output({"scores": np.full((1, 3), np.nan, np.float32)}), tmp_path / "nan.onnx")
    fails(ModelError, "scores of sample 0 hold NaN", path, class_folders(tmp_path / "val"), **UNIT)


def test_feeds_of_many_samples_and_readers_stop_where_they_should(model: Path) -> None:
    images = np.zeros((6, 3, 8, 8), np.float32)
    images[:, 2] = 1.0
    feeds = [({"image": images}, [2, 2, 2, 2, 2, 0])]
    assert octavo.evaluate(model, feeds, samples=5)["top1"] == 1.0

    class Reader:
        def __init__(self) -> None:
            self.left = [{"image": images[:1]} for _ in range(3)]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.left.pop() if self.left else None

    assert octavo.evaluate(model, Reader(), labels=[2, 2, 1])["top1"] == pytest.approx(2 / 3)
    fails(DataError, "There are 4 labels", model, Reader(), labels=[2, 2, 1, 1])


def test_a_data_frame_where_pandas_is_there(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = octavo.evaluate(model, class_folders(tmp_path / "val"), against=model, **UNIT)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(RecipeError, match="needs pandas"):
        result.to_pandas()
    fake = types.SimpleNamespace(json_normalize=lambda rows: rows)
    monkeypatch.setitem(sys.modules, "pandas", fake)
    rows: Any = result.to_pandas()
    assert [row["name"] for row in rows] == ["top1", "top5", "top1", "top5"]


def test_wrong_requests_are_told(model: Path, tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "val")
    fails(RecipeError, "did you mean 'classification'", model, folder, "clasification")
    fails(RecipeError, "no option 'label'.* did you mean 'labels'", model, folder, label="x")
    fails(RecipeError, "samples must be at least 1", model, folder, samples=0)
    fails(ModelError, "There is no model at", tmp_path / "no.onnx", folder)
    fails(ModelError, "take the same inputs", model, folder, against=EXAMPLE / "model.onnx", **UNIT)
    fails(DataError, "preprocessing", model, folder)
