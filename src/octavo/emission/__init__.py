"""Writing a plan into a graph, a file for each output format. Nothing is decided here.

To add a format: a file here with a ``FORMAT``, and a line in ``FORMATS``.
"""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.lazy import load_entry
from octavo.core.plan import Plan
from octavo.emission import compressed
from octavo.emission.output_format import OutputFormat
from octavo.emission.writer import MS
from octavo.errors import RecipeError, closest
from octavo.model.graph import query
from octavo.planning.resolve import Params

__all__ = ["FORMATS", "OutputFormat", "emit", "output_format"]

FORMATS = (  # modules of octavo.emission with a FORMAT, which has the module's name
    "qdq",
    "qoperator",
    "integer",
)


def output_format(name: str) -> OutputFormat:
    """Return the output format of this name."""
    if name not in FORMATS:
        raise RecipeError(
            f"{name!r} is not an output format{closest(name, FORMATS) or '.'} Known: {', '.join(FORMATS)}."
        )
    found: OutputFormat = load_entry(__name__, f"{name}:FORMAT")
    return found


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place, in the plan's output format."""
    output_format(plan.writing.format or plan.style.value).emit(model, plan, params)
    compressed.write(model, plan, params)
    if plan.half is not None:
        load_entry(__name__, "half_precision:write")(model, plan)
    if MS not in model.opset_imports and MS in {node.domain for node in query.nodes(model)}:
        model.opset_imports[MS] = 1
