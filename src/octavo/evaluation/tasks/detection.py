"""Detection: COCO's mean average precision on annotated images (needs ``octavo[coco]``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from octavo.errors import DataError
from octavo.evaluation.detection import coco, decoders
from octavo.evaluation.detection.annotations import Annotations, Numbering
from octavo.evaluation.detection.boxes import Detections, Frame, Limits
from octavo.evaluation.image_samples import ImageFeeds, image_source
from octavo.evaluation.task import (
    F64,
    Batch,
    Feeds,
    Metric,
    Outputs,
    PreparedTask,
    TaskContext,
    batches,
)

_RESAMPLES = 200  # fewer than for other metrics: each one computes precision over all images again


@dataclass(frozen=True)
class Detection:
    """Options: annotations, categories to count, how outputs are decoded, which boxes count.

    ``decoder`` is one of :data:`octavo.evaluation.detection.decoders.DECODERS`, or ``auto``. ``numbering``
    says what the model's class numbers are: ``order`` (the position among the categories), ``id``, or
    ``auto``.
    """

    annotations: str | Path | None = None
    categories: Sequence[str | int] | None = None
    decoder: str = "auto"
    numbering: str = "auto"
    preprocess: Any = "yolo-letterbox"
    size: tuple[int, int] | None = None
    score: float = 0.005
    iou: float = 0.65
    name: ClassVar[str] = "detection"
    summary: ClassVar[str] = "COCO mAP, AP50 and AP by class"

    def open(self, data: Any, context: TaskContext) -> PreparedTask:
        """Return the annotated images, in the order of the annotations."""
        given = image_source(data, self.preprocess, self.size)
        if not isinstance(given.location, str | Path):
            raise DataError("Detection needs a folder of images as data, and annotations in COCO's JSON.")
        folder = Path(given.location)
        annotations = Annotations.read(_annotations(folder, self.annotations))
        rows = _annotated_images(folder, annotations)[: context.samples]
        categories = annotations.category_ids(self.categories)
        numbers = [number for _, number in rows]
        images = ImageFeeds.of(context.specs, given.preprocess, given.size)
        images.check_whole()
        processing = BoxProcessing(
            images,
            context.fixed_batch,
            decoders.known(self.decoder),
            Numbering(self.numbering, tuple(annotations.categories)),
            Limits(self.score, self.iou),
        )
        size = context.batch_size(1)
        return PreparedTask(
            batches([path for path, _ in rows], size),
            len(rows),
            processing,
            METRICS,
            fold=partial(_matched, annotations=annotations, images=numbers, categories=categories),
            per_class=partial(coco.class_precision, names=annotations.categories),
            class_metric="AP",
            settings={"batch": size, "annotations": str(annotations.path)},
        )


def _matched(
    rows: Sequence[F64], annotations: Annotations, images: Sequence[int], categories: Sequence[int]
) -> coco.Matches:
    return coco.matched(annotations, images, categories, rows)


def _annotations(folder: Path, given: str | Path | None) -> Path:
    """Return the annotations file: as named, the one JSON in the folder, or the one beside it of its name."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}; detection needs a folder of images.")
    if given is not None:
        return Path(given)
    found = [*sorted(folder.glob("*.json")), *(p for p in [Path(f"{folder}.json")] if p.is_file())]
    if len(found) == 1:
        return found[0]
    what = "several JSON files are" if found else "no JSON file is"
    raise DataError(
        f"Detection needs annotations, but {what} in {folder} or beside it; name the file: annotations=…"
    )


def _annotated_images(folder: Path, annotations: Annotations) -> list[tuple[Path, int]]:
    """Return every annotated image, or raise with the first that is missing."""
    rows = [(folder / name, number) for name, number in annotations.images]
    if not rows:
        raise DataError(f"{annotations.path} lists no images.")
    missing = [path for path, _ in rows if not path.is_file()]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(rows)} images listed in {annotations.path} are not in {folder}, the "
            f"first is {missing[0].name}; give the folder that belongs to these annotations."
        )
    return rows


@dataclass(frozen=True)
class BoxProcessing:
    """Reads images, and keeps boxes in the image's own pixels."""

    images: ImageFeeds
    fixed: int | None
    decoder: str
    numbering: Numbering
    limits: Limits

    def feed(self, batch: Batch) -> Feeds:
        """Read the images, in the worker."""
        return self.images.feed(batch.items, self.fixed)[0]

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """Return ``(left, top, width, height, score, category)`` for each detection of each image."""
        pixels = feed[self.images.spec.name]
        frames = [self.images.frame(path, pixels) for path in batch.items]
        return detected(outputs, frames, self.decoder, self.numbering, self.limits)


def detected(
    outputs: Outputs, frames: Sequence[Frame], decoder: str, numbering: Numbering, limits: Limits
) -> list[F64]:
    """Return the detections of each image of a batch as rows for COCO."""
    name = decoders.recognized(outputs) if decoder == "auto" else decoder
    found = decoders.decode(name, outputs, frames, limits)
    return [_row(one, numbering.of(one.classes, decoders.class_count(name, outputs), name)) for one in found]


def _row(found: Detections, categories: F64) -> F64:
    size = found.boxes[:, 2:] - found.boxes[:, :2]
    table = np.column_stack([found.boxes[:, :2], size, found.scores, categories])
    return np.asarray(table[(categories >= 0) & np.isfinite(table).all(axis=1)], np.float64)


METRICS = tuple(
    Metric(name, partial(coco.mean_precision, overlap=overlap), percent=True, resamples=_RESAMPLES)
    for name, overlap in (("mAP", None), ("AP50", coco.IOU_50), ("AP75", coco.IOU_75))
)
