"""Writing a plan into a graph, a file for each output format. Nothing is decided here.

To add a format: a file here with a ``FORMAT``, and a line in ``_MODULES``.
"""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.lazy import load_entry
from octavo.core.plan import Plan
from octavo.emission import compressed, half_precision
from octavo.emission.output_format import OutputFormat
from octavo.emission.writer import MS
from octavo.errors import RecipeError, closest
from octavo.model.graph import query
from octavo.planning.resolve import Params

__all__ = ["FORMATS", "OutputFormat", "emit", "output_format"]

_MODULES = (  # modules of octavo.emission with a FORMAT
    "qdq",
    "qoperator",
    "integer",
)
FORMATS: dict[str, OutputFormat] = {
    one.name: one for one in (load_entry(__name__, f"{module}:FORMAT") for module in _MODULES)
}


def output_format(name: str) -> OutputFormat:
    """Return the output format of this name."""
    if name not in FORMATS:
        raise RecipeError(
            f"{name!r} is not an output format{closest(name, FORMATS) or '.'} Known: {', '.join(FORMATS)}."
        )
    return FORMATS[name]


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place, in the plan's output format."""
    output_format(plan.writing.format or plan.style.value).emit(model, plan, params)
    compressed.write(model, plan, params)
    half_precision.write(model, plan)
    if MS not in model.opset_imports and any(node.domain == MS for node in query.nodes(model)):
        model.opset_imports[MS] = 1
