"""Detection: COCO's mean average precision on annotated pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from octavo.errors import DataError
from octavo.evaluation import coco, decoders
from octavo.evaluation.annotations import Annotations
from octavo.evaluation.batching import batch_size
from octavo.evaluation.boxes import F64, Detections, Frame, Limits
from octavo.evaluation.categories import Numbering
from octavo.evaluation.pictures import Pictures, described
from octavo.evaluation.task import Batch, Feeds, Figure, Outputs, Setting, Work, batches

RESAMPLES = 200


@dataclass(frozen=True)
class Detection:
    """Options: annotations, categories to count, how outputs are read, which boxes count.

    ``decoder`` is one of :data:`octavo.evaluation.decoders.DECODERS`, or ``auto``. ``numbering`` says what
    the model's class numbers are: ``order`` (the place among the categories), ``id``, or ``auto``.
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

    def open(self, data: Any, setting: Setting) -> Work:
        """Pictures that are annotated, in the order of the annotations."""
        given = described(data, self.preprocess, self.size)
        if not isinstance(given.place, str | Path):
            raise DataError("Detection needs a folder of pictures as data, and annotations in COCO's JSON.")
        folder = Path(given.place)
        annotations = Annotations.read(_annotations(folder, self.annotations))
        rows = _pictures(folder, annotations)[: setting.samples]
        wanted = annotations.filtered(self.categories)
        numbers = [number for _, number in rows]
        pictures = Pictures.of(setting.specs, given.preprocess, given.size)
        pictures.check_whole()
        reading = BoxReading(
            pictures,
            batch_size(setting, 0) or None,
            decoders.known(self.decoder),
            Numbering(self.numbering, tuple(annotations.categories)),
            Limits(self.score, self.iou),
        )
        size = batch_size(setting, 1)
        return Work(
            batches([path for path, _ in rows], size),
            len(rows),
            reading,
            FIGURES,
            fold=partial(_matched, annotations=annotations, pictures=numbers, categories=wanted),
            per_class=partial(coco.class_precision, names=annotations.categories),
            class_figure="AP",
            settings={"batch": size, "annotations": str(annotations.path)},
        )


def _matched(
    rows: Sequence[F64], annotations: Annotations, pictures: Sequence[int], categories: Sequence[int]
) -> coco.Matches:
    return coco.matched(annotations, pictures, categories, rows)


def _annotations(folder: Path, given: str | Path | None) -> Path:
    """The annotations file: as named, the one JSON in the folder, or the one beside it with its name."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}; detection needs a folder of pictures.")
    if given is not None:
        return Path(given)
    found = [*sorted(folder.glob("*.json")), *(p for p in [Path(f"{folder}.json")] if p.is_file())]
    if len(found) == 1:
        return found[0]
    what = "several JSON files are" if found else "no JSON file is"
    raise DataError(
        f"Detection needs annotations, and {what} in {folder} or beside it; name the file: annotations=…"
    )


def _pictures(folder: Path, annotations: Annotations) -> list[tuple[Path, int]]:
    """Every annotated picture, or a sentence that names the first that is missing."""
    rows = [(folder / name, number) for name, number in annotations.pictures]
    if not rows:
        raise DataError(f"{annotations.path} lists no picture.")
    missing = [path for path, _ in rows if not path.is_file()]
    if missing:
        raise DataError(
            f"{annotations.path} lists {len(missing)} of {len(rows)} pictures that are not in {folder}, the "
            f"first is {missing[0].name}; give the folder that belongs to these annotations."
        )
    return rows


@dataclass(frozen=True)
class BoxReading:
    """Pictures in, boxes in the picture's own pixels out."""

    pictures: Pictures
    fixed: int | None
    decoder: str
    numbering: Numbering
    limits: Limits

    def feed(self, batch: Batch) -> Feeds:
        """Pictures are read here, in the worker."""
        return self.pictures.feed(batch.parts, self.fixed)[0]

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        """``(left, top, width, height, score, category)`` for each detection of each picture."""
        pixels = feed[self.pictures.spec.name]
        frames = [self.pictures.frame(path, pixels) for path in batch.parts]
        return detected(outputs, frames, self.decoder, self.numbering, self.limits)


def detected(
    outputs: Outputs, frames: Sequence[Frame], decoder: str, numbering: Numbering, limits: Limits
) -> list[F64]:
    """The detections of each picture of a batch as rows for COCO."""
    name = decoders.recognized(outputs) if decoder == "auto" else decoder
    found = decoders.decode(name, outputs, frames, limits)
    return [_row(one, numbering.of(one.classes, decoders.class_count(name, outputs), name)) for one in found]


def _row(found: Detections, categories: F64) -> F64:
    size = found.boxes[:, 2:] - found.boxes[:, :2]
    table = np.column_stack([found.boxes[:, :2], size, found.scores, categories])
    return np.asarray(table[(categories >= 0) & np.isfinite(table).all(axis=1)], np.float64)


FIGURES = (
    Figure("mAP", coco.mean_precision, percent=True, resamples=RESAMPLES),
    Figure("AP50", partial(coco.mean_precision, overlap=coco.IOU_50), percent=True, resamples=RESAMPLES),
    Figure("AP75", partial(coco.mean_precision, overlap=coco.IOU_75), percent=True, resamples=RESAMPLES),
)
