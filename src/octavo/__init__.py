"""Octavo quantizes ONNX models: smaller, faster, still right, and it shows why.

The names below are the public surface; everything is loaded when it is first used, so that importing the
package (and ``octavo --help``) costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from octavo._version import __version__
from octavo.core import deferred

if TYPE_CHECKING:
    from octavo.api import (
        Prepared,
        calibrate,
        convert_qat,
        emit,
        inspect,
        load_stats,
        plan,
        prepare,
        quantize,
        ready,
        save_stats,
    )
    from octavo.calibration.readers.images import images
    from octavo.calibration.readers.made_up import random_data
    from octavo.calibration.readers.preprocessing import preprocessing
    from octavo.calibration.readers.text import text
    from octavo.comparison import Comparison, Diagnosis, compare, doctor
    from octavo.core.granularity import PerBlock, PerChannel, PerTensor
    from octavo.core.plan import Plan
    from octavo.core.qparams import QParams
    from octavo.core.recipe import (
        FP8,
        W4A16,
        W8,
        W8A8,
        W8A16,
        DynamicScheme,
        Override,
        Placement,
        Recipe,
        Style,
        preset,
    )
    from octavo.core.scheme import MSE, Auto, Distribution, Entropy, MinMax, Percentile, Scheme
    from octavo.core.stats import Stats
    from octavo.errors import (
        DataError,
        IsolationError,
        ModelError,
        OctavoError,
        OutputError,
        RecipeError,
        TableError,
    )
    from octavo.evaluation.bench import bench
    from octavo.evaluation.measurement import Bench
    from octavo.evaluation.registry import metric
    from octavo.evaluation.result import Evaluation
    from octavo.evaluation.run import evaluate
    from octavo.isolation import isolated
    from octavo.linting import Lint, lint
    from octavo.model.prepare import PrepareOptions
    from octavo.reporting.html import report
    from octavo.result import Result
    from octavo.tuning import Demands, Tuned, tune

_HOMES = {
    "octavo.api": (
        "Prepared", "calibrate", "convert_qat", "emit", "inspect", "load_stats", "plan", "prepare",
        "quantize", "ready", "save_stats",
    ),
    "octavo.calibration.readers.images": ("images",),
    "octavo.calibration.readers.made_up": ("random_data",),
    "octavo.calibration.readers.preprocessing": ("preprocessing",),
    "octavo.calibration.readers.text": ("text",),
    "octavo.core.granularity": ("PerBlock", "PerChannel", "PerTensor"),
    "octavo.core.plan": ("Plan",),
    "octavo.core.qparams": ("QParams",),
    "octavo.core.recipe": (
        "FP8", "W4A16", "W8", "W8A16", "W8A8",
        "DynamicScheme", "Override", "Placement", "Recipe", "Style", "preset",
    ),
    "octavo.core.scheme": ("MSE", "Auto", "Distribution", "Entropy", "MinMax", "Percentile", "Scheme"),
    "octavo.core.stats": ("Stats",),
    "octavo.errors": (
        "DataError", "IsolationError", "ModelError", "OctavoError", "OutputError", "RecipeError",
        "TableError",
    ),
    "octavo.comparison": ("Comparison", "Diagnosis", "compare", "doctor"),
    "octavo.evaluation.bench": ("bench",),
    "octavo.evaluation.measurement": ("Bench",),
    "octavo.evaluation.registry": ("metric",),
    "octavo.evaluation.result": ("Evaluation",),
    "octavo.evaluation.run": ("evaluate",),
    "octavo.isolation": ("isolated",),
    "octavo.linting": ("Lint", "lint"),
    "octavo.model.prepare": ("PrepareOptions",),
    "octavo.reporting.html": ("report",),
    "octavo.result": ("Result",),
    "octavo.tuning": ("Demands", "Tuned", "tune"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - grouped
    # verbs
    "quantize", "tune", "convert_qat", "plan", "prepare", "ready", "calibrate", "emit", "inspect",
    "load_stats", "save_stats",
    "evaluate", "bench", "metric", "compare", "doctor", "lint", "report", "isolated",
    # what they take and give
    "Plan", "Prepared", "PrepareOptions", "QParams", "Result", "Stats",
    "Evaluation", "Bench", "Comparison", "Diagnosis", "Lint", "Demands", "Tuned",
    # data
    "images", "text", "random_data", "preprocessing",
    # recipes
    "Recipe", "Scheme", "DynamicScheme", "Style", "Placement", "Override", "preset",
    "W8A8", "W8A16", "W8", "W4A16", "FP8",
    "PerTensor", "PerChannel", "PerBlock",
    # calibration methods
    "MinMax", "Percentile", "Entropy", "MSE", "Distribution", "Auto",
    # errors
    "OctavoError", "RecipeError", "ModelError", "DataError", "TableError", "OutputError",
    "IsolationError",
    "__version__",
]  # fmt: skip


deferred.install()


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
