"""YOLOv3: with the selection of boxes inside the model, or as three feature maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from octavo.evaluation.boxes import F64, Array, Detections, Frame, Limits, corners, selected, strongest

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
    """Boxes ``[N, A, 4]``, scores ``[N, C, A]``, and rows of (picture, class, box)."""
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


def selected_indices(indices: Array, picture: int) -> Array:
    """The rows (class, box) of one picture."""
    rows = indices.reshape(-1, 3)
    return np.asarray(rows[(rows[:, 0] == picture) & (rows[:, 2] >= 0)][:, 1:])


def selected_detections(
    boxes: Array, scores: Array, indices: Array, picture: int, frame: Frame, limits: Limits
) -> Detections:
    """The kept boxes of one picture; they are ``(top, left, bottom, right)`` in the picture's own pixels."""
    kept = selected_indices(indices, picture)
    classes, places = kept[:, 0], kept[:, 1]
    chosen = np.asarray(boxes[picture], np.float64)[places][:, [1, 0, 3, 2]]
    values = np.asarray(scores[picture], np.float64)[classes, places]
    return strongest(frame.cut(chosen), values, classes.astype(np.int64), limits)


def selected_all(outputs: Mapping[str, Array], frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """The detections of each picture of a batch."""
    boxes, scores, indices = outputs.values()
    return [
        selected_detections(boxes, scores, indices, picture, frame, limits)
        for picture, frame in enumerate(frames)
    ]


def is_heads(arrays: Sequence[Array]) -> bool:
    """Three feature maps whose channels are three anchors of 5 + C."""
    return len(arrays) == 3 and all(
        (array.ndim == 4 and array.shape[1] % 3 == 0 and array.shape[1] >= 18)
        or (array.ndim == 5 and array.shape[1] == 3 and array.shape[4] >= 6)
        for array in arrays
    )


def heads(outputs: Mapping[str, Array], frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """Raw feature maps: sigmoids, anchors and the grid are applied here."""
    maps = sorted((_five(array) for array in outputs.values()), key=lambda one: -one.shape[2])
    found = []
    for picture, frame in enumerate(frames):
        tables = [_grid(one[picture], anchors, frame) for one, anchors in zip(maps, ANCHORS, strict=True)]
        table = np.concatenate(tables)
        found.append(selected(frame.to_picture(corners(table[:, :4])), table[:, 5:] * table[:, 4:5], limits))
    return found


def _five(array: Array) -> F64:
    """``[N, 3, H, W, 5 + C]``."""
    values = np.asarray(array, np.float64)
    if values.ndim == 5:
        return values
    n, channels, height, width = values.shape
    return values.reshape(n, 3, channels // 3, height, width).transpose(0, 1, 3, 4, 2)


def _sigmoid(values: F64) -> F64:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))


def _grid(one: F64, anchors: F64, frame: Frame) -> F64:
    """A feature map of one picture as a table of centre, size, objectness and class scores."""
    _, height, width, _ = one.shape
    step = np.array([frame.input_size[0] / width, frame.input_size[1] / height])
    cells = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)
    centre = (_sigmoid(one[..., :2]) + cells) * step
    size = np.exp(np.clip(one[..., 2:4], None, 10.0)) * anchors[:, None, None, :]
    table = np.concatenate([centre, size, _sigmoid(one[..., 4:])], axis=-1)
    return table.reshape(-1, table.shape[-1])
