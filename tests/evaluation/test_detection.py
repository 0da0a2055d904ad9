"""Detection: decoders on made outputs, average precision against pycocotools, and bad annotations."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import tensor

import octavo
from evaluation.made import coco_file, constant_output, save
from octavo.errors import DataError, ModelError, RecipeError
from octavo.evaluation.detection import coco, decoders
from octavo.evaluation.detection.annotations import COCO_80, Annotations, Numbering
from octavo.evaluation.detection.boxes import Frame, Limits, suppress
from octavo.evaluation.image_samples import ImageFeeds

FRAME = Frame(32, 16, (0.5, 0.5), (0.0, 4.0), (16, 16))  # an image of 32 × 16 in a square of 16
WANTED = np.array([[4.0, 2.0, 12.0, 10.0], [16.0, 4.0, 30.0, 14.0]])  # in the image
CLASSES, SCORES = [1, 0], [0.9, 0.6]


def inside() -> np.ndarray:
    """The wanted boxes as corners in the model's input."""
    return WANTED * 0.5 + np.array([0.0, 4.0, 0.0, 4.0])


def centred(boxes: np.ndarray) -> np.ndarray:
    return np.column_stack([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]])


def filled(rows: np.ndarray, count: int = 200) -> np.ndarray:
    """Rows among many that say nothing."""
    table = np.zeros((count, rows.shape[1]), np.float32)
    table[[7, 90]] = rows
    return table


def per_class(objectness: float = 1.0) -> np.ndarray:
    table = np.zeros((2, 2))
    table[0, CLASSES[0]], table[1, CLASSES[1]] = SCORES[0] / objectness, SCORES[1] / objectness
    return table


def yolov8() -> dict[str, np.ndarray]:
    return {"output0": filled(np.column_stack([centred(inside()), per_class()])).T[None]}


def yolov5() -> dict[str, np.ndarray]:
    rows = np.column_stack([centred(inside()), np.full(2, 0.95), per_class(0.95)])
    return {"output": filled(rows)[None]}


def end_to_end() -> dict[str, np.ndarray]:
    rows = np.column_stack([inside(), SCORES, CLASSES])
    return {"output": filled(rows)[None].astype(np.float32)}


def yolov3() -> dict[str, np.ndarray]:
    boxes, scores = np.zeros((1, 50, 4), np.float32), np.zeros((1, 2, 50), np.float32)
    boxes[0, [3, 9]] = WANTED[:, [1, 0, 3, 2]]
    scores[0, CLASSES, [3, 9]] = SCORES
    return {"boxes": boxes, "scores": scores, "indices": np.array([[0, CLASSES[0], 3], [0, CLASSES[1], 9]])}


def ssd(relative: bool) -> dict[str, np.ndarray]:
    boxes = inside() / 16 if relative else inside()
    return {
        "bboxes": boxes[None].astype(np.float32),
        "labels": np.array([CLASSES]),
        "scores": np.array([SCORES], np.float32),
    }


def ssd_raw() -> dict[str, np.ndarray]:
    scores = np.zeros((2, 3))
    scores[:, 1:] = per_class()
    scores[:, 0] = 1 - scores[:, 1:].sum(axis=1)
    table = filled(np.column_stack([inside() / 16, scores]))
    table[table[:, 4:].sum(axis=1) == 0, 4] = 1.0
    return {"boxes": table[None, :, :4], "scores": table[None, :, 4:]}


OUTPUTS: dict[str, dict[str, np.ndarray]] = {
    "yolov8": yolov8(),
    "yolov5": yolov5(),
    "yolo-end-to-end": end_to_end(),
    "yolov3": yolov3(),
    "ssd": ssd(False),
    "ssd ": ssd(True),
    "ssd-raw": ssd_raw(),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_head_is_recognized_and_read(name: str) -> None:
    outputs = OUTPUTS[name]
    assert decoders.recognized(outputs) == name.strip()
    (found,) = decoders.decode("auto", outputs, [FRAME], Limits())
    np.testing.assert_allclose(found.boxes, WANTED, atol=1e-4)
    np.testing.assert_allclose(found.scores, SCORES, atol=1e-6)
    assert found.classes.tolist() == CLASSES


def test_feature_maps_of_yolov3_are_decoded_with_their_anchors() -> None:
    maps = {f"m{side}": np.full((1, 3 * 7, side, side), -20.0, np.float32) for side in (4, 2, 1)}
    frame = Frame(32, 32, (1.0, 1.0), (0.0, 0.0), (32, 32))
    one = maps["m4"].reshape(1, 3, 7, 4, 4)  # stride 8; cell (2, 1), second anchor 16 × 30
    one[0, 1, :, 1, 2] = [0.0, 0.0, np.log(0.5), np.log(0.5), 20.0, -20.0, 20.0]
    assert decoders.recognized(maps) == "yolov3-heads"
    (found,) = decoders.decode("auto", maps, [frame], Limits())
    np.testing.assert_allclose(found.boxes, [[20 - 4, 12 - 7.5, 20 + 4, 12 + 7.5]], atol=1e-4)
    assert found.classes.tolist() == [1]


def test_suppression_keeps_the_best_of_what_overlaps() -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [20, 0, 30, 10]], float)
    assert suppress(boxes, np.array([0.5, 0.9, 0.4]), 0.6).tolist() == [1, 2]
    assert suppress(boxes, np.array([0.5, 0.9, 0.4]), 0.9).tolist() == [1, 0, 2]


def test_outputs_of_no_detector_are_told() -> None:
    with pytest.raises(ModelError, match="no known detector"):
        decoders.decode("auto", {"y": np.zeros((1, 1000))}, [FRAME], Limits())
    with pytest.raises(ModelError, match="can't be read by the decoder 'ssd'"):
        decoders.decode("ssd", {"y": np.zeros((1, 1000))}, [FRAME], Limits())
    with pytest.raises(RecipeError, match="did you mean 'yolov8'"):
        decoders.known("yolo8")


def test_class_numbers_become_category_numbers() -> None:
    classes = np.array([0, 1])
    assert Numbering("auto", (1, 3)).of(classes, 2, "yolov8").tolist() == [1, 3]
    assert Numbering("auto", (1, 3)).of(classes, 2, "ssd").tolist() == [-1, 1]
    assert Numbering("id", (1, 3)).of(np.array([3, 2]), None, "yolov8").tolist() == [3, -1]
    assert Numbering("auto", (1, 13)).of(np.array([0, 11, 12]), 80, "yolov8").tolist() == [1, 13, -1]
    assert len(COCO_80) == 80
    with pytest.raises(DataError, match=r"5 classes.* 2 categories"):
        Numbering("auto", (1, 3)).of(classes, 5, "yolov8")


def random_case(seed: int) -> tuple[dict[str, Any], list[int], list[np.ndarray]]:
    """Annotations with crowds, and detections near them and elsewhere."""
    rng = np.random.default_rng(seed)
    images = list(range(1, 25))
    truths, found = [], []
    for image in images:
        rows = []
        for _ in range(rng.integers(0, 5)):
            box = [*rng.uniform(0, 60, 2), *rng.uniform(4, 30, 2)]
            category = int(rng.choice([1, 2, 5]))
            truths.append(
                {
                    "id": len(truths),
                    "image_id": image,
                    "category_id": category,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": int(rng.random() < 0.1),
                }
            )
            for _ in range(rng.integers(0, 3)):
                moved = np.array(box) + rng.normal(0, 2, 4)
                rows.append([*moved[:2], *np.abs(moved[2:]), round(rng.random(), 2), category])
        rows += [[*rng.uniform(0, 60, 4), rng.random(), rng.choice([1, 2, 5])] for _ in range(2)]
        found.append(np.array(rows, float).reshape(-1, 6))
    content = {
        "images": [{"id": p, "file_name": f"{p}.jpg"} for p in images],
        "annotations": truths,
        "categories": [{"id": c, "name": str(c)} for c in (1, 2, 5, 7)],
    }
    return content, images, found


@pytest.mark.parametrize("seed", range(4))
def test_average_precision_is_cocos_own(seed: int) -> None:
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    content, images, found = random_case(seed)
    annotations = Annotations(Path("made.json"), content)
    matches = coco.matched(annotations, images, [1, 2, 5, 7], found)
    truth = coco.ground_truth(annotations)
    with contextlib.redirect_stdout(io.StringIO()):
        run = cocoeval.COCOeval(truth, truth.loadRes(coco.results(images, found)), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    assert coco.mean_precision(matches) == pytest.approx(run.stats[0], abs=1e-12)
    assert coco.mean_precision(matches, coco.IOU_50) == pytest.approx(run.stats[1], abs=1e-12)
    assert coco.mean_precision(matches, coco.IOU_75) == pytest.approx(run.stats[2], abs=1e-12)
    assert {one.name for one in coco.class_precision(matches, annotations.categories)} == {"1", "2", "5"}


def test_a_resample_counts_images_as_often_as_it_drew_them() -> None:
    pytest.importorskip("pycocotools")
    content, images, found = random_case(9)
    annotations = Annotations(Path("made.json"), content)
    matches = coco.matched(annotations, images, [1, 2, 5], found)
    half = np.arange(0, 24, 2)
    alone = coco.matched(annotations, [images[i] for i in half], [1, 2, 5], [found[i] for i in half])
    assert coco.mean_precision(matches[half]) == pytest.approx(coco.mean_precision(alone), abs=1e-12)
    twice = np.concatenate([half, half])
    assert coco.mean_precision(matches[twice]) == pytest.approx(coco.mean_precision(alone), abs=1e-9)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """Three images of 32 × 16 with the wanted boxes."""
    from PIL import Image

    folder = tmp_path / "val"
    folder.mkdir()
    names = [("a.png", 4), ("b.png", 8), ("c.png", 9)]
    truths = []
    for name, number in names:
        Image.new("RGB", (32, 16), (90, 90, 90)).save(folder / name)
        for category, box in zip((3, 1), WANTED, strict=True):
            truths.append((number, category, [*box[:2], *(box[2:] - box[:2])]))
    coco_file(tmp_path / "val.json", names, truths)
    return folder


def detector(outputs: dict[str, np.ndarray], path: Path) -> Path:
    return save(constant_output(outputs), path)


@pytest.mark.parametrize("name", ["yolov8", "yolov5", "yolo-end-to-end"])
def test_a_detector_that_finds_everything_scores_one(name: str, scene: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    model = detector(OUTPUTS[name], tmp_path / "m.onnx")
    result = octavo.evaluate(model, scene, "detection", annotations=tmp_path / "val.json")
    assert (result["mAP"], result["AP50"], result.samples) == (pytest.approx(1.0), pytest.approx(1.0), 3)
    assert {(one.name, one.count) for one in result.per_class} == {("cat", 3), ("dog", 3)}


def test_categories_can_be_filtered_and_annotations_found_beside(scene: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    half = yolov8()
    half["output0"][:, 5] = 0.0  # no dogs
    model = detector(half, tmp_path / "m.onnx")
    assert octavo.evaluate(model, scene, "detection")["mAP"] == pytest.approx(0.5)
    assert octavo.evaluate(model, scene, "detection", categories=["cat"])["mAP"] == pytest.approx(1.0)
    whole = detector(yolov8(), tmp_path / "whole.onnx")
    result = octavo.evaluate(model, scene, "detection", against=whole)
    assert result.differences[0].value == pytest.approx(-0.5)
    none = yolov8()
    none["output0"][:, 4:] = 0.0
    assert octavo.evaluate(detector(none, tmp_path / "n.onnx"), scene, "detection")["mAP"] == 0.0
    with pytest.raises(RecipeError, match="no category 'cats'; did you mean 'cat'"):
        octavo.evaluate(model, scene, "detection", categories=["cats"])


def test_the_letterbox_frame_is_where_the_image_lies(scene: Path) -> None:
    from octavo.model.runtime.session import InputSpec

    spec = InputSpec("image", np.dtype(np.float32), (1, 3, 16, 16))
    feed, (frame,) = ImageFeeds.of([spec], "yolo-letterbox").feed([scene / "a.png"], None)
    assert (frame.scale, frame.offset, frame.input_size) == ((0.5, 0.5), (0.0, 4.0), (16, 16))
    grey = np.float32(114) / np.float32(255)
    assert (feed["image"][0, :, :4] == grey).all()
    assert (feed["image"][0, :, 4:12] == np.float32(90) / np.float32(255)).all()


def test_bad_annotations_are_told(scene: Path, tmp_path: Path) -> None:
    model = detector(yolov8(), tmp_path / "m.onnx")

    def fails(kind: type[Exception], words: str, **options: Any) -> None:
        with pytest.raises(kind, match=words):
            octavo.evaluate(model, scene, "detection", **options)

    broken = tmp_path / "broken.json"
    broken.write_text("{")
    fails(DataError, "is not JSON", annotations=broken)
    broken.write_text("[]")
    fails(DataError, "has no list 'images'", annotations=broken)
    content = json.loads((tmp_path / "val.json").read_text())
    content["annotations"][0].pop("bbox")
    broken.write_text(json.dumps(content))
    fails(DataError, "COCO annotations file: KeyError 'bbox'", annotations=broken)
    fails(DataError, "There is no annotations file", annotations=tmp_path / "no.json")
    fails(RecipeError, "no numbering 'ids'", numbering="ids")
    fails(RecipeError, "crops images", preprocess="imagenet")
    (scene / "b.png").unlink()
    fails(DataError, "1 of 3 images")
    (tmp_path / "val.json").unlink()
    fails(DataError, "needs annotations.* no JSON file")


def test_a_detector_of_other_classes_is_told(scene: Path, tmp_path: Path) -> None:
    model = detector({"output0": np.full((1, 9, 200), 0.5, np.float32)}, tmp_path / "m.onnx")
    with pytest.raises(DataError, match="5 classes"):
        octavo.evaluate(model, scene, "detection")


def test_an_input_for_the_images_size_gets_it(scene: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    inputs = [tensor("input_1", [1, 3, 16, 16]), tensor("image_shape", [1, 2])]
    model = save(constant_output(yolov3(), inputs), tmp_path / "m.onnx")
    assert octavo.evaluate(model, scene, "detection")["mAP"] == pytest.approx(1.0)


def test_the_readers_and_the_evaluator_of_the_examples(scene: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    from octavo.evaluation import ImageNetDataReader, YoloV3DataReader, YoloV3Evaluator

    model = detector(yolov8(), tmp_path / "m.onnx")
    results: list[dict[str, Any]] = []
    for start in (0, 2):
        reader = YoloV3DataReader(
            scene, model_path=model, start_index=start, size_limit=2, is_evaluation=True,
            annotations=tmp_path / "val.json",
        )  # fmt: skip
        evaluator = YoloV3Evaluator(model, reader, categories=(1, 3))
        evaluator.predict()
        results += evaluator.get_result()
    assert sorted({one["image_id"] for one in results}) == [4, 8, 9]
    assert evaluator.evaluate(results, tmp_path / "val.json")["mAP"] == pytest.approx(1.0)
    batches = YoloV3DataReader(scene, model_path=model, batch_size=2)
    first, second = batches.get_next(), batches.get_next()
    assert first is not None and second is not None
    assert set(first) == {"image"}
    assert (len(first["image"]), len(second["image"]), batches.get_next()) == (2, 1, None)
    batches.rewind()
    assert batches.get_next() is not None
    assert len(list(iter(ImageNetDataReader(scene, model).get_next, None))) == 3
    with pytest.raises(RecipeError, match="is_evaluation=True"):
        YoloV3Evaluator(model, YoloV3DataReader(scene, model_path=model))
    with pytest.raises(DataError, match="none from number 3"):
        YoloV3DataReader(scene, model_path=model, start_index=3)
