"""Writing a plan out as a graph, one file a style. Nothing is decided here."""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.plan import Plan
from octavo.core.recipe import Style
from octavo.emission import integer, qdq, qoperator, stored
from octavo.model import query
from octavo.planning.resolve import Params

__all__ = ["emit"]

_STYLES = {Style.QDQ: qdq.emit, Style.QOPERATOR: qoperator.emit, Style.INTEGER: integer.emit}


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place, in the plan's style."""
    _STYLES[plan.style](model, plan, params)
    stored.write(model, plan, params)
    if "com.microsoft" in {node.domain for node in query.nodes(model)}:
        model.opset_imports.setdefault("com.microsoft", 1)
