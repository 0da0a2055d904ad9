"""Fourth stage: measure what the plan and the steps request, and plan again where the numbers require it.

::

    plan, data ─► calibrate ─► ranges ─► do they rule out anything in the plan? ─ no ─► Calibrated
                      ▲                                    │ yes
                      └──── what is not known yet ◄── plan again, around that
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo import calibration
from octavo.algorithms import steps as stepping
from octavo.algorithms.layers.probes import probed
from octavo.algorithms.layers.statistics_requests import PREFIX, StatisticsRequests
from octavo.algorithms.steps import Step, Subject
from octavo.calibration import saved
from octavo.calibration.methods import need_of
from octavo.core.origin import Origin
from octavo.core.plan import Measured, Plan
from octavo.core.requests import FOR_EVERY_METHOD, Request
from octavo.core.scheme import Method, Scheme
from octavo.core.stats import Range, State, Stats
from octavo.data.fingerprints import FingerprintedSamples
from octavo.errors import DataError, RecipeError
from octavo.pipeline.options import Run
from octavo.pipeline.plan import Planned
from octavo.pipeline.prepare import PreparedModel, prepare_name
from octavo.pipeline.weight_inputs import needs_inputs, request_inputs
from octavo.planning import hazards

_ROUNDS = 8  # plans made around what calibration found, before it is an error


class KnownStatistics:
    """Statistics that runs on the same model and data share: the trials of a search."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Request], State | None] = {}
        self._stats = Stats()
        self._fingerprint: str | None = None

    def rely_on(self, stats: Stats) -> None:
        """Take statistics that answer every request for their tensors."""
        self._stats = stats

    def lacking(self, wanted: Mapping[str, Request]) -> dict[str, Request]:
        """Return the requests that nothing known answers."""
        seen = self._seen
        return {n: need for n, need in wanted.items() if n not in self._stats and (n, need) not in seen}

    def add(self, wanted: Mapping[str, Request], found: Stats, samples: FingerprintedSamples) -> None:
        """Keep what was found; a tensor that never had a value need not be looked for again."""
        self._seen.update({(name, need): found.get(name) for name, need in wanted.items()})
        self._stats.samples = self._stats.samples or found.samples
        self._fingerprint = self._fingerprint or samples.fingerprint

    def of(self, wanted: Mapping[str, Request], samples: FingerprintedSamples) -> Stats:
        """Return the statistics for these requests; the samples take over the fingerprint that is known."""
        samples.fingerprint = samples.fingerprint or self._fingerprint
        known = {n: self._stats.get(n) or self._seen.get((n, need)) for n, need in wanted.items()}
        there = {name: state for name, state in known.items() if state is not None}
        return Stats(there, self._stats.samples)

    def forget_large(self) -> None:
        """Let go of Gram matrices: they are large, and few runs want the same."""
        self._seen = {key: state for key, state in self._seen.items() if not key[0].endswith("/gram")}


@dataclass(frozen=True)
class Calibrated:
    """What calibration gave: statistics, the ranges read off them, and the samples that went through."""

    stats: Stats
    ranges: Mapping[str, Range]
    samples: FingerprintedSamples | None = None
    probes: Stats = field(default_factory=Stats)  # what steps wanted to know


def calibrated(
    planned: Planned, data: Any, run: Run, steps: Sequence[Step] = ()
) -> tuple[Calibrated, Planned]:
    """Calibrate for a plan and for steps, and plan again where the numbers rule the first plan out."""
    observation = run.observation
    given = observation.stats is not None
    samples = samples_of(planned.model, data, observation.samples) if not given or data is not None else None
    requests = StatisticsRequests()
    request_inputs(planned.model, planned.plan, requests)
    subject = Subject(planned.model, planned.recipe, planned.plan)
    with stepping.observed(steps, subject, requests) as extra:
        seen = observe(planned.model, planned.plan.needs(), None if given else samples, run, extra)
    stats, probes = _apart(seen)
    found, settled_plan = settled(planned, Calibrated(stats, {}, samples, probes), run)
    if settled_plan is not planned and not given:
        found = probed_again(settled_plan, found, run, steps)
    return found, settled_plan


def carried_out(model: ir.Model, plan: Plan, data: Any, run: Run) -> Calibrated | None:
    """Calibrate for a plan that stays as it is; None where it has nothing to measure."""
    if not plan.needs() and not needs_inputs(plan):
        return None
    samples = samples_of(model, data, run.observation.samples) if run.observation.stats is None else None
    requests = StatisticsRequests()
    request_inputs(model, plan, requests)
    with probed(model, requests) as extra:
        stats, probes = _apart(observe(model, plan.needs(), samples, run, extra))
    return Calibrated(stats, calibration.ranges(stats, schemes(plan)), samples, probes)


def _apart(seen: Stats) -> tuple[Stats, Stats]:
    """Return the statistics of tensors, and those that steps and weight algorithms have requested."""
    probes = {name: state for name, state in seen.items() if name.startswith(PREFIX)}
    stats = {name: state for name, state in seen.items() if name not in probes}
    return Stats(stats, seen.samples, seen.origin), Stats(probes, seen.samples)


def probed_again(planned: Planned, found: Calibrated, run: Run, steps: Sequence[Step]) -> Calibrated:
    """Observe what steps request in addition for a changed plan."""
    if found.samples is None or not steps or not found.samples.can_repeat:
        return found
    with stepping.observed(steps, Subject(planned.model, planned.recipe, planned.plan)) as extra:
        lacking = {name: need for name, need in extra.items() if name not in found.probes}
        if not lacking:
            return found
        more = observe(planned.model, {}, found.samples, run, lacking)
    return replace(found, probes=Stats({**found.probes, **more}, found.probes.samples))


def settled(planned: Planned, found: Calibrated, run: Run) -> tuple[Calibrated, Planned]:
    """Read the ranges of a plan, and plan again until they rule out nothing in it."""
    for _ in range(_ROUNDS):
        stats, wanted = found.stats, schemes(planned.plan)
        ranges = calibration.ranges(stats, wanted)
        unseen = frozenset(name for name in wanted if name not in stats)
        unusable = calibration.unusable(stats, wanted)
        more = hazards.numeric(planned.model, planned.plan, ranges, unusable, unseen)
        if not more:
            return replace(found, ranges=ranges), planned
        planned = planned.around(more)
        found = completed(planned, found, run)
    raise RecipeError("Calibration kept finding tensors that can't be quantized; exclude the nodes it names.")


def completed(planned: Planned, found: Calibrated, run: Run) -> Calibrated:
    """Add the statistics of tensors that a new plan requests in addition."""
    stats, avoided = found.stats, planned.avoid.tensors
    fresh = {n: m for n, m in planned.plan.needs().items() if n not in stats and n not in avoided}
    if not fresh:
        return found
    more = observe(planned.model, fresh, found.samples, run)
    return replace(found, stats=Stats({**stats, **more}, stats.samples))


def schemes(plan: Plan) -> dict[str, Scheme]:
    """For each tensor that calibration measures, the scheme that its range is for."""
    return {
        key.tensor if entry.of is None else entry.of: entry.scheme
        for key, entry in plan.entries.items()
        if isinstance(entry, Measured)
    }


def samples_of(model: ir.Model, data: Any, limit: int | None) -> FingerprintedSamples:
    """Return the caller's data as samples for this model."""
    if isinstance(data, FingerprintedSamples):
        return data
    if data is None:
        raise DataError(
            "Static quantization needs calibration data, and none was given; give data=…, or choose dynamic"
            " quantization, which needs none: activations='dynamic'."
        )
    return FingerprintedSamples.of(data, model, limit=limit)


def statistics_requests(needs: Mapping[str, Method]) -> dict[str, Request]:
    """Return what calibration has to keep of each tensor so that these methods can be read."""
    return {name: need_of(method) for name, method in needs.items()}


def observe(
    model: ir.Model,
    needs: Mapping[str, Method],
    samples: FingerprintedSamples | None,
    run: Run,
    extra: Mapping[str, Request] | None = None,
) -> Stats:
    """Run the data once for everything that plan and steps request and that is not known yet.

    Without samples the statistics of the run answer.
    """
    observation = run.observation
    wanted = statistics_requests(needs)
    if observation.histograms and samples is not None:
        wanted = {name: request.with_histogram() for name, request in wanted.items()}
    wanted = {**calibration.sampled(model, wanted, observation.stride), **(extra or {})}
    if samples is None:
        return calibration.check_requests(observation.stats or Stats(), wanted)
    known = observation.known
    if not wanted:
        return Stats()
    if known is None:
        return _pass(model, wanted, samples, run)
    lacking = known.lacking(wanted)
    if lacking:
        known.add(lacking, _pass(model, lacking, samples, run), samples)
    else:
        samples.peek()
    found = known.of(wanted, samples)
    known.forget_large()
    return found


def _pass(model: ir.Model, wanted: Mapping[str, Request], samples: FingerprintedSamples, run: Run) -> Stats:
    execution = run.execution
    engine = execution.start()
    options: dict[str, Any] = {
        "providers": execution.providers,
        "custom_ops": execution.custom_ops,
        "progress": lambda done, total: run.progress("calibrate", done, total),
    }
    if engine.name == "serial":
        return calibration.collect(model, wanted, samples, threads=execution.threads, **options)
    return calibration.gather(model, wanted, samples, engine, **options)


# ---- Calibration by itself: statistics that can be saved, merged and used again


def statistics(
    prepared: PreparedModel,
    needs: Mapping[str, Method] | Plan,
    data: Any,
    run: Run,
    *,
    every_method: bool = False,
    shard: tuple[int, int] | None = None,
    checkpoint: str | Path | None = None,
) -> Stats:
    """Run the samples once and keep what the methods of a plan read; with ``every_method`` what any reads."""
    wanted = statistics_requests(needs.needs() if isinstance(needs, Plan) else needs)
    if every_method:
        wanted = dict.fromkeys(wanted, FOR_EVERY_METHOD)
    wanted = calibration.sampled(prepared.model, wanted, run.observation.stride)
    requests = StatisticsRequests()
    if isinstance(needs, Plan):
        request_inputs(prepared.model, needs, requests)
    origin = Origin(prepared.fingerprint or "", prepare_name(run.prepare), {}, source=saved.name_of(data))
    with probed(prepared.model, requests) as extra:
        return calibration.gather(
            prepared.model,
            {**wanted, **extra},
            samples_of(prepared.model, data, run.observation.samples),
            run.execution.start(),
            origin=origin if prepared.fingerprint is not None else None,
            shard=shard,
            checkpoint=checkpoint,
            providers=run.execution.providers,
            custom_ops=run.execution.custom_ops,
            progress=lambda done, total: run.progress("calibrate", done, total),
        )
