"""Outputs of detectors as boxes, scores and classes.

========================  =============================================================================
``yolov3``                boxes, scores and indices of kept boxes (suppression inside the model)
``yolov3-heads``          feature maps ``[N, 3 (5 + C), H, W]``, anchors applied here
``yolov5``                ``[N, boxes, 5 + C]``: centre, size, objectness, class scores
``yolov8``                ``[N, 4 + C, boxes]``: centre, size, class scores (also YOLO11)
``yolo-end-to-end``       ``[N, boxes, 6]``: corners, score, class
``ssd``                   boxes, labels and scores, suppressed inside the model
``ssd-raw``               boxes ``[N, A, 4]`` and class scores ``[N, A, C]``, class 0 the background
========================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.errors import ModelError, RecipeError, closest
from octavo.evaluation.detection.boxes import Detections, Frame, Limits
from octavo.evaluation.detection.decoders import ssd, yolo, yolov3
from octavo.evaluation.task import Array, Outputs, shapes_text

Decoder = Callable[[Outputs, Sequence[Frame], Limits], list[Detections]]

DECODERS: dict[str, Decoder] = {
    "yolov3": yolov3.selected_all,
    "yolov3-heads": yolov3.heads,
    "yolov5": yolo.with_objectness,
    "yolov8": yolo.without_objectness,
    "yolo-end-to-end": yolo.end_to_end,
    "ssd": ssd.suppressed,
    "ssd-raw": ssd.raw,
}

_CLASS_COUNTS: dict[str, Callable[[list[Array]], int]] = {
    "yolov3": lambda arrays: arrays[1].shape[1],
    "yolov3-heads": lambda arrays: (
        (arrays[0].shape[1] // 3 if arrays[0].ndim == 4 else arrays[0].shape[4]) - 5
    ),
    "yolov5": lambda arrays: arrays[0].shape[2] - 5,
    "yolov8": lambda arrays: arrays[0].shape[1] - 4,
    "ssd-raw": lambda arrays: max(array.shape[2] for array in arrays) - 1,
}


def known(name: str) -> str:
    """Return the name, or raise if there is no such decoder."""
    if name != "auto" and name not in DECODERS:
        hint = closest(name, DECODERS) or f"; there are auto, {', '.join(DECODERS)}."
        raise RecipeError(f"There is no decoder {name!r}{hint}")
    return name


def recognized(outputs: Outputs) -> str:
    """Return the decoder that fits the number and the shapes of the outputs."""
    arrays = list(outputs.values())
    for name, fits in (
        ("yolov3", yolov3.is_selected),
        ("yolov3-heads", yolov3.is_heads),
        ("ssd", ssd.is_suppressed),
        ("ssd-raw", ssd.is_raw),
        ("yolo-end-to-end", yolo.is_end_to_end),
        ("yolov8", yolo.is_without_objectness),
        ("yolov5", yolo.is_with_objectness),
    ):
        if fits(arrays):
            return name
    raise ModelError(
        f"The outputs {shapes_text(outputs)} fit no known detector; name a decoder "
        f"({', '.join(DECODERS)}), or choose another task."
    )


def class_count(name: str, outputs: Outputs) -> int | None:
    """Return how many classes a model distinguishes; None where its outputs do not show it."""
    count = _CLASS_COUNTS.get(name)
    return count(list(outputs.values())) if count is not None else None


def decode(name: str, outputs: Outputs, frames: Sequence[Frame], limits: Limits) -> list[Detections]:
    """Return the detections of each image of a batch, in its own pixels."""
    chosen = recognized(outputs) if name == "auto" else name
    try:
        return DECODERS[chosen](outputs, frames, limits)
    except (ValueError, IndexError, StopIteration, TypeError) as error:
        raise ModelError(
            f"The outputs {shapes_text(outputs)} can't be read by the decoder {chosen!r} ({error}); name the "
            f"one that fits: {', '.join(DECODERS)}."
        ) from error
