"""Evaluation: is a model still right, and is it faster?

``evaluate`` runs a task on labelled data, for one model or for two side by side; ``bench`` measures latency,
memory and size. Tasks are small files in :mod:`.tasks`, listed in :mod:`.task_registry`; ``metric`` turns a
function into a task. :mod:`.detection` (COCO metrics, decoders of detector outputs) is optional: it is loaded
only where it is used, and needs ``pip install 'octavo[coco]'``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.evaluation.detection.annotations import COCO_80
    from octavo.evaluation.detection.reader_classes import (
        ImageNetDataReader,
        YoloV3DataReader,
        YoloV3Evaluator,
    )
    from octavo.evaluation.evaluator import evaluate
    from octavo.evaluation.scores import Difference, Evaluation, Score
    from octavo.evaluation.task_registry import TASKS, metric, names, task_type
    from octavo.evaluation.timing.bench import bench
    from octavo.evaluation.timing.measurements import Bench

_HOMES = {
    "detection.annotations": ("COCO_80",),
    "detection.reader_classes": ("ImageNetDataReader", "YoloV3DataReader", "YoloV3Evaluator"),
    "evaluator": ("evaluate",),
    "task_registry": ("TASKS", "metric", "names", "task_type"),
    "scores": ("Difference", "Evaluation", "Score"),
    "timing.bench": ("bench",),
    "timing.measurements": ("Bench",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "COCO_80",
    "TASKS",
    "Bench",
    "Difference",
    "Evaluation",
    "ImageNetDataReader",
    "Score",
    "YoloV3DataReader",
    "YoloV3Evaluator",
    "bench",
    "evaluate",
    "metric",
    "names",
    "task_type",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
