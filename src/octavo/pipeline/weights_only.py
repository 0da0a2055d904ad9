"""The door for callers who want weights quantized in the graph as it is: not prepared, and not verified.

::

    load → normal form → plan by a weight-only recipe → (one pass over the data) → write
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from octavo import emission
from octavo.algorithms.steps import registry as stepping
from octavo.core.plan import Plan
from octavo.core.recipe import Recipe
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.graph.scopes import remove_unused
from octavo.model.prepare import PrepareReport, shapes
from octavo.pipeline.calibrate import calibrated, carried_out
from octavo.pipeline.options import Execution, Observation, Run
from octavo.pipeline.plan import planned
from octavo.pipeline.prepare import PreparedModel
from octavo.pipeline.resolve import Steps, resolved, weight_steps
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
    if recipe.steps:
        shapes.infer(model)  # steps look at ranks
    made = planned(model, recipe, find_target("ort-cpu"))
    if not made.plan.nodes:
        return model, made.plan
    PreparedModel(model, PrepareReport((), ()), 0, source).at_opset(made.plan.opset)
    run = Run(None, Execution(providers=providers), Observation(samples))
    steps = Steps(recipe, stepping.steps(recipe.steps))
    if steps.remaining:
        found, made = calibrated(made, data, run, steps.remaining)
        found, _ = weight_steps(made, found, run, steps)
        params, _ = resolved(model, made.plan, found, run)
    else:
        params, _ = resolved(model, made.plan, carried_out(model, made.plan, data, run), run)
    emission.emit(model, made.plan, params)
    remove_unused(model)
    return model, made.plan
