"""The doors into the pipeline that begin with a recipe, or with a plan that was made before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from octavo import planning
from octavo.algorithms import steps as stepping
from octavo.algorithms.steps import ListedStep, Phase, Subject
from octavo.core.lazy import uncollected
from octavo.core.plan import Plan
from octavo.core.recipe import Recipe
from octavo.errors import DataError, OctavoError, RecipeError
from octavo.model.files import io
from octavo.model.graph import meta
from octavo.pipeline.calibrate import Calibrated, calibrated, carried_out, samples_of
from octavo.pipeline.finish import finish
from octavo.pipeline.half_precision import with_half
from octavo.pipeline.load import load
from octavo.pipeline.options import Run
from octavo.pipeline.plan import Planned, gain_by_data, planned, refuse_nothing
from octavo.pipeline.prepare import PreparedModel, needed_opset, ready
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
    algorithms_with_data,
    inputs_of,
    is_sequential,
    needs_inputs,
    or_random_tokens,
    takes_random_tokens,
    with_algorithm,
    without_inputs,
)
from octavo.result import Result, check_output
from octavo.targets import Target

_RANDOM = "no data: weights are weighted by the inputs that random token ids produce"


def prepared(
    source: io.ModelSource | PreparedModel, opset: int, run: Run, *, fingerprint: bool = False
) -> PreparedModel:
    """Load and prepare a model, or copy one that is prepared."""
    if isinstance(source, PreparedModel):
        if run.destination.path is not None:
            check_output(source.model, run.destination.path)
        return source.copy().at_opset(opset)
    with uncollected():
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
    """Quantize a model by a recipe: the stages of the pipeline, one after the other."""
    listed = _listed_steps(recipe, data, run)
    opset = max(needed_opset(recipe), stepping.opset(tuple(one.step for one in listed), target))
    subject = prepared(source, opset, run)
    model, is_open = subject.model, recipe.weight_only.algorithm == "auto"
    recipe = with_algorithm(model, recipe, data, run)
    listed = _listed_steps(recipe, data, run)
    steps, data, run = _float_stage(model, recipe, target, listed, data, run)
    made = _planned(model, recipe, target)
    subject.at_opset(made.plan.opset)
    found: Calibrated | None = None
    if made.plan.needs() or steps.remaining or needs_inputs(made.plan):
        found, made = _measured(made, data, run, steps, is_open=is_open)
        recipe = made.recipe
    if found is not None:
        refuse_nothing(model, made.plan)
        if steps.of_phase(Phase.PLAN):
            found, made, steps = plan_steps(made, found, run, steps)
            refuse_nothing(model, made.plan)
    if recipe.weight_only.by_sensitivity and recipe.is_weight_only:
        made = _with_widths(made, found, data, subject.float_bytes, run)
        recipe = made.recipe
        steps = replace(steps, recipe=recipe)
    if found is not None:
        found, steps = weight_steps(made, found, run, steps)
    samples = found.samples if found is not None and found.samples is not None else data
    plan, seen = with_half(made.plan, model, recipe, target, samples, run)
    if found is None and seen is not None:
        found = replace(seen, ranges={})  # no range of it becomes a scale
    meta.record_recipe(model, recipe)
    return replace(finish(subject, plan, found, run, steps), recipe=recipe)


def _listed_steps(recipe: Recipe, data: Any, run: Run) -> tuple[ListedStep, ...]:
    """Return the steps of a recipe that its data can serve."""
    listed = stepping.listed(recipe.steps)
    if data is None or run.observation.stats is not None:
        listed = tuple(one for one in listed if not one.min_samples)  # there is no sample to count
    early = tuple(one.step for one in listed if one.step.phase is not Phase.WEIGHTS)
    check_data(early if takes_random_tokens(recipe) else tuple(one.step for one in listed), data, run)
    return listed


def _float_stage(
    model: ir.Model, recipe: Recipe, target: Target, listed: Sequence[ListedStep], data: Any, run: Run
) -> tuple[Steps, Any, Run]:
    """Change the float model by the steps that do, and return the data and the settings for what follows."""
    chosen = tuple(one.step for one in listed)
    if any(one.min_samples for one in listed):
        data = samples_of(model, data, run.observation.samples)
        chosen = enough(listed, data)
    if not chosen:
        return Steps(recipe), data, run
    plan = planning.build(model, planning.policy_for(recipe, target))
    refuse_nothing(model, plan)
    if stepping.of_phase(chosen, Phase.FLOAT):
        data = samples_of(model, data, run.observation.samples)
        check_repeats(data, chosen)
    steps = float_steps(Subject(model, recipe, plan, progress=run.progress), chosen, data, run)
    if any(report.changed for report in steps.reports):  # statistics of other runs are of another model
        run = replace(run, observation=replace(run.observation, known=None))
    return steps, data, run


def _planned(model: ir.Model, recipe: Recipe, target: Target) -> Planned:
    """Plan, and raise where nothing would be done."""
    with uncollected():
        made = planned(model, recipe, target)
    if recipe.half is None:
        nothing = not made.plan.nodes and not made.plan.compressed
        refuse_nothing(model, made.plan, gain_by_data(model, recipe, target) if nothing else "")
    return made


def _measured(
    made: Planned, data: Any, run: Run, steps: Steps, *, is_open: bool
) -> tuple[Calibrated | None, Planned]:
    """Calibrate, with random tokens if there is no data and they are enough.

    Where the model can't be run with these, and the recipe leaves the weight algorithm open (``is_open``), it
    becomes one that has to know nothing of inputs.
    """
    given = or_random_tokens(made.model, made.plan, data, run)
    if given is None and takes_random_tokens(made.recipe) and not needs_inputs(made.plan):
        return None, made  # no layer is left for which inputs matter
    if given is None and run.observation.stats is None and not (made.plan.needs() or steps.remaining):
        raise DataError(
            f"{', '.join(algorithms_with_data(made.plan))} needs calibration data, and none was given; give"
            " data=…, or choose an algorithm that needs none: algorithm='k-quant'."
        )
    try:
        found, made = calibrated(made, given, run, steps.remaining)
    except OctavoError as error:
        if given is data or not is_open:
            raise
        made = made.by(without_inputs(made.recipe)).noting(f"not run with random tokens: {error}")
        return None, made
    return found, made.noting(_RANDOM) if given is not data else made


def _with_widths(made: Planned, found: Calibrated | None, data: Any, float_bytes: int, run: Run) -> Planned:
    """Give each layer its bits by its sensitivity, measured on the samples."""
    if is_sequential(made.plan):
        raise RecipeError(
            "Bits by sensitivity compare layers by what they read in the float model, and gptq:sequential"
            " changes that; leave one of them out."
        )
    samples = found.samples if found is not None else None
    if samples is None and data is not None:
        samples = samples_of(made.model, data, run.observation.samples)
    inputs = inputs_of(made.model, made.plan, found.probes) if found is not None else {}
    from octavo.pipeline.mixed_bits import with_widths  # slow to import, and seldom needed

    return with_widths(made, inputs, samples, float_bytes, run.progress)


def carry_out(source: io.ModelSource | PreparedModel, data: Any, plan: Plan, run: Run) -> Result:
    """Quantize a model by a plan, as it says."""
    subject = prepared(source, plan.opset, run)
    planning.check_fits(subject.model, plan)
    refuse_nothing(subject.model, plan)
    data = or_random_tokens(subject.model, plan, data, run)
    return finish(subject, plan, carried_out(subject.model, plan, data, run), run)
