"""The door for callers who want weights quantized in the graph as it is: not prepared, and not verified.

::

    load → normal form → plan by a weight-only recipe → (one pass over the data) → write
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from octavo import emission, planning
from octavo.core.plan import Plan
from octavo.core.recipe import Recipe
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.graph.scopes import remove_unused
from octavo.model.prepare import PrepareReport
from octavo.pipeline.calibrate import carried_out
from octavo.pipeline.options import Execution, Observation, Run
from octavo.pipeline.prepare import PreparedModel
from octavo.pipeline.resolve import resolved
from octavo.targets import target as find_target

Names = Mapping[ir.Node, str]


def quantize(
    source: io.ModelSource,
    recipe_for: Callable[[ir.Model, Names], Recipe],
    data: Any,
    *,
    samples: int | None = None,
    providers: Sequence[str] | None = None,
) -> tuple[ir.Model, Plan]:
    """Quantize the weights of a model; the recipe may depend on its nodes and the names that they had."""
    model = io.load(source)
    known = {node: node.name or "" for node in query.nodes(model)}
    normalize(model)
    recipe = recipe_for(model, known)
    plan = planning.build(model, planning.policy_for(recipe, find_target("ort-cpu")))
    if not plan.nodes:
        return model, plan
    subject = PreparedModel(model, PrepareReport((), ()), 0, source).at_opset(plan.opset)
    run = Run(None, Execution(providers=providers), Observation(samples))
    found = carried_out(subject.model, plan, data, run)
    params, _ = resolved(subject.model, plan, found, run)
    emission.emit(subject.model, plan, params)
    remove_unused(subject.model)
    return subject.model, plan
