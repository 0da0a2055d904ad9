"""From a model trained with fake quantization to one that computes with integers.

::

    load → take fake quantization out → prepare → plan by the trained parameters → (measure what is missing)
         → write → verify
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from octavo import planning
from octavo.core.lazy import uncollected
from octavo.core.plan import Key, Plan
from octavo.core.qparams import QParams
from octavo.core.recipe import Recipe, Style
from octavo.errors import ModelError
from octavo.model.fake_quant.peel import Peeled, peel
from octavo.model.fake_quant.scaled import fold_scales
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import PrepareOptions, constant_folding, raise_opset, shapes
from octavo.pipeline.calibrate import carried_out
from octavo.pipeline.finish import finish
from octavo.pipeline.options import Run
from octavo.pipeline.prepare import LEAST_OPSET, PreparedModel, ready
from octavo.planning.policies.trained import TrainedPolicy
from octavo.result import Result, check_output
from octavo.targets import Target

_PREPARE = PrepareOptions(fold_batch_norm=False, fuse=False)  # both would change what parameters belong to


def convert(
    source: io.ModelSource,
    data: Any,
    style: Style,
    recipe: Recipe,
    target: Target,
    run: Run,
    *,
    exact: bool = True,
) -> Result:
    """Convert a trained model; the recipe says which nodes."""
    run.progress("load", 0, 1)
    model = io.load(source)
    if run.destination.path is not None:
        check_output(model, run.destination.path)
    size = io.held_bytes(model)
    run.progress("prepare", 0, 1)
    with uncollected():
        peeled, report = _float_model(model, exact)
        run.progress("plan", 0, 1)
        policy = TrainedPolicy(peeled.params, recipe.but(style=style), target, measure=data is not None)
        plan = planning.build(model, policy)
        raise_opset(model, plan.opset)
    if not plan.nodes:
        raise ModelError(_nothing(model, plan))
    report = replace(report, notes=(*report.notes, *peeled.notes))
    subject = PreparedModel(model, report, size, source)
    return finish(subject, plan, carried_out(model, plan, data, run), run)


def _float_model(model: ir.Model, exact: bool) -> tuple[Peeled, Any]:
    """Fake quantization of weights goes before constants are computed, which would hide it."""
    normalize(model)
    shapes.infer(model)
    constant_folding.remove_no_ops(model)
    first = peel(model, exact=exact)
    shapes.infer(model)
    report = ready(model, LEAST_OPSET, _PREPARE)
    peeled = peel(model, exact=exact, before=first)
    folded = fold_scales(model, peeled.params)
    if folded:
        peeled.notes.append(f"{folded} batch normalizations folded into convolutions; integers are unchanged")
    shapes.infer(model)
    peeled.params = _still_there(model, peeled.params)
    if not peeled.params:
        raise ModelError(
            f"{io.describe(model)} has no fake quantization whose parameters are constants: no pair of"
            " QuantizeLinear and DequantizeLinear, no FakeQuant; quantize it with 'octavo quantize' instead."
        )
    return peeled, report


def _still_there(model: ir.Model, params: Mapping[Key, QParams]) -> dict[Key, QParams]:
    """Return the parameters of tensors and readers that preparation has left as they were."""
    reads = {node.name: {v.name for v in node.inputs if v is not None} for node in query.nodes(model)}
    tensors = {name for names in reads.values() for name in names} | {v.name for v in model.graph.outputs}
    return {
        key: found
        for key, found in params.items()
        if key.tensor in tensors and (key.consumer is None or key.tensor in reads.get(key.consumer, ()))
    }


def _nothing(model: ir.Model, plan: Plan) -> str:
    reasons = list(dict.fromkeys(f"{s.op_type}: {s.reason}" for s in plan.skipped))[:5]
    return (
        f"{io.describe(model)} was trained with fake quantization, but no operator can compute with it in the"
        f" {plan.style.value} style: {'; '.join(reasons) or 'nothing reads it'}."
    )
