"""SSD: boxes, labels and scores as the model's own suppression leaves them, or scores of every anchor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from octavo.evaluation.boxes import F64, Array, Detections, Frame, Limits, selected, strongest

_RELATIVE = 2.0  # corners below this are shares of the input, not pixels


def _boxes(arrays: Sequence[Array]) -> Array | None:
    return next((a for a in arrays if a.ndim in (2, 3) and a.shape[-1] == 4 and a.dtype.kind == "f"), None)


def is_suppressed(arrays: Sequence[Array]) -> bool:
    """Boxes ``[N, k, 4]`` (or ``[k, 4]``), and two arrays with a number for each box."""
    boxes = _boxes(arrays)
    return boxes is not None and sum(array.shape == boxes.shape[:-1] for array in arrays) >= 2


def is_raw(arrays: Sequence[Array]) -> bool:
    """Boxes ``[N, A, 4]`` and class scores ``[N, A, C]``."""
    boxes = _boxes(arrays)
    return (
        len(arrays) == 2
        and boxes is not None
        and boxes.ndim == 3
        and any(a is not boxes and a.ndim == 3 and a.shape[:2] == boxes.shape[:2] for a in arrays)
    )


def suppressed(outputs: Mapping[str, Array], frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """Boxes with a label and a score each; labels count from 1 or are category numbers."""
    name, boxes = _named_boxes(outputs)
    others = {n: a for n, a in outputs.items() if n != name and a.shape == boxes.shape[:-1]}
    labels_name = _labels(others)
    scores = next(array for n, array in others.items() if n != labels_name)
    labels = others[labels_name]
    if boxes.ndim == 2:
        boxes, scores, labels = boxes[None], scores[None], labels[None]
    return [
        strongest(
            _placed(boxes[i], name, frame),
            np.asarray(scores[i], np.float64),
            np.rint(labels[i]).astype(np.int64),
            limits,
        )
        for i, frame in enumerate(frames)
    ]


def raw(outputs: Mapping[str, Array], frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """Boxes with a score for each class; class 0 is the background and left out."""
    name, boxes = _named_boxes(outputs)
    scores = next(a for n, a in outputs.items() if n != name and a.ndim == 3)
    values = _probabilities(np.asarray(scores, np.float64))[:, :, 1:]
    return [selected(_placed(boxes[i], name, frame), values[i], limits) for i, frame in enumerate(frames)]


def _named_boxes(outputs: Mapping[str, Array]) -> tuple[str, Array]:
    boxes = _boxes(list(outputs.values()))
    if boxes is None:
        raise ValueError("none of them holds four numbers for each box")
    return next(name for name, array in outputs.items() if array is boxes), boxes


def _labels(others: Mapping[str, Array]) -> str:
    """The labels: whole numbers by type, by name, or by value."""
    for name, array in others.items():
        if array.dtype.kind in "iu":
            return name
    for name in others:
        if any(word in name.lower() for word in ("label", "class")):
            return name
    return next(name for name, array in others.items() if np.all(array == np.rint(array)))


def _placed(boxes: Array, name: str, frame: Frame) -> F64:
    """Corners in the picture, from pixels or shares of the input; TensorFlow writes (top, left, …)."""
    values = np.asarray(boxes, np.float64)
    if "detection_boxes" in name:
        values = values[:, [1, 0, 3, 2]]
    if values.size and np.abs(values).max() <= _RELATIVE:
        width, height = frame.input_size
        values = values * np.array([width, height, width, height], np.float64)
    return frame.to_picture(values)


def _probabilities(scores: F64) -> F64:
    """Scores that already add up to one for each box, or their softmax."""
    if np.all(scores >= 0) and np.allclose(scores.sum(axis=-1), 1.0, atol=1e-2):
        return scores
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))
