"""Boxes: the mapping between an image and a model's input, and non-maximum suppression."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.evaluation.task import F64

I64 = npt.NDArray[np.int64]

# Boxes of different classes are moved this many pixels apart, so that they never overlap: it is larger than
# any input of a detector.
_CLASS_OFFSET = 16384.0


@dataclass(frozen=True)
class Frame:
    """Where an image lies in a model's input: ``input = scale · image + offset``, for each axis."""

    width: int
    height: int
    scale: tuple[float, float] = (1.0, 1.0)
    offset: tuple[float, float] = (0.0, 0.0)
    input_size: tuple[int, int] = (0, 0)

    def to_image(self, boxes: F64) -> F64:
        """Return corners in the input as corners in the image, clipped to it."""
        scale = np.array([*self.scale, *self.scale])
        shift = np.array([*self.offset, *self.offset])
        return self.clip((boxes - shift) / scale)

    def clip(self, boxes: F64) -> F64:
        """Return corners clipped to the image."""
        limit = np.array([self.width, self.height, self.width, self.height], np.float64)
        return np.asarray(np.clip(boxes, 0.0, limit))


@dataclass(frozen=True)
class Limits:
    """Which boxes count: those above a score that overlap a better one by no more than ``iou``.

    Suppression looks at the ``candidates`` best boxes of an image and keeps at most ``max_boxes`` of them.
    """

    score: float = 0.005
    iou: float = 0.65
    candidates: int = 1500
    max_boxes: int = 100


@dataclass(frozen=True)
class Detections:
    """The objects in one image: corners ``(left, top, right, bottom)``, scores and classes."""

    boxes: F64
    scores: F64
    classes: I64


def corners(centre_size: F64) -> F64:
    """Return ``(x, y, width, height)``, with x and y the centre, as corners."""
    half = centre_size[:, 2:4] / 2
    return np.concatenate([centre_size[:, :2] - half, centre_size[:, :2] + half], axis=1)


def suppress(boxes: F64, scores: F64, threshold: float) -> I64:
    """Return the indices of boxes to keep, best first: none overlaps a better one beyond the threshold."""
    left, top, right, bottom = boxes.T
    areas = (right - left) * (bottom - top)
    order = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while order.size:
        best, rest = order[0], order[1:]
        kept.append(int(best))
        width = np.minimum(right[best], right[rest]) - np.maximum(left[best], left[rest])
        height = np.minimum(bottom[best], bottom[rest]) - np.maximum(top[best], top[rest])
        common = width.clip(0) * height.clip(0)
        order = rest[common / (areas[best] + areas[rest] - common + 1e-9) <= threshold]
    return np.array(kept, np.int64)


def selected(boxes: F64, scores: F64, limits: Limits) -> Detections:
    """Return the detections among boxes (in the image) with scores by class, suppressed class by class."""
    indices, classes = np.nonzero(scores > limits.score)
    values = scores[indices, classes]
    strongest = np.argsort(-values, kind="stable")[: limits.candidates]
    indices, classes, values = indices[strongest], classes[strongest], values[strongest]
    kept = suppress(boxes[indices] + classes[:, None] * _CLASS_OFFSET, values, limits.iou)
    kept = kept[: limits.max_boxes]
    return Detections(boxes[indices[kept]], values[kept], classes[kept].astype(np.int64))


def strongest(boxes: F64, scores: F64, classes: I64, limits: Limits) -> Detections:
    """Return the detections among boxes that a model has suppressed itself."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > limits.score][: limits.max_boxes]
    return Detections(boxes[order], scores[order], classes[order].astype(np.int64))
