"""Evaluation: is a model still right, and is it faster?

``evaluate`` runs a task on labelled data, for one model or two side by side; ``bench`` measures latency,
memory and size. Tasks are small files in :mod:`.tasks`; ``metric`` makes one of a function.
"""

from __future__ import annotations

from octavo.evaluation.bench import bench
from octavo.evaluation.measurement import Bench
from octavo.evaluation.readers import ImageNetDataReader, YoloV3DataReader, YoloV3Evaluator
from octavo.evaluation.registry import TASKS, metric, names, task_type
from octavo.evaluation.result import Difference, Evaluation, Score
from octavo.evaluation.run import evaluate

__all__ = [
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
