"""COCO's average precision, and the same figure over any resample of the images.

pycocotools matches detections with annotations, image by image. Precision is then accumulated here as the
COCO evaluation does it (10 overlaps from 0.50 to 0.95, 101 recalls, interpolated from the right), with a
weight for each image: how often a resample has drawn it. With all weights 1 the figures are COCO's own.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import RecipeError
from octavo.evaluation.detection.annotations import Annotations
from octavo.evaluation.task import F64, ClassScore

IOU_50, IOU_75 = 0, 5  # positions among the ten overlaps
RECALLS = np.linspace(0.0, 1.0, 101)
MAX_DETECTIONS = 100  # of an image, as COCO counts them


@dataclass(frozen=True, eq=False)
class _Category:
    """Detections of one category over all images, best first, and how many objects each image has."""

    image: npt.NDArray[np.int64]
    true: npt.NDArray[np.bool_]  # overlaps × detections
    false: npt.NDArray[np.bool_]
    objects: npt.NDArray[np.int64]


class Matches:
    """Detections matched by pycocotools; indexing draws images with repetition."""

    def __init__(
        self,
        categories: Mapping[int, _Category],
        weights: npt.NDArray[np.int64],
        tables: dict[bytes, F64] | None = None,
    ) -> None:
        self._categories = categories
        self._weights = weights
        self._tables = tables if tables is not None else {}  # shared by all metrics of a resample

    def __len__(self) -> int:
        return len(self._weights)

    def __getitem__(self, index: npt.NDArray[np.int64]) -> Matches:
        return Matches(self._categories, np.bincount(index, minlength=len(self)), self._tables)

    def precision(self) -> F64:
        """Return the average precision by category and overlap; NaN where a category has no object."""
        key = self._weights.tobytes()
        if key not in self._tables:
            self._tables[key] = np.array(
                [_average(one, self._weights) for one in self._categories.values()]
            ).reshape(-1, 10)
        return self._tables[key]

    def objects(self) -> dict[int, int]:
        """Return how many objects each category has."""
        return {number: int(one.objects.sum()) for number, one in self._categories.items()}

    def categories(self) -> list[int]:
        """Return the category ids, in the order of :meth:`precision`."""
        return list(self._categories)


def mean_precision(matches: Matches, overlap: int | None = None) -> float:
    """Return the mean average precision over all overlaps, or at one of them."""
    table = matches.precision()
    values = table if overlap is None else table[:, overlap]
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def class_precision(matches: Matches, names: Mapping[int, str]) -> list[ClassScore]:
    """Return the average precision of each category that has objects."""
    counts = matches.objects()
    return [
        ClassScore(names[number], float(row.mean()), counts[number])
        for number, row in zip(matches.categories(), matches.precision(), strict=True)
        if counts[number]
    ]


def _average(category: _Category, weights: npt.NDArray[np.int64]) -> F64:
    """Return the average precision at each overlap."""
    objects = int((category.objects * weights).sum())
    if not objects:
        return np.full(10, np.nan)
    weight = weights[category.image]
    true = np.cumsum(category.true * weight, axis=1, dtype=np.float64)
    false = np.cumsum(category.false * weight, axis=1, dtype=np.float64)
    recall = true / objects
    precision = true / (true + false + np.spacing(1))
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    found = np.zeros(10)
    for overlap in range(10):
        places = np.searchsorted(recall[overlap], RECALLS, side="left")
        reached = places < recall.shape[1]
        found[overlap] = best[overlap, places[reached]].sum() / len(RECALLS)
    return found


def matched(
    annotations: Annotations, images: Sequence[int], categories: Sequence[int], found: Sequence[F64]
) -> Matches:
    """Match detections ``(left, top, width, height, score, category)`` of each image with the annotations."""
    run = _evaluated(annotations, images, categories, found)
    place = {number: index for index, number in enumerate(images)}
    ones = np.ones(len(images), np.int64)
    if run is None:
        return Matches({c: _empty(annotations, place, c) for c in categories}, ones)
    grouped: dict[int, list[Any]] = {category: [] for category in categories}
    widest = list(run.params.areaRng[0])
    for one in run.evalImgs:
        if one is not None and list(one["aRng"]) == widest:
            grouped[one["category_id"]].append(one)
    return Matches({number: _category(ones, place, many) for number, many in grouped.items()}, ones)


def results(images: Sequence[int], found: Sequence[F64]) -> list[dict[str, Any]]:
    """Return detections in COCO's own format for results."""
    return [
        {
            "image_id": image,
            "category_id": int(row[5]),
            "bbox": [float(v) for v in row[:4]],
            "score": float(row[4]),
        }
        for image, rows in zip(images, found, strict=True)
        for row in rows
    ]


def ground_truth(annotations: Annotations) -> Any:
    """Return the annotations as an object of pycocotools."""
    coco, _ = _pycocotools()
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco()
        truth.dataset = {**annotations.content, "annotations": _complete(annotations.content["annotations"])}
        truth.createIndex()
    return truth


def _complete(annotations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return annotations with the fields that pycocotools needs."""
    return [
        {
            "iscrowd": 0,
            "area": float(one["bbox"][2]) * float(one["bbox"][3]),
            **one,
            "id": number,  # from 1: pycocotools takes a match with number 0 for none
        }
        for number, one in enumerate(annotations, 1)
    ]


def _evaluated(
    annotations: Annotations, images: Sequence[int], categories: Sequence[int], found: Sequence[F64]
) -> Any:
    _, evaluation = _pycocotools()
    detections = results(images, found)
    if not detections:
        return None
    truth = ground_truth(annotations)
    with contextlib.redirect_stdout(io.StringIO()):
        run = evaluation(truth, truth.loadRes(detections), "bbox")
        run.params.imgIds = list(images)
        run.params.catIds = list(categories)
        run.params.areaRng, run.params.areaRngLbl = run.params.areaRng[:1], run.params.areaRngLbl[:1]
        run.params.maxDets = [MAX_DETECTIONS]
        run.evaluate()
    return run


def _pycocotools() -> tuple[Any, Any]:
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        raise RecipeError(
            "Detection metrics need pycocotools, an optional part; install it: pip install 'octavo[coco]'."
        ) from None
    return COCO, COCOeval


def _category(ones: npt.NDArray[np.int64], place: Mapping[int, int], many: Sequence[Any]) -> _Category:
    """Collect one category from the results of pycocotools for each image."""
    objects = np.zeros(len(ones), np.int64)
    scores, owners, matches, ignored = [np.zeros(0)], [np.zeros(0, np.int64)], [], []
    many = sorted(many, key=lambda one: place[one["image_id"]])
    for one in many:
        at = place[one["image_id"]]
        objects[at] = int(np.sum(np.asarray(one["gtIgnore"]) == 0))
        scores.append(np.asarray(one["dtScores"], np.float64))
        owners.append(np.full(len(one["dtScores"]), at, np.int64))
        matches.append(np.asarray(one["dtMatches"]) > 0)
        ignored.append(np.asarray(one["dtIgnore"], bool))
    order = np.argsort(-np.concatenate(scores), kind="mergesort")
    match = np.concatenate(matches, axis=1)[:, order] if matches else np.zeros((10, 0), bool)
    ignore = np.concatenate(ignored, axis=1)[:, order] if ignored else np.zeros((10, 0), bool)
    return _Category(np.concatenate(owners)[order], match & ~ignore, ~match & ~ignore, objects)


def _empty(annotations: Annotations, place: Mapping[int, int], category: int) -> _Category:
    """Return a category in which nothing was detected."""
    objects = np.zeros(len(place), np.int64)
    for one in annotations.content["annotations"]:
        if one["category_id"] == category and one["image_id"] in place and not one.get("iscrowd", 0):
            objects[place[one["image_id"]]] += 1
    none = np.zeros((10, 0), bool)
    return _Category(np.zeros(0, np.int64), none, none, objects)
