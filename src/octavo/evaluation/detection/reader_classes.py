"""Readers and an evaluator in the form of ONNX Runtime's examples: ``get_next()``, ``predict()``.

A reader goes through a folder of images from ``start_index`` on, ``size_limit`` of them (0: to the end).
With a ``batch_size`` above 1 that many images make one feed. A large set is evaluated in strides, each with
a reader of its own, and the results are joined::

    results = []
    for start in range(0, 5000, 500):
        reader = YoloV3DataReader(folder, model_path=path, start_index=start, size_limit=500, batch_size=20,
                                  is_evaluation=True)
        evaluator = YoloV3Evaluator(path, reader)
        evaluator.predict()
        results += evaluator.get_result()
    print(evaluator.evaluate(results, "instances_val2017.json"))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo.data.readers.image_files import images_below
from octavo.errors import DataError, RecipeError
from octavo.evaluation.detection import coco
from octavo.evaluation.detection.annotations import COCO_80, Annotations, Numbering
from octavo.evaluation.detection.boxes import Frame, Limits
from octavo.evaluation.image_samples import ImageFeeds
from octavo.evaluation.task import F64
from octavo.evaluation.tasks.detection import detected
from octavo.model.files import io
from octavo.model.runtime.samples import specs_of
from octavo.model.runtime.session import Session

_EVALUATION_KEYS = ("image_id", "image_name", "frame")  # what a reader for evaluation adds to a feed


class ImageReader:
    """Images of a folder as feeds: each ``get_next()`` returns one, and ``None`` at the end."""

    preprocess = "unit"

    def __init__(
        self,
        image_folder: str | Path,
        model_path: str | Path,
        *,
        start_index: int = 0,
        size_limit: int = 0,
        batch_size: int = 1,
        is_evaluation: bool = False,
        width: int | None = None,
        height: int | None = None,
        preprocess: str | None = None,
        annotations: str | Path | None = None,
    ) -> None:
        if start_index < 0 or size_limit < 0 or batch_size < 1:
            raise RecipeError(
                "start_index and size_limit must not be negative, and batch_size must be at least 1."
            )
        folder = Path(image_folder)
        if not folder.is_dir():
            raise DataError(f"There is no folder {folder}; give a folder of images.")
        everything = images_below(folder)
        stop = start_index + size_limit if size_limit else None
        self.files: list[Path] = everything[start_index:stop]
        if not self.files:
            raise DataError(f"{folder} holds {len(everything)} images, none from number {start_index} on.")
        size = (width, height) if width is not None and height is not None else None
        self.is_evaluation = is_evaluation
        self.batch_size = batch_size
        self.images = ImageFeeds.of(specs_of(io.load(model_path)), preprocess or self.preprocess, size)
        self._ids = _ids(annotations) if annotations is not None else {}
        self._feeds: Iterator[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return -(-len(self.files) // self.batch_size)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next feed; for evaluation with the names, ids and frames of the images."""
        if self._feeds is None:
            self._feeds = self._all()
        return next(self._feeds, None)

    def rewind(self) -> None:
        """Start again with the first image."""
        self._feeds = None

    def _all(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self.files), self.batch_size):
            part = self.files[start : start + self.batch_size]
            feed, frames = self.images.feed(part, None)
            made: dict[str, Any] = dict(feed)
            if self.is_evaluation:
                made["image_name"] = [path.name for path in part]
                made["image_id"] = [self.number(path) for path in part]
                made["frame"] = frames
            yield made

    def number(self, path: Path) -> int:
        """Return the id of an image: from annotations, else the number in its name."""
        if path.name in self._ids:
            return self._ids[path.name]
        digits = re.search(r"(\d+)\D*$", path.stem)
        if digits is None:
            raise DataError(
                f"{path.name} has no number in its name; give the annotations that have its id: annotations=…"
            )
        return int(digits[1])


class ImageNetDataReader(ImageReader):
    """Images for an ImageNet classifier: resized, cropped at the centre, normalized."""

    preprocess = "imagenet"


class YoloV3DataReader(ImageReader):
    """Images for a YOLO detector: letterboxed on grey, values 0 to 1."""

    preprocess = "yolo-letterbox"


class YoloV3Evaluator:
    """Run a detector over a reader's images, and score the results on COCO annotations."""

    def __init__(
        self,
        model_path: str | Path,
        data_reader: ImageReader,
        *,
        providers: Sequence[str] | None = None,
        decoder: str = "auto",
        categories: Sequence[int] = COCO_80,
        limits: Limits = Limits(),  # noqa: B008
    ) -> None:
        if not data_reader.is_evaluation:
            raise RecipeError(
                "An evaluator needs the ids of the images; make the reader with is_evaluation=True."
            )
        self._session = Session.open(model_path, providers=providers)
        self._reader = data_reader
        self._decoder = decoder
        self._numbering = Numbering("auto", tuple(categories))
        self._limits = limits
        self._results: list[dict[str, Any]] = []

    def predict(self) -> None:
        """Run the model on all images that the reader has not returned yet."""
        while (sample := self._reader.get_next()) is not None:
            feed = {name: value for name, value in sample.items() if name not in _EVALUATION_KEYS}
            frames: list[Frame] = sample["frame"]
            rows = detected(self._session.run(feed), frames, self._decoder, self._numbering, self._limits)
            self._results += coco.results(sample["image_id"], rows)

    def get_result(self) -> list[dict[str, Any]]:
        """Return the detections so far, in COCO's format for results."""
        return list(self._results)

    def evaluate(
        self, prediction_result: Sequence[Mapping[str, Any]], annotations: str | Path
    ) -> dict[str, float]:
        """Return mAP, AP50 and AP75 of results, over the images that occur in them and in this reader."""
        truth = Annotations.read(Path(annotations))
        listed = {number for _, number in truth.images}
        seen = {int(one["image_id"]) for one in prediction_result} | {
            self._reader.number(path) for path in self._reader.files
        }
        unknown = sorted(seen - listed)
        if unknown:
            raise DataError(
                f"{annotations} has no image {unknown[0]}, but there are results for it; give the "
                "annotations that belong to these images."
            )
        images = sorted(seen)
        rows = _by_image(prediction_result, images)
        matches = coco.matched(truth, images, list(truth.categories), rows)
        return {
            "mAP": coco.mean_precision(matches),
            "AP50": coco.mean_precision(matches, coco.IOU_50),
            "AP75": coco.mean_precision(matches, coco.IOU_75),
        }


def _by_image(results: Sequence[Mapping[str, Any]], images: Sequence[int]) -> list[F64]:
    rows: dict[int, list[list[float]]] = {number: [] for number in images}
    for one in results:
        rows[int(one["image_id"])].append(
            [*(float(v) for v in one["bbox"]), float(one["score"]), float(one["category_id"])]
        )
    return [np.array(rows[number], np.float64).reshape(-1, 6) for number in images]


def _ids(annotations: str | Path) -> dict[str, int]:
    return {Path(name).name: number for name, number in Annotations.read(Path(annotations)).images}
