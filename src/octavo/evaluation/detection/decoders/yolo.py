"""YOLO models that return one table of boxes: v5, v8, v11, and those that suppress boxes themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.evaluation.detection.boxes import Detections, Frame, Limits, corners, selected, strongest
from octavo.evaluation.task import F64, Array, Outputs

_MAX_SUPPRESSED = 1000  # boxes; a model that suppresses them itself returns fewer, any other more


def _one(arrays: Sequence[Array]) -> Array | None:
    tables = [array for array in arrays if array.ndim == 3]
    return tables[0] if len(tables) == 1 and len(arrays) == 1 else None


def is_end_to_end(arrays: Sequence[Array]) -> bool:
    """Return whether there is one table ``[N, boxes, 6]`` with few boxes."""
    table = _one(arrays)
    return table is not None and table.shape[2] == 6 and table.shape[1] <= _MAX_SUPPRESSED


def is_without_objectness(arrays: Sequence[Array]) -> bool:
    """Return whether there is one table ``[N, 4 + C, boxes]``: fewer rows than boxes."""
    table = _one(arrays)
    return table is not None and 5 <= table.shape[1] < table.shape[2]


def is_with_objectness(arrays: Sequence[Array]) -> bool:
    """Return whether there is one table ``[N, boxes, 5 + C]``."""
    table = _one(arrays)
    return table is not None and 6 <= table.shape[2] < table.shape[1]


def _table(outputs: Outputs) -> F64:
    table = next(array for array in outputs.values() if array.ndim == 3)
    return np.asarray(table, np.float64)


def _detections(table: F64, scores: F64, frame: Frame, limits: Limits) -> Detections:
    return selected(frame.to_image(corners(table[:, :4])), scores, limits)


def without_objectness(outputs: Outputs, frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """Decode centre, size, and a score for each class."""
    tables = _table(outputs).transpose(0, 2, 1)
    return [
        _detections(table, table[:, 4:], frame, limits) for table, frame in zip(tables, frames, strict=False)
    ]


def with_objectness(outputs: Outputs, frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """Decode centre, size, objectness, and class scores, which are multiplied by objectness."""
    return [
        _detections(table, table[:, 5:] * table[:, 4:5], frame, limits)
        for table, frame in zip(_table(outputs), frames, strict=False)
    ]


def end_to_end(outputs: Outputs, frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """Decode corners, score and class."""
    return [
        strongest(frame.to_image(table[:, :4]), table[:, 4], table[:, 5].astype(np.int64), limits)
        for table, frame in zip(_table(outputs), frames, strict=False)
    ]
