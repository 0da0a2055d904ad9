"""Quantize ONNX models: smaller and faster, with measured accuracy.

Quick start::

    import octavo

    result = octavo.quantize("model.onnx", "calib.npz")    # tries a few ways, keeps the best
    print(result)                                          # what was quantized, what stayed in float and why
    result.save("model.int8.onnx")

    print(octavo.evaluate("model.int8.onnx", "test.npz", against="model.onnx", scale=255))  # still right?
    print(octavo.bench("model.onnx", "model.int8.onnx"))                                    # faster?
    print(octavo.compare("model.onnx", "model.int8.onnx", "calib.npz"))                     # what was lost?

``help(octavo.quantize)`` explains a verb. ``print`` shows a result as a table, a notebook does so by itself.

Quantize
    quantize      quantize a model, with data or without
    quantize_folder    variants of all parts of a model folder, each compared with float
    tune          quantize, and return every way that was tried
    convert_qat   turn a model trained with fake quantization into one that computes with integers
    plan          what would be quantized, and what would stay in float and why
    prepare, ready, calibrate, emit    the stages of quantize, one by one
    load_stats, save_stats             statistics of a calibration

Measure and explain
    evaluate      accuracy, with intervals; ``metric`` registers a metric of your own
    bench         latency, memory, load time and size
    compare       where a quantized model is wrong, and why
    propose       changes of the recipe that were measured to help
    doctor        what will be hard about quantizing a model
    inspect       how a model is quantized, by whatever tool
    lint          what a target rejects, computes wrongly or runs slowly
    report        results on one HTML page

What they give
    Result, Plan, Prepared, Stats, QParams, Tuned, Evaluation, Bench, Comparison, Proposal, Diagnosis, Lint,
    FolderResult

Data
    A path, an array, an iterable of ``{input name: array}``, an object with ``get_next()``, or one of
    images, arrays, text, random_data; ``preprocessing`` registers steps for images of your own.

What to ask for
    keywords      quantize(..., exclude="head", method="entropy", weights="int8", max_drop="1%")
    recipes       W8A8, W8A16, W8, W4, W4A16, FP8, preset(name); W8A8.but(exclude="head") changes one
    parts         Recipe, Scheme, DynamicScheme, Override, Style, Placement, PerTensor, PerChannel, PerBlock
    methods       MinMax, Percentile, Entropy, MSE, Distribution, Auto
    requirements  Requirements, TaskCheck
    preparation   PrepareOptions

Errors
    OctavoError is the root of RecipeError, ModelError, DataError, TableError, OutputError, IsolationError.
    ``isolated`` runs a verb on an untrusted model in a process of its own.

``stability(name)`` says of each of these names whether it is stable or provisional. Everything is loaded when
it is first used: importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from octavo._version import __version__
from octavo.core import lazy

if TYPE_CHECKING:
    from octavo.api import convert_qat, quantize, tune
    from octavo.comparison.comparing import compare
    from octavo.comparison.comparison_result import Comparison
    from octavo.comparison.diagnosis import Diagnosis, doctor
    from octavo.core.granularity import PerBlock, PerChannel, PerTensor
    from octavo.core.plan import Plan
    from octavo.core.qparams import QParams
    from octavo.core.recipe import (
        FP8,
        W4,
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
    from octavo.data.adjusted import arrays
    from octavo.data.images.preprocessing import preprocessing
    from octavo.data.readers.image_files import images
    from octavo.data.readers.random_samples import random_data
    from octavo.data.readers.text_files import text
    from octavo.errors import (
        DataError,
        IsolationError,
        ModelError,
        OctavoError,
        OutputError,
        RecipeError,
        TableError,
    )
    from octavo.evaluation.evaluator import evaluate
    from octavo.evaluation.scores import Evaluation
    from octavo.evaluation.task_registry import metric
    from octavo.evaluation.timing.bench import bench
    from octavo.evaluation.timing.measurements import Bench
    from octavo.folders import FolderResult, quantize_folder
    from octavo.isolation import isolated
    from octavo.linting import Lint, lint
    from octavo.model.prepare import PrepareOptions
    from octavo.reporting.html import report
    from octavo.result import Result
    from octavo.stages import (
        Prepared,
        calibrate,
        emit,
        inspect,
        load_stats,
        plan,
        prepare,
        ready,
        save_stats,
    )
    from octavo.tuning.proposals import Proposal, propose
    from octavo.tuning.requirements import Requirements, TaskCheck
    from octavo.tuning.trial import Tuned

_HOMES = {
    "octavo.api": ("convert_qat", "quantize", "tune"),
    "octavo.data.adjusted": ("arrays",),
    "octavo.data.readers.image_files": ("images",),
    "octavo.data.readers.random_samples": ("random_data",),
    "octavo.data.images.preprocessing": ("preprocessing",),
    "octavo.data.readers.text_files": ("text",),
    "octavo.core.granularity": ("PerBlock", "PerChannel", "PerTensor"),
    "octavo.core.plan": ("Plan",),
    "octavo.core.qparams": ("QParams",),
    "octavo.core.recipe": (
        "FP8", "W4", "W4A16", "W8", "W8A16", "W8A8",
        "DynamicScheme", "Override", "Placement", "Recipe", "Style", "preset",
    ),
    "octavo.core.scheme": ("MSE", "Auto", "Distribution", "Entropy", "MinMax", "Percentile", "Scheme"),
    "octavo.core.stats": ("Stats",),
    "octavo.errors": (
        "DataError", "IsolationError", "ModelError", "OctavoError", "OutputError", "RecipeError",
        "TableError",
    ),
    "octavo.comparison.comparing": ("compare",),
    "octavo.comparison.comparison_result": ("Comparison",),
    "octavo.comparison.diagnosis": ("Diagnosis", "doctor"),
    "octavo.evaluation.timing.bench": ("bench",),
    "octavo.evaluation.timing.measurements": ("Bench",),
    "octavo.evaluation.task_registry": ("metric",),
    "octavo.evaluation.scores": ("Evaluation",),
    "octavo.evaluation.evaluator": ("evaluate",),
    "octavo.folders": ("FolderResult", "quantize_folder"),
    "octavo.isolation": ("isolated",),
    "octavo.linting": ("Lint", "lint"),
    "octavo.model.prepare": ("PrepareOptions",),
    "octavo.reporting.html": ("report",),
    "octavo.result": ("Result",),
    "octavo.stages": (
        "Prepared", "calibrate", "emit", "inspect", "load_stats", "plan", "prepare", "ready", "save_stats",
    ),
    "octavo.tuning.requirements": ("Requirements", "TaskCheck"),
    "octavo.tuning.trial": ("Tuned",),
    "octavo.tuning.proposals": ("Proposal", "propose"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - grouped
    # verbs
    "quantize", "quantize_folder", "tune", "convert_qat", "plan", "prepare", "ready", "calibrate", "emit",
    "inspect", "load_stats", "save_stats",
    "evaluate", "bench", "metric", "compare", "propose", "doctor", "lint", "report", "isolated",
    # what they take and give
    "FolderResult", "Plan", "Prepared", "PrepareOptions", "QParams", "Result", "Stats",
    "Evaluation", "Bench", "Comparison", "Proposal", "Diagnosis", "Lint",
    "Requirements", "TaskCheck", "Tuned",
    # data
    "images", "arrays", "text", "random_data", "preprocessing",
    # recipes
    "Recipe", "Scheme", "DynamicScheme", "Style", "Placement", "Override", "preset",
    "W8A8", "W8A16", "W8", "W4", "W4A16", "FP8",
    "PerTensor", "PerChannel", "PerBlock",
    # calibration methods
    "MinMax", "Percentile", "Entropy", "MSE", "Distribution", "Auto",
    # errors
    "OctavoError", "RecipeError", "ModelError", "DataError", "TableError", "OutputError",
    "IsolationError",
    "__version__",
]  # fmt: skip

# May still change between minor releases; all other names are stable.
PROVISIONAL = frozenset({
    "Comparison", "Diagnosis", "Distribution", "FP8", "FolderResult", "Lint", "PrepareOptions",
    "Requirements", "TaskCheck", "Tuned", "doctor", "isolated", "metric", "preprocessing",
    "quantize_folder", "random_data", "ready", "tune",
})  # fmt: skip


def stability(name: str) -> str:
    """Return ``stable`` or ``provisional`` for a public name."""
    if name not in __all__:
        raise AttributeError(f"{name!r} is not a public name of octavo")
    return "provisional" if name in PROVISIONAL else "stable"


lazy.install()


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}{_meant(name)}")
    with lazy.uncollected():
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def _meant(name: str) -> str:
    """Return the public name that a misspelt one is nearest to, as the end of a sentence."""
    from octavo.errors import closest

    return "" if name.startswith("_") else closest(name, __all__, 1)


def __dir__() -> list[str]:
    return sorted(__all__)
