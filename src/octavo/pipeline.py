"""The list of steps that ``quantize`` runs, readable from top to bottom.

::

    load → prepare → plan → (steps on the float model → plan)
         → calibrate → (plan again around what the numbers or steps speak against)
         → (steps on ranges) → resolve → (steps on the integers) → emit → verify
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from octavo import calibration, emission, planning
from octavo.algorithms import steps as stepping
from octavo.algorithms.probes import probed
from octavo.algorithms.steps import Lab, Phase, Step, StepReport, Subject
from octavo.algorithms.wishes import Wishes
from octavo.core.granularity import PerBlock
from octavo.core.plan import Bounded, Key, Measured, Plan
from octavo.core.recipe import Recipe
from octavo.core.scheme import Scheme
from octavo.core.stats import Range, Stats
from octavo.errors import DataError, ModelError, RecipeError
from octavo.measuring import (
    Measurement,
    Run,
    collect,
    completed,
    measure,
    probed_again,
    schemes,
    settled,
    watched,
)
from octavo.model import io, query
from octavo.model.prepare import PrepareOptions, PrepareReport, prepare
from octavo.model.prepare.widen import store_narrow, widen
from octavo.model.session import Feeds
from octavo.model.sink import sink
from octavo.model.verification import verify
from octavo.planning.resolve import Params
from octavo.planning.select import ORIGINAL
from octavo.result import Result, check_output, write_verified
from octavo.targets import Target

LEAST_OPSET = 13  # scales per channel
_AS_IT_IS = PrepareOptions(symbolic_shapes=False, fold_batch_norm=False, fold_constants=False, fuse=False)


@dataclass(frozen=True)
class Started:
    """A model that is ready to be planned for, and what is known of the float model."""

    model: ir.Model
    report: PrepareReport
    float_bytes: int
    source: io.ModelSource


@dataclass(frozen=True)
class Rework:
    """The steps of a recipe that are still to come, and what those before did."""

    recipe: Recipe
    late: tuple[Step, ...] = ()
    reports: tuple[StepReport, ...] = ()


@contextmanager
def uncollected() -> Iterator[None]:
    """Let Python's cycle collector rest: a growing graph would be walked again and again for nothing.

    What was made meanwhile counts as old afterwards, so that it is not walked through at once then either.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def quantize(source: io.ModelSource, data: Any, recipe: Recipe, target: Target, run: Run) -> Result:
    """All steps, by a recipe."""
    chosen = stepping.steps(recipe.steps)
    _refuse_steps_without_data(chosen, data, run)
    started = start(source, max(needed_opset(recipe), stepping.opset(chosen, target)), run)
    rework = Rework(recipe)
    if chosen:
        wanted = planning.build(started.model, recipe, target)
        _refuse_nothing(started.model, wanted)
        if stepping.of_phase(chosen, Phase.FLOAT):
            data = _twice(watched(started.model, data, run.samples), chosen)
        rework = reworked(Subject(started.model, recipe, wanted), chosen, data, run)
        if any(report.changed for report in rework.reports):
            run = replace(run, memo=None)  # it is another model now
    with uncollected():
        plan, avoid = planned(started.model, recipe, target)
    _refuse_nothing(started.model, plan)
    found: Measurement | None = None
    if plan.needs() or rework.late:
        found, plan, avoid = measure(started.model, plan, avoid, data, recipe, target, run, rework.late)
        _refuse_nothing(started.model, plan)
        if stepping.of_phase(rework.late, Phase.PLAN):
            found, plan, rework = replanned(started.model, plan, avoid, found, target, run, rework)
            _refuse_nothing(started.model, plan)
    return replace(finish(started, plan, found, run, rework), recipe=recipe)


def _refuse_steps_without_data(chosen: Sequence[Step], data: Any, run: Run) -> None:
    names = ", ".join(one.name for one in chosen)
    if chosen and run.stats is not None:
        raise RecipeError(
            f"The steps {names} have to see the model at work: give data instead of statistics."
        )
    if chosen and data is None:
        raise DataError(f"The steps {names} need calibration data; pass some, or leave the steps out.")


def _twice(samples: calibration.Watched, chosen: Sequence[Step]) -> calibration.Watched:
    """Samples to go through for steps that change the model, and again for what they made of it."""
    if samples.can_repeat:
        return samples
    names = ", ".join(one.name for one in stepping.of_phase(chosen, Phase.FLOAT))
    raise DataError(
        f"The steps {names} go through the data before calibration does, and this data can be gone through"
        " only once; give a list or a path, or leave the steps out."
    )


def reworked(subject: Subject, chosen: Sequence[Step], data: Any, run: Run) -> Rework:
    """Run the steps that change the float model, after one pass over the data for all of them."""
    for one in chosen:
        one.prepare(subject)
    early = stepping.of_phase(chosen, Phase.FLOAT)
    late = tuple(one for one in chosen if one not in early)
    if not early:
        return Rework(subject.recipe, late)
    samples = watched(subject.model, data, run.samples)
    with stepping.observed(early, subject) as needs:
        stats = collect(subject.model, {}, samples, replace(run, memo=None), needs) if needs else Stats()
    return Rework(subject.recipe, late, stepping.apply(early, subject, stats))


def carry_out(source: io.ModelSource, data: Any, plan: Plan, run: Run) -> Result:
    """The steps after planning, by a plan that is given."""
    started = start(source, plan.opset, run)
    planning.check_fits(started.model, plan)
    _refuse_nothing(started.model, plan)
    found: Measurement | None = None
    if plan.needs():
        samples = watched(started.model, data, run.samples) if run.stats is None else None
        stats = collect(started.model, plan.needs(), samples, run)
        found = Measurement(stats, calibration.ranges(stats, schemes(plan)), samples)
    return finish(started, plan, found, run)


def start(source: io.ModelSource, opset: int, run: Run) -> Started:
    """Load and prepare."""
    run.progress("load", 0, 1)
    model = io.load(source)
    if run.stats is not None and run.stats.origin is not None:
        run.stats.origin.check_model(io.fingerprint(model), prepare_name(run.prepare), io.describe(model))
    query.refuse_unsupported(model)
    if run.output is not None:
        check_output(model, run.output)
    size = io.held_bytes(model)
    run.progress("prepare", 0, 1)
    with uncollected():
        report = ready(model, opset, run.prepare)
    run.progress("plan", 0, 1)
    return Started(model, report, size, source)


def ready(model: ir.Model, opset: int, options: PrepareOptions | None) -> PrepareReport:
    """Bring a model into the form that planning needs, in place: canonical, prepared, float32, at an opset.

    On a model that is in this form already it changes nothing. ``options`` None: as little as possible.
    """
    wanted = options if options is not None else _AS_IT_IS
    model.meta[ORIGINAL] = {node.name or "": node.op_type for node in query.nodes(model)}
    report = prepare(model, replace(wanted, opset=max(opset, wanted.opset or 0)))
    kinds = sorted(
        {v.dtype.name.lower() for v in model.graph.inputs if v.dtype is not None and query.is_float(v)}
    )
    if widen(model):
        note = f"computed in float32; inputs and outputs keep their types ({', '.join(kinds) or 'no floats'})"
        report = replace(report, notes=(*report.notes, note))
    return report


def prepare_name(options: PrepareOptions | None) -> str:
    """How a model is prepared, in words, the opset aside, which changes no tensor."""
    if options is None:
        return "as it is"
    usual = PrepareOptions()
    changed = {key: value for key, value in vars(options).items() if value != vars(usual)[key]}
    changed.pop("opset", None)
    return ", ".join(f"{key}={value}" for key, value in changed.items()) or "as usual"


def needed_opset(recipe: Recipe) -> int:
    """13 for scales per channel; 21 for float8, 16 bits, 4 bits and blocks."""
    schemes: list[Scheme] = [recipe.weights]
    if isinstance(recipe.activations, Scheme):
        schemes.append(recipe.activations)
    types = [s.qtype for s in schemes] + [o.qtype for o in recipe.overrides if o.qtype is not None]
    grains = [s.granularity for s in schemes] + [o.granularity for o in recipe.overrides]
    blocks = any(isinstance(grain, PerBlock) for grain in grains)
    return max([LEAST_OPSET, *(t.min_opset for t in types), *([21] if blocks else [])])


def _refuse_nothing(model: ir.Model, plan: Plan) -> None:
    """Raise where nothing would be quantized: a copy of the model is not what was asked for."""
    if plan.nodes or plan.stored:
        return
    reasons = Counter(f"{s.op_type}: {s.reason}" for s in plan.skipped).most_common(5)
    listed = "; ".join(f"{count} × {text}" for text, count in reasons) or "no operator computes on floats"
    raise ModelError(f"{io.describe(model)} has nothing that can be quantized: {listed}.")


def planned(model: ir.Model, recipe: Recipe, target: Target) -> tuple[Plan, planning.Avoid]:
    """The plan before calibration, made around weights that the types asked for would ruin."""
    plan = planning.build(model, recipe, target)
    avoid = planning.lost_weights(model, plan)
    return (planning.build(model, recipe, target, avoid) if avoid else plan), avoid


def replanned(
    model: ir.Model,
    plan: Plan,
    avoid: planning.Avoid,
    found: Measurement,
    target: Target,
    run: Run,
    rework: Rework,
) -> tuple[Measurement, Plan, Rework]:
    """Run the steps that see what the plan does to each layer, and make it again as they want it."""
    recipe = rework.recipe
    ranges, _ = narrowed(model, plan, found, rework)
    params = planning.resolve(model, plan, ranges)
    lab = _lab(model, plan, params, found, run)
    subject = Subject(model, recipe, plan, params, lab=lab, target=target)
    reports = stepping.apply(stepping.of_phase(rework.late, Phase.PLAN), subject, found.probes)
    rework = replace(rework, reports=rework.reports + reports)
    if not subject.changes:
        return found, plan, rework
    avoid = avoid.and_also(planning.Avoid(subject.changes.floats, subject.changes.tensors))
    plan = planning.build(model, recipe, target, avoid)
    kept = [one for one in subject.changes.overrides.values() if has_range(plan, one.tensor)]
    if kept:
        recipe = recipe.but(overrides=(*recipe.overrides, *kept))
        plan = planning.build(model, recipe, target, avoid)
    found = completed(model, plan, avoid, found, run)
    found, plan, _ = settled(model, plan, avoid, found, recipe, target, run)
    found = probed_again(model, plan, found, recipe, run, rework.late)
    return found, plan, replace(rework, recipe=recipe)


def has_range(plan: Plan, tensor: str) -> bool:
    """Whether a tensor is quantized for every reader, with a range of its own."""
    return isinstance(plan.entries.get(Key(tensor)), Measured | Bounded)


def narrowed(
    model: ir.Model, plan: Plan, found: Measurement | None, rework: Rework | None
) -> tuple[dict[str, Range], tuple[StepReport, ...]]:
    """The measured ranges after the steps that change them."""
    ranges = dict(found.ranges) if found is not None else {}
    if found is None or rework is None:
        return ranges, ()
    subject = Subject(model, rework.recipe, plan, ranges=ranges)
    return ranges, stepping.apply(stepping.of_phase(rework.late, Phase.RANGES), subject, found.probes)


def finish(
    started: Started, plan: Plan, found: Measurement | None, run: Run, rework: Rework | None = None
) -> Result:
    """Parameters, the steps that work on them, the written graph, and the check of it."""
    run.progress("quantize", 0, 1)
    model = started.model
    reports = rework.reports if rework is not None else ()
    with uncollected():
        ranges, more = narrowed(model, plan, found, rework)
        reports += more
        params: Params = planning.resolve(model, plan, ranges)
        if rework is not None and found is not None:
            last = stepping.of_phase(rework.late, Phase.INTEGERS)
            lab = _lab(model, plan, params, found, run)
            reports += stepping.apply(
                last, Subject(model, rework.recipe, plan, params, lab=lab), found.probes
            )
        emission.emit(model, plan, params)
        store_narrow(model)
        sink(model)
    samples = found.samples if found is not None else None
    hand_over(model, run, samples.first if samples is not None else None)
    return Result(
        model=model,
        plan=plan,
        params=params,
        stats=found.stats if found is not None else None,
        prepared=started.report,
        notes=(
            *started.report.notes,
            *(samples.findings if samples is not None else ()),
            *(str(report) for report in reports if report.changed or report.refused),
        ),
        float_bytes=started.float_bytes,
        bytes=io.weight_bytes(model),
        source=started.source,
        data_fingerprint=_data_fingerprint(found),
        steps=reports,
    )


def _lab(model: ir.Model, plan: Plan, params: Params, found: Measurement, run: Run) -> Lab | None:
    """What steps can try out: the model as it would be written now, on the samples."""
    samples = found.samples
    if samples is None:
        return None

    def emitted() -> ir.Model:
        copy = model.clone()
        emission.emit(copy, plan, params)
        return copy

    def observe(observed: ir.Model, wishes: Wishes) -> Stats:
        with probed(observed, wishes) as needs:
            return collect(observed, {}, samples, replace(run, memo=None), needs)

    return Lab(emitted, observe, samples.can_repeat)


def _data_fingerprint(found: Measurement | None) -> str | None:
    if found is None:
        return None
    if found.samples is not None and found.samples.fingerprint is not None:
        return found.samples.fingerprint
    return found.stats.origin.fingerprint if found.stats.origin is not None else None


def hand_over(model: ir.Model, run: Run, feeds: Feeds | None) -> None:
    """Write the model if asked to, and check it, on a sample of the caller's where there is one."""
    if run.verify:
        run.progress("verify", 0, 1)
    if run.output is not None and run.verify:
        write_verified(model, run.output, feeds, run.external_data, run.custom_ops, run.threads)
    elif run.output is not None:
        io.save(model, run.output, external_data=run.external_data)
    elif run.verify:
        verify(model, feeds=feeds, custom_ops=run.custom_ops, threads=run.threads)
