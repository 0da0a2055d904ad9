"""Last stages: write the plan into the graph (emit), save it, and check what was saved (verify)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from octavo import calibration, emission, planning
from octavo.algorithms.steps.cache import Cache
from octavo.core.lazy import uncollected
from octavo.core.plan import HalfCompute, Plan
from octavo.core.recipe import FloatType
from octavo.data.decoder import filled, ids_of
from octavo.model.files import io
from octavo.model.graph.subgraph_constants import sink
from octavo.model.prepare.widen import store_narrow
from octavo.model.runtime.samples import specs_of
from octavo.model.runtime.session import Feeds
from octavo.model.runtime.session_inputs import check
from octavo.model.runtime.verification import verify
from octavo.pipeline.calibrate import Calibrated
from octavo.pipeline.options import Run
from octavo.pipeline.prepare import PreparedModel
from octavo.pipeline.resolve import Steps, resolved
from octavo.planning.resolve import Params
from octavo.result import Result, write_verified


def finish(
    prepared: PreparedModel, plan: Plan, found: Calibrated | None, run: Run, steps: Steps | None = None
) -> Result:
    """Resolve, emit, save and verify."""
    run.progress("quantize", 0, 1)
    model = prepared.model
    with uncollected():
        params, reports = resolved(model, plan, found, run, steps)
        plan = planning.settled_lowerings(model, plan, params)
        emit(model, plan, params)
    if run.destination.accept is not None:
        run.destination.accept(model, prepared.float_bytes)
    samples = found.samples if found is not None else None
    unchecked = _unchecked(plan)
    if unchecked:
        if run.destination.verify:
            check(model)
        run = replace(run, destination=replace(run.destination, verify=False))
    sample = samples.first if samples is not None else run.destination.sample
    if any(report.step == Cache.name and report.changed for report in reports):
        sample = _with_narrow_cache(model, sample)
    if isinstance(plan.half, HalfCompute) and plan.half.io:
        sample = _with_half_inputs(model, sample)
    hand_over(model, run, sample)
    return Result(
        model=model,
        plan=plan,
        params=params,
        stats=found.stats if found is not None else None,
        prepared=prepared.report,
        notes=(
            *prepared.report.notes,
            *unchecked,
            *(samples.notes if samples is not None else ()),
            *_clipped(found),
            *(str(report) for report in reports if report.changed or report.refused),
        ),
        float_bytes=prepared.float_bytes,
        bytes=io.weight_bytes(model),
        source=prepared.source,
        data_fingerprint=_data_fingerprint(found),
        steps=reports,
    )


def _with_narrow_cache(model: ir.Model, feeds: Feeds | None) -> Feeds | None:
    """Return the text of a sample as one that begins with an empty cache of the type that it now has."""
    specs = specs_of(model)
    return filled(np.asarray(feeds[ids_of(specs).name]), specs) if feeds is not None else None


def _with_half_inputs(model: ir.Model, feeds: Feeds | None) -> Feeds | None:
    """Return a sample in the types that the model's inputs now have."""
    if feeds is None:
        return None
    kinds = {spec.name: spec.dtype for spec in specs_of(model)}
    return {name: np.asarray(one).astype(kinds.get(name)) for name, one in feeds.items()}


def _unchecked(plan: Plan) -> tuple[str, ...]:
    """Say where the result can't be run here: ONNX Runtime's CPU has no kernels that compute in bfloat16."""
    if isinstance(plan.half, HalfCompute) and plan.half.float_type is FloatType.BFLOAT16:
        return ("ONNX Runtime's CPU does not compute in bfloat16: the result was checked, and not run",)
    return ()


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write a plan into its model, in place."""
    emission.emit(model, plan, params)
    store_narrow(model)
    sink(model)


def _clipped(found: Calibrated | None) -> tuple[str, ...]:
    """Return the note about tensors that their ranges clip for the most part."""
    narrow = calibration.narrow_ranges(found.stats, found.ranges) if found is not None else {}
    return (calibration.narrow_ranges_note(narrow),) if narrow else ()


def _data_fingerprint(found: Calibrated | None) -> str | None:
    if found is None:
        return None
    if found.samples is not None and found.samples.fingerprint is not None:
        return found.samples.fingerprint
    return found.stats.origin.fingerprint if found.stats.origin is not None else None


def hand_over(model: ir.Model, run: Run, feeds: Feeds | None) -> None:
    """Save the model where the run says so, and check it, on a sample of the caller's where there is one."""
    to, execution = run.destination, run.execution
    if to.verify:
        run.progress("verify", 0, 1)
    if to.path is not None and to.verify:
        write_verified(model, to.path, feeds, to.external_data, execution.custom_ops, execution.threads)
    elif to.path is not None:
        io.save(model, to.path, external_data=to.external_data)
    elif to.verify:
        verify(model, feeds=feeds, custom_ops=execution.custom_ops, threads=execution.threads)
