"""SSD: boxes, labels and scores after the model's own suppression, or scores of every anchor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.evaluation.detection.boxes import Detections, Frame, Limits, selected, strongest
from octavo.evaluation.task import F64, Array, Outputs

_LARGEST_RELATIVE = 2.0  # corners up to this are fractions of the input, larger ones are pixels


def _boxes(arrays: Sequence[Array]) -> Array | None:
    return next((a for a in arrays if a.ndim in (2, 3) and a.shape[-1] == 4 and a.dtype.kind == "f"), None)


def is_suppressed(arrays: Sequence[Array]) -> bool:
    """Return whether there are boxes ``[N, k, 4]`` or ``[k, 4]``, and two arrays with a number for each."""
    boxes = _boxes(arrays)
    return boxes is not None and sum(array.shape == boxes.shape[:-1] for array in arrays) >= 2


def is_raw(arrays: Sequence[Array]) -> bool:
    """Return whether there are boxes ``[N, A, 4]`` and class scores ``[N, A, C]``."""
    boxes = _boxes(arrays)
    return (
        len(arrays) == 2
        and boxes is not None
        and boxes.ndim == 3
        and any(a is not boxes and a.ndim == 3 and a.shape[:2] == boxes.shape[:2] for a in arrays)
    )


def suppressed(outputs: Outputs, frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """Decode boxes with a label and a score each; labels count from 1 or are category ids."""
    name, boxes = _named_boxes(outputs)
    others = {n: a for n, a in outputs.items() if n != name and a.shape == boxes.shape[:-1]}
    labels_name = _labels(others)
    scores = next(array for n, array in others.items() if n != labels_name)
    labels = others[labels_name]
    if boxes.ndim == 2:
        boxes, scores, labels = boxes[None], scores[None], labels[None]
    return [
        strongest(
            _in_image(boxes[i], name, frame),
            np.asarray(scores[i], np.float64),
            np.rint(labels[i]).astype(np.int64),
            limits,
        )
        for i, frame in enumerate(frames)
    ]


def raw(outputs: Outputs, frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """Decode boxes with a score for each class; class 0 is the background and is left out."""
    name, boxes = _named_boxes(outputs)
    scores = next(a for n, a in outputs.items() if n != name and a.ndim == 3)
    values = _probabilities(np.asarray(scores, np.float64))[:, :, 1:]
    return [selected(_in_image(boxes[i], name, frame), values[i], limits) for i, frame in enumerate(frames)]


def _named_boxes(outputs: Outputs) -> tuple[str, Array]:
    boxes = _boxes(list(outputs.values()))
    if boxes is None:
        raise ValueError("none of them has four numbers for each box")
    return next(name for name, array in outputs.items() if array is boxes), boxes


def _labels(others: Outputs) -> str:
    """Return the name of the labels: integers by type, by name, or by value."""
    for name, array in others.items():
        if array.dtype.kind in "iu":
            return name
    for name in others:
        if any(word in name.lower() for word in ("label", "class")):
            return name
    return next(name for name, array in others.items() if np.all(array == np.rint(array)))


def _in_image(boxes: Array, name: str, frame: Frame) -> F64:
    """Return corners in the image; TensorFlow writes (top, left, …), and fractions of the input."""
    values = np.asarray(boxes, np.float64)
    if "detection_boxes" in name:
        values = values[:, [1, 0, 3, 2]]
    if values.size and np.abs(values).max() <= _LARGEST_RELATIVE:
        width, height = frame.input_size
        values = values * np.array([width, height, width, height], np.float64)
    return frame.to_image(values)


def _probabilities(scores: F64) -> F64:
    """Return the scores if they add up to one for each box, else their softmax."""
    if np.all(scores >= 0) and np.allclose(scores.sum(axis=-1), 1.0, atol=1e-2):
        return scores
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))
