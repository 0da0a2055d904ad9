"""YOLOv3: with non-maximum suppression inside the model, or as three feature maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.evaluation.detection.boxes import Detections, Frame, Limits, corners, selected, strongest
from octavo.evaluation.task import F64, Array, Outputs

# Widths and heights in pixels for strides 8, 16 and 32, as YOLOv3 was trained on COCO.
ANCHORS = np.array(
    [
        [[10, 13], [16, 30], [33, 23]],
        [[30, 61], [62, 45], [59, 119]],
        [[116, 90], [156, 198], [373, 326]],
    ],
    np.float64,
)


def is_selected(arrays: Sequence[Array]) -> bool:
    """Return whether there are boxes ``[N, A, 4]``, scores ``[N, C, A]``, and rows (image, class, box)."""
    if len(arrays) != 3:
        return False
    boxes, scores, indices = arrays
    return (
        boxes.ndim == 3
        and boxes.shape[2] == 4
        and scores.ndim == 3
        and scores.shape[2] == boxes.shape[1]
        and indices.dtype.kind == "i"
        and indices.shape[-1:] == (3,)
    )


def _selected(
    boxes: Array, scores: Array, indices: Array, image: int, frame: Frame, limits: Limits
) -> Detections:
    """Decode the kept boxes of one image; they are ``(top, left, bottom, right)`` in its own pixels."""
    rows = indices.reshape(-1, 3)
    kept = rows[(rows[:, 0] == image) & (rows[:, 2] >= 0)]
    classes, places = kept[:, 1], kept[:, 2]
    chosen = np.asarray(boxes[image], np.float64)[places][:, [1, 0, 3, 2]]
    values = np.asarray(scores[image], np.float64)[classes, places]
    return strongest(frame.clip(chosen), values, classes.astype(np.int64), limits)


def selected_all(outputs: Outputs, frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """Decode the detections of each image of a batch."""
    boxes, scores, indices = outputs.values()
    return [_selected(boxes, scores, indices, image, frame, limits) for image, frame in enumerate(frames)]


def is_heads(arrays: Sequence[Array]) -> bool:
    """Return whether there are three feature maps whose channels are three anchors of 5 + C."""
    return len(arrays) == 3 and all(
        (array.ndim == 4 and array.shape[1] % 3 == 0 and array.shape[1] >= 18)
        or (array.ndim == 5 and array.shape[1] == 3 and array.shape[4] >= 6)
        for array in arrays
    )


def heads(outputs: Outputs, frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """Decode raw feature maps: sigmoids, anchors and the grid are applied here."""
    maps = sorted((_five(array) for array in outputs.values()), key=lambda one: -one.shape[2])
    found = []
    for image, frame in enumerate(frames):
        tables = [_grid(one[image], anchors, frame) for one, anchors in zip(maps, ANCHORS, strict=True)]
        table = np.concatenate(tables)
        found.append(selected(frame.to_image(corners(table[:, :4])), table[:, 5:] * table[:, 4:5], limits))
    return found


def _five(array: Array) -> F64:
    """Return a feature map as ``[N, 3, H, W, 5 + C]``."""
    values = np.asarray(array, np.float64)
    if values.ndim == 5:
        return values
    n, channels, height, width = values.shape
    return values.reshape(n, 3, channels // 3, height, width).transpose(0, 1, 3, 4, 2)


def _sigmoid(values: F64) -> F64:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))


def _grid(one: F64, anchors: F64, frame: Frame) -> F64:
    """Return a feature map of one image as a table of centre, size, objectness and class scores."""
    _, height, width, _ = one.shape
    step = np.array([frame.input_size[0] / width, frame.input_size[1] / height])
    cells = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)
    centre = (_sigmoid(one[..., :2]) + cells) * step
    size = np.exp(np.clip(one[..., 2:4], None, 10.0)) * anchors[:, None, None, :]
    table = np.concatenate([centre, size, _sigmoid(one[..., 4:])], axis=-1)
    return table.reshape(-1, table.shape[-1])
