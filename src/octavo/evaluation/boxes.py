"""Boxes: frames between a picture and a model's input, and suppression of those that overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_APART = 16384.0  # pixels between classes; larger than any picture that a detector sees


@dataclass(frozen=True)
class Frame:
    """Where a picture lies in a model's input: ``input = scale · picture + offset``, per axis."""

    width: int
    height: int
    scale: tuple[float, float] = (1.0, 1.0)
    offset: tuple[float, float] = (0.0, 0.0)
    input_size: tuple[int, int] = (0, 0)

    def to_picture(self, boxes: F64) -> F64:
        """Corners in the input as corners in the picture, cut to it."""
        scale = np.array([*self.scale, *self.scale])
        shift = np.array([*self.offset, *self.offset])
        return self.cut((boxes - shift) / scale)

    def cut(self, boxes: F64) -> F64:
        """Corners within the picture."""
        limit = np.array([self.width, self.height, self.width, self.height], np.float64)
        return np.asarray(np.clip(boxes, 0.0, limit))


@dataclass(frozen=True)
class Limits:
    """Which boxes count: the least score, the most overlap, and how many."""

    score: float = 0.005
    iou: float = 0.65
    candidates: int = 1500
    most: int = 100


@dataclass(frozen=True)
class Detections:
    """The objects in one picture: corners ``(left, top, right, bottom)``, scores and classes."""

    boxes: F64
    scores: F64
    classes: I64


def corners(centre_size: F64) -> F64:
    """``(x, y, width, height)`` with x and y in the middle, as corners."""
    half = centre_size[:, 2:4] / 2
    return np.concatenate([centre_size[:, :2] - half, centre_size[:, :2] + half], axis=1)


def suppress(boxes: F64, scores: F64, threshold: float) -> I64:
    """Indices of boxes to keep, best first: none overlaps a better one by more than ``threshold``."""
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
    """The detections among boxes (in the picture) with a score for each class, suppressed class by class."""
    places, classes = np.nonzero(scores > limits.score)
    values = scores[places, classes]
    strongest = np.argsort(-values, kind="stable")[: limits.candidates]
    places, classes, values = places[strongest], classes[strongest], values[strongest]
    kept = suppress(boxes[places] + classes[:, None] * _APART, values, limits.iou)[: limits.most]
    return Detections(boxes[places[kept]], values[kept], classes[kept].astype(np.int64))


def strongest(boxes: F64, scores: F64, classes: I64, limits: Limits) -> Detections:
    """The detections among boxes that a model has suppressed itself."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > limits.score][: limits.most]
    return Detections(boxes[order], scores[order], classes[order].astype(np.int64))
