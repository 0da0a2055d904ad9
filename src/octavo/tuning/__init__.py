"""The automatic choice: a few sensible ways to quantize a model, tried and measured, and the best of them.

Statistics are collected once; every trial reads its ranges off them. Part of the data is held back: it is
what trials are judged on.
"""

from octavo.tuning.search import tune
from octavo.tuning.task_check import TaskCheck
from octavo.tuning.trial import Demands, Drop, Trial, Tuned

__all__ = ["Demands", "Drop", "TaskCheck", "Trial", "Tuned", "tune"]
