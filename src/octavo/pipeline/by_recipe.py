"""The doors into the pipeline that begin with a recipe, or with a plan that was made before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo import planning
from octavo.algorithms import steps as stepping
from octavo.algorithms.steps import Phase, Subject
from octavo.core.plan import Plan
from octavo.core.recipe import Recipe
from octavo.errors import OctavoError
from octavo.model.files import io
from octavo.model.graph import meta
from octavo.pipeline.calibrate import Calibrated, calibrated, carried_out, samples_of
from octavo.pipeline.finish import finish
from octavo.pipeline.half_precision import with_half
from octavo.pipeline.load import load
from octavo.pipeline.mixed_bits import with_widths
from octavo.pipeline.options import Run
from octavo.pipeline.plan import gain_by_data, planned, refuse_nothing
from octavo.pipeline.prepare import PreparedModel, needed_opset, ready, uncollected
from octavo.pipeline.resolve import (
    Steps,
    check_data,
    check_repeats,
    enough,
    float_steps,
    plan_steps,
    weight_steps,
)
from octavo.pipeline.weight_inputs import (
    inputs_of,
    needs_inputs,
    or_random_tokens,
    with_algorithm,
    without_inputs,
)
from octavo.result import Result, check_output
from octavo.targets import Target

_RANDOM = "no data: the inputs that weights are weighted by are those of random tokens"


def prepared(
    source: io.ModelSource | PreparedModel, opset: int, run: Run, *, fingerprint: bool = False
) -> PreparedModel:
    """Load and prepare a model, or copy one that is prepared."""
    if isinstance(source, PreparedModel):
        if run.destination.path is not None:
            check_output(source.model, run.destination.path)
        return source.copy().at_opset(opset)
    found = load(source, run)
    digest = io.fingerprint(found.model) if fingerprint else None
    run.progress("prepare", 0, 1)
    with uncollected():
        report = ready(found.model, opset, run.prepare)
    run.progress("plan", 0, 1)
    return PreparedModel(found.model, report, found.float_bytes, source, digest)


def quantize(
    source: io.ModelSource | PreparedModel, data: Any, recipe: Recipe, target: Target, run: Run
) -> Result:
    """Quantize a model by a recipe."""
    listed = stepping.listed(recipe.steps)
    if data is None or run.observation.stats is not None:
        listed = tuple(one for one in listed if not one.min_samples)  # there is no sample to count
    chosen = tuple(one.step for one in listed)
    check_data(chosen, data, run)
    subject = prepared(source, max(needed_opset(recipe), stepping.opset(chosen, target)), run)
    model = subject.model
    is_open = recipe.weight_only.algorithm == "auto"
    recipe = with_algorithm(model, recipe, data, run)
    if any(one.min_samples for one in listed):
        data = samples_of(model, data, run.observation.samples)
        chosen = enough(listed, data)
    steps = Steps(recipe)
    if chosen:
        first = planning.build(model, planning.policy_for(recipe, target))
        refuse_nothing(model, first)
        if stepping.of_phase(chosen, Phase.FLOAT):
            data = samples_of(model, data, run.observation.samples)
            check_repeats(data, chosen)
        steps = float_steps(Subject(model, recipe, first, progress=run.progress), chosen, data, run)
        if any(report.changed for report in steps.reports):  # statistics of other runs are of another model
            run = replace(run, observation=replace(run.observation, known=None))
    with uncollected():
        made = planned(model, recipe, target)
    if recipe.half is None:
        nothing = not made.plan.nodes and not made.plan.compressed
        refuse_nothing(model, made.plan, gain_by_data(model, recipe, target) if nothing else "")
    found: Calibrated | None = None
    subject.at_opset(made.plan.opset)
    if made.plan.needs() or steps.remaining or needs_inputs(made.plan):
        given = or_random_tokens(model, made.plan, data, run)
        try:
            found, made = calibrated(made, given, run, steps.remaining)
        except OctavoError as error:
            if given is data or not is_open:
                raise
            made = made.by(without_inputs(recipe)).noting(f"not run with random tokens: {error}")
            recipe = made.recipe
        else:
            made = made.noting(_RANDOM) if given is not data else made
    if found is not None:
        refuse_nothing(model, made.plan)
        if steps.of_phase(Phase.PLAN):
            found, made, steps = plan_steps(made, found, run, steps)
            refuse_nothing(model, made.plan)
    if recipe.weight_only.average_bits is not None and recipe.is_weight_only:
        read = found.samples if found is not None else None
        read = samples_of(model, data, run.observation.samples) if read is None and data is not None else read
        given = inputs_of(model, made.plan, found.probes) if found is not None else {}
        made = with_widths(made, given, read, run.progress)
        recipe = made.recipe
        steps = replace(steps, recipe=recipe)
    if found is not None:
        found, steps = weight_steps(made, found, run, steps)
    samples = found.samples if found is not None and found.samples is not None else data
    plan = with_half(made.plan, model, recipe, target, samples, run)
    meta.record_recipe(model, recipe)
    return replace(finish(subject, plan, found, run, steps), recipe=recipe)


def carry_out(source: io.ModelSource | PreparedModel, data: Any, plan: Plan, run: Run) -> Result:
    """Quantize a model by a plan, as it says."""
    subject = prepared(source, plan.opset, run)
    planning.check_fits(subject.model, plan)
    refuse_nothing(subject.model, plan)
    data = or_random_tokens(subject.model, plan, data, run)
    return finish(subject, plan, carried_out(subject.model, plan, data, run), run)
