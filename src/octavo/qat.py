"""From a model trained with fake quantization to one that computes with integers.

::

    load → take fake quantization out → prepare → plan by the trained parameters → (measure what is missing)
         → write → verify
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from octavo import calibration, measuring, pipeline
from octavo.core.plan import Key, Plan
from octavo.core.qparams import QParams
from octavo.core.recipe import Pattern, Recipe, Style
from octavo.errors import ModelError
from octavo.measuring import Measurement, Run
from octavo.model import io, query
from octavo.model.fake_quant import Peeled, fold_scales, peel
from octavo.model.normalize import normalize
from octavo.model.prepare import PrepareOptions, constants, raise_opset, shapes
from octavo.pipeline import Started
from octavo.planning import from_qat
from octavo.planning.select import Selection
from octavo.result import Result, check_output
from octavo.targets import Target

_PREPARE = PrepareOptions(fold_batch_norm=False, fuse=False)  # both would change what parameters belong to


def convert(
    source: io.ModelSource,
    data: Any,
    style: Style,
    target: Target,
    run: Run,
    *,
    exact: bool = True,
    op_types: Sequence[str] | None = None,
    include: Sequence[Pattern] = (),
    exclude: Sequence[Pattern] = (),
) -> Result:
    """All steps."""
    run.progress("load", 0, 1)
    model = io.load(source)
    if run.output is not None:
        check_output(model, run.output)
    size = io.held_bytes(model)
    run.progress("prepare", 0, 1)
    with pipeline.uncollected():
        peeled, report = _float_model(model, exact)
        run.progress("plan", 0, 1)
        wanted = target.static_recipe.but(
            op_types=tuple(op_types) if op_types else None, include=tuple(include), exclude=tuple(exclude)
        )
        wish = from_qat.Wish(style, target, data is not None, _refused(model, wanted))
        plan = from_qat.build(model, peeled.params, wish)
        raise_opset(model, plan.opset)
    if not plan.nodes:
        raise ModelError(_nothing(model, plan))
    report = replace(report, notes=(*report.notes, *peeled.notes))
    started = Started(model, report, size, source)
    return pipeline.finish(started, plan, _measured(model, plan, data, run), run)


def _float_model(model: ir.Model, exact: bool) -> tuple[Peeled, Any]:
    """Fake quantization of weights goes before constants are computed, which would hide it."""
    normalize(model)
    shapes.infer(model)
    constants.remove_no_ops(model)
    first = peel(model, exact=exact)
    shapes.infer(model)
    report = pipeline.ready(model, pipeline.LEAST_OPSET, _PREPARE)
    peeled = peel(model, exact=exact, before=first)
    folded = fold_scales(model, peeled.params)
    if folded:
        peeled.notes.append(
            f"{folded} convolutions took in the normalization behind them; integers are the same"
        )
    shapes.infer(model)
    peeled.params = _still_there(model, peeled.params)
    if not peeled.params:
        raise ModelError(
            f"{io.describe(model)} has no fake quantization whose parameters are constants: no pair of"
            " QuantizeLinear and DequantizeLinear, no FakeQuant; quantize it with 'octavo quantize' instead."
        )
    return peeled, report


def _still_there(model: ir.Model, params: Mapping[Key, QParams]) -> dict[Key, QParams]:
    """The parameters of tensors and readers that preparation has left as they were."""
    reads = {node.name: {v.name for v in node.inputs if v is not None} for node in query.nodes(model)}
    tensors = {name for names in reads.values() for name in names} | {v.name for v in model.graph.outputs}
    return {
        key: found
        for key, found in params.items()
        if key.tensor in tensors and (key.reader is None or key.tensor in reads.get(key.reader, ()))
    }


def _refused(model: ir.Model, recipe: Recipe) -> dict[str, str]:
    selection = Selection(list(query.nodes(model)), recipe, {})
    found = {node.name or "": selection.refusal(node) for node in query.nodes(model)}
    return {name: reason for name, reason in found.items() if reason is not None}


def _measured(model: ir.Model, plan: Plan, data: Any, run: Run) -> Measurement | None:
    if not plan.needs():
        return None
    samples = measuring.watched(model, data, run.samples)
    stats = measuring.collect(model, plan.needs(), samples, run)
    return Measurement(stats, calibration.ranges(stats, measuring.schemes(plan)), samples)


def _nothing(model: ir.Model, plan: Plan) -> str:
    reasons = list(dict.fromkeys(f"{s.op_type}: {s.reason}" for s in plan.skipped))[:5]
    return (
        f"{io.describe(model)} was trained with fake quantization, but no operator can compute with it in the"
        f" {plan.style.value} style: {'; '.join(reasons) or 'nothing reads it'}."
    )
