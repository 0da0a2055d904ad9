"""Fifth stage: ranges become scales and zero points, with the steps that work on ranges and on integers.

Steps of the phase ``plan`` run here too, when it is known what a plan does to each layer: they may have it
made again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from octavo import emission, planning
from octavo.algorithms import steps as stepping
from octavo.algorithms.layers.probes import probed
from octavo.algorithms.layers.statistics_requests import StatisticsRequests
from octavo.algorithms.steps import ListedStep, Phase, Step, StepReport, Subject, Trial
from octavo.core.plan import Bounded, Key, Measured, Plan
from octavo.core.recipe import Recipe
from octavo.core.stats import Range, State, Stats
from octavo.data.fingerprints import FingerprintedSamples
from octavo.errors import DataError, RecipeError
from octavo.model.runtime.session import Array, Session
from octavo.pipeline.calibrate import Calibrated, completed, observe, probed_again, samples_of, settled
from octavo.pipeline.options import Run
from octavo.pipeline.plan import Planned
from octavo.pipeline.sequential import quantized_in_order
from octavo.pipeline.weight_inputs import inputs_of, is_sequential
from octavo.planning.resolve import Params

MOST_COMPARED = 64  # samples that both models are run on, spread over the data


@dataclass(frozen=True)
class Steps:
    """The steps of a recipe that are still to come, and what those before did."""

    recipe: Recipe
    remaining: tuple[Step, ...] = ()
    reports: tuple[StepReport, ...] = ()

    def of_phase(self, phase: Phase) -> tuple[Step, ...]:
        """Return the remaining steps of one phase."""
        return stepping.of_phase(self.remaining, phase)


def check_data(chosen: Sequence[Step], data: Any, run: Run) -> None:
    """Raise where steps have no data to work with."""
    names = ", ".join(one.name for one in chosen)
    if any(one.phase is not Phase.WEIGHTS for one in chosen) and run.observation.stats is not None:
        raise RecipeError(f"The steps {names} have to run the model: give data instead of statistics.")
    if chosen and data is None and run.observation.stats is None:
        raise DataError(f"The steps {names} need calibration data; give some, or leave the steps out.")


def enough(listed: Sequence[ListedStep], samples: FingerprintedSamples) -> tuple[Step, ...]:
    """Return the steps for which there are enough samples, by their ``min-samples``.

    One that reads the data before calibration does is also left out where data can be read only once.
    """
    return tuple(
        one.step
        for one in listed
        if not one.min_samples
        or (samples.has(one.min_samples) and (one.step.phase is not Phase.FLOAT or samples.can_repeat))
    )


def check_repeats(samples: FingerprintedSamples, chosen: Sequence[Step]) -> None:
    """Raise where steps change the model before calibration, and the data can be read only once."""
    if samples.can_repeat:
        return
    names = ", ".join(one.name for one in stepping.of_phase(chosen, Phase.FLOAT))
    raise DataError(
        f"The steps {names} read the data before calibration does, and this data can be read only once; give"
        " a list or a path, or leave the steps out."
    )


def float_steps(subject: Subject, chosen: Sequence[Step], data: Any, run: Run) -> Steps:
    """Run the steps that change the float model, after one pass over the data for all of them."""
    for one in chosen:
        one.prepare(subject)
    early = stepping.of_phase(chosen, Phase.FLOAT)
    late = tuple(one for one in chosen if one not in early)
    if not early:
        return Steps(subject.recipe, late)
    samples = samples_of(subject.model, data, run.observation.samples)
    with stepping.observed(early, subject) as needs:
        stats = observe(subject.model, {}, samples, _alone(run), needs) if needs else Stats()
    return Steps(subject.recipe, late, stepping.apply(early, subject, stats))


def weight_steps(planned: Planned, found: Calibrated, run: Run, steps: Steps) -> tuple[Calibrated, Steps]:
    """Run the steps that change float weights, and take over what they say of the weights' inputs."""
    chosen = steps.of_phase(Phase.WEIGHTS)
    if not chosen:
        return found, steps
    moments: dict[str, State] = dict(found.probes)
    subject = Subject(planned.model, steps.recipe, planned.plan, moments=moments, progress=run.progress)
    reports = stepping.apply(chosen, subject, moments)
    probes = Stats(moments, found.probes.samples)
    return replace(found, probes=probes), replace(steps, reports=steps.reports + reports)


def plan_steps(
    planned: Planned, found: Calibrated, run: Run, steps: Steps
) -> tuple[Calibrated, Planned, Steps]:
    """Run the steps that see what the plan does to each layer, and plan again as they demand."""
    model, plan = planned.model, planned.plan
    ranges, _ = range_steps(model, plan, found, steps, run)
    params = planning.resolve(model, plan, ranges, inputs_of(model, plan, found.probes))
    trial = _trial(model, plan, params, found, run)
    subject = Subject(
        model, steps.recipe, plan, params, trial=trial, target=planned.target, progress=run.progress
    )
    reports = stepping.apply(steps.of_phase(Phase.PLAN), subject, found.probes)
    steps = replace(steps, reports=steps.reports + reports)
    if not subject.changes:
        return found, planned, steps
    planned = planned.around(planning.Avoid(subject.changes.floats, subject.changes.tensors))
    kept = [one for one in subject.changes.overrides.values() if _has_range(planned.plan, one.tensor)]
    if kept:
        recipe = planned.recipe
        planned = planned.by(recipe.but(overrides=(*recipe.overrides, *kept)))
    found = completed(planned, found, run)
    found, planned = settled(planned, found, run)
    found = probed_again(planned, found, run, steps.remaining)
    return found, planned, replace(steps, recipe=planned.recipe)


def _has_range(plan: Plan, tensor: str) -> bool:
    """Whether a tensor is quantized for every consumer, with a range of its own."""
    return isinstance(plan.entries.get(Key(tensor)), Measured | Bounded)


def range_steps(
    model: ir.Model, plan: Plan, found: Calibrated | None, steps: Steps | None, run: Run
) -> tuple[dict[str, Range], tuple[StepReport, ...]]:
    """Return the measured ranges after the steps that change them."""
    ranges = dict(found.ranges) if found is not None else {}
    if found is None or steps is None:
        return ranges, ()
    subject = Subject(model, steps.recipe, plan, ranges=ranges, progress=run.progress)
    return ranges, stepping.apply(steps.of_phase(Phase.RANGES), subject, found.probes)


def resolved(
    model: ir.Model, plan: Plan, found: Calibrated | None, run: Run, steps: Steps | None = None
) -> tuple[Params, tuple[StepReport, ...]]:
    """Return scales and zero points of every entry, and what all steps did."""
    ranges, more = range_steps(model, plan, found, steps, run)
    reports = (*(steps.reports if steps is not None else ()), *more)
    known = None
    if is_sequential(plan):
        known = quantized_in_order(model, plan, found.samples if found is not None else None, run)
    inputs = inputs_of(model, plan, found.probes) if found is not None else None
    params = planning.resolve(model, plan, ranges, inputs, known)
    if steps is not None and found is not None:
        chosen = steps.of_phase(Phase.INTEGERS)
        trial = _trial(model, plan, params, found, run)
        if trial is not None and any(one.reads_float_model for one in chosen):
            trial = replace(trial, float_model=model.clone())
        subject = Subject(model, steps.recipe, plan, params, trial=trial, progress=run.progress)
        reports += stepping.apply(chosen, subject, found.probes)
    return params, reports


def _trial(model: ir.Model, plan: Plan, params: Params, found: Calibrated, run: Run) -> Trial | None:
    """Return what steps can try out: the model as it would be written now, on the samples."""
    samples = found.samples
    if samples is None:
        return None

    def emitted() -> ir.Model:
        copy = model.clone()
        emission.emit(copy, planning.settled_lowerings(copy, plan, params), params)
        return copy

    def statistics(observed: ir.Model, requests: StatisticsRequests) -> Stats:
        with probed(observed, requests) as needs:
            return observe(observed, {}, samples, _alone(run), needs)

    def outputs(observed: ir.Model, names: Sequence[str]) -> Iterator[dict[str, Array]]:
        execution = run.execution
        session = Session.open(
            observed,
            providers=execution.providers,
            threads=execution.threads,
            custom_ops=execution.custom_ops,
            outputs=names,
        )
        apart = -(-samples.length // MOST_COMPARED) if samples.length is not None else 1
        for sample in itertools.islice(samples.portion(), 0, MOST_COMPARED * apart, apart):
            yield session.run(sample, names)

    return Trial(emitted, statistics, outputs, samples.can_repeat)


def _alone(run: Run) -> Run:
    """Return the run without the statistics that others have found: the model is another one here."""
    return replace(run, observation=replace(run.observation, known=None))
