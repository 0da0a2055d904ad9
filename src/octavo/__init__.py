"""Octavo quantizes ONNX models: smaller, faster, still right, and it shows why.

The names below are the public surface; everything is loaded when it is first used, so that importing the
package (and ``octavo --help``) costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from octavo._version import __version__

if TYPE_CHECKING:
    from octavo.api import Prepared, calibrate, emit, inspect, plan, prepare, quantize, ready
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
    from octavo.errors import DataError, ModelError, OctavoError, OutputError, RecipeError, TableError
    from octavo.model.prepare import PrepareOptions
    from octavo.result import Result

_HOMES = {
    "octavo.api": ("Prepared", "calibrate", "emit", "inspect", "plan", "prepare", "quantize", "ready"),
    "octavo.core.granularity": ("PerBlock", "PerChannel", "PerTensor"),
    "octavo.core.plan": ("Plan",),
    "octavo.core.qparams": ("QParams",),
    "octavo.core.recipe": (
        "FP8", "W4A16", "W8", "W8A16", "W8A8",
        "DynamicScheme", "Override", "Placement", "Recipe", "Style", "preset",
    ),
    "octavo.core.scheme": ("MSE", "Auto", "Distribution", "Entropy", "MinMax", "Percentile", "Scheme"),
    "octavo.core.stats": ("Stats",),
    "octavo.errors": ("DataError", "ModelError", "OctavoError", "OutputError", "RecipeError", "TableError"),
    "octavo.model.prepare": ("PrepareOptions",),
    "octavo.result": ("Result",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - grouped
    # verbs
    "quantize", "plan", "prepare", "ready", "calibrate", "emit", "inspect",
    # what they take and give
    "Plan", "Prepared", "PrepareOptions", "QParams", "Result", "Stats",
    # recipes
    "Recipe", "Scheme", "DynamicScheme", "Style", "Placement", "Override", "preset",
    "W8A8", "W8A16", "W8", "W4A16", "FP8",
    "PerTensor", "PerChannel", "PerBlock",
    # calibration methods
    "MinMax", "Percentile", "Entropy", "MSE", "Distribution", "Auto",
    # errors
    "OctavoError", "RecipeError", "ModelError", "DataError", "TableError", "OutputError",
    "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
