"""Writing a plan out as a graph, one file a style. Nothing is decided here."""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.plan import Plan
from octavo.core.recipe import Style
from octavo.emission import integer, qdq, qoperator, stored
from octavo.errors import TableError
from octavo.model import query
from octavo.planning.resolve import Params

__all__ = ["emit"]

_STYLES = {Style.QDQ: qdq.emit, Style.QOPERATOR: qoperator.emit, Style.INTEGER: integer.emit}


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place, in the plan's style."""
    known = {node.name for node in query.nodes(model)}
    missing = [name for name in plan.nodes if name not in known]
    if missing:
        raise TableError(
            f"The plan names {len(missing)} nodes that this model does not have, such as {missing[0]!r};"
            " make the plan from this very model, prepared in the same way."
        )
    _STYLES[plan.style](model, plan, params)
    stored.write(model, plan, params)
    if any(node.domain == "com.microsoft" for node in query.nodes(model)):
        model.opset_imports.setdefault("com.microsoft", 1)
