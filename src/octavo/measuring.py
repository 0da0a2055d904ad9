"""What a plan and the steps have to know, measured: one pass over the data, or more where plans change.

::

    plan, data ─► calibrate ─► ranges ─► do the numbers speak against the plan? ─ no ─► Measurement
                      ▲                                    │ yes
                      └───── what is not known yet ◄── plan again, around that
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import onnx_ir as ir

from octavo import calibration, planning
from octavo.algorithms import steps as stepping
from octavo.algorithms.steps import Step, Subject
from octavo.algorithms.wishes import PREFIX
from octavo.calibration.engines import Engine, engine_of
from octavo.calibration.findings import expects_small
from octavo.calibration.methods import need_of
from octavo.core.plan import Measured, Plan
from octavo.core.recipe import Recipe
from octavo.core.scheme import Method, Scheme
from octavo.core.stats import Need, Range, State, Stats
from octavo.errors import DataError, RecipeError
from octavo.model.prepare import PrepareOptions
from octavo.model.samples import specs_of
from octavo.planning import hazards
from octavo.targets import Target

Progress: TypeAlias = Callable[[str, int, int | None], None]

_ROUNDS = 8  # plans made around what calibration showed, before it is an error


def silent(phase: str, done: int, total: int | None) -> None:
    """A progress callback that shows nothing."""


class Memo:
    """What runs on the same model and data have found out, for those that come after them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Need], State | None] = {}
        self._stats = Stats()
        self._fingerprint: str | None = None

    def rely_on(self, stats: Stats) -> None:
        """Take statistics that answer every need of their tensors."""
        self._stats = stats

    def lacking(self, wanted: Mapping[str, Need]) -> dict[str, Need]:
        """What is still to be found out."""
        seen = self._seen
        return {n: need for n, need in wanted.items() if n not in self._stats and (n, need) not in seen}

    def add(self, wanted: Mapping[str, Need], found: Stats, samples: calibration.Watched) -> None:
        """Keep what was found; a tensor that never had a value need not be looked for again."""
        self._seen.update({(name, need): found.get(name) for name, need in wanted.items()})
        self._stats.samples = self._stats.samples or found.samples
        self._fingerprint = self._fingerprint or samples.fingerprint

    def of(self, wanted: Mapping[str, Need], samples: calibration.Watched) -> Stats:
        """What is wanted; the samples are told what is known of them."""
        samples.fingerprint = samples.fingerprint or self._fingerprint
        known = {n: self._stats.get(n) or self._seen.get((n, need)) for n, need in wanted.items()}
        there = {name: state for name, state in known.items() if state is not None}
        return Stats(there, self._stats.samples)

    def forget_large(self) -> None:
        """Let go of Gram matrices: they are large, and few runs want the same."""
        self._seen = {key: state for key, state in self._seen.items() if not key[0].endswith("/gram")}


@dataclass(frozen=True)
class Run:
    """Settings that concern how things are run, not what comes out."""

    prepare: PrepareOptions | None = field(default_factory=PrepareOptions)
    verify: bool = True
    output: Path | None = None
    external_data: bool | None = None
    samples: int | None = None
    providers: Sequence[str] | None = None
    custom_ops: Sequence[str | Path] = ()
    threads: int | None = None
    progress: Progress = silent
    engine: Engine | str = "auto"
    workers: int | None = None
    address: str | None = None
    stats: Stats | None = None  # of a calibration made before
    stride: int | None = None  # histograms count every so many-th value; None: a lattice of large maps
    histograms: bool = False  # keep one of every tensor, for reports
    memo: Memo | None = None  # what other runs on the same model and data have found out


@dataclass(frozen=True)
class Measurement:
    """What calibration gave: statistics, the ranges read off them, and the samples that went through."""

    stats: Stats
    ranges: Mapping[str, Range]
    samples: calibration.Watched | None = None
    probes: Stats = field(default_factory=Stats)  # what steps wanted to know


def measure(
    model: ir.Model,
    plan: Plan,
    avoid: planning.Avoid,
    data: Any,
    recipe: Recipe,
    target: Target,
    run: Run,
    steps: Sequence[Step] = (),
) -> tuple[Measurement, Plan, planning.Avoid]:
    """Calibrate, and plan again where the numbers speak against the first plan."""
    samples = watched(model, data, run.samples) if run.stats is None or data is not None else None
    with stepping.observed(steps, Subject(model, recipe, plan)) as extra:
        seen = collect(model, plan.needs(), samples if run.stats is None else None, run, extra)
    stats = Stats({k: v for k, v in seen.items() if not k.startswith(PREFIX)}, seen.samples, seen.origin)
    probes = Stats({k: v for k, v in seen.items() if k.startswith(PREFIX)}, seen.samples)
    found = Measurement(stats, {}, samples, probes)
    found, settled_plan, avoid = settled(model, plan, avoid, found, recipe, target, run)
    if settled_plan is not plan and run.stats is None:
        found = probed_again(model, settled_plan, found, recipe, run, steps)
    return found, settled_plan, avoid


def probed_again(
    model: ir.Model, plan: Plan, found: Measurement, recipe: Recipe, run: Run, steps: Sequence[Step]
) -> Measurement:
    """What steps have to know in addition for a plan that has changed."""
    if found.samples is None or not steps or not found.samples.can_repeat:
        return found
    with stepping.observed(steps, Subject(model, recipe, plan)) as extra:
        lacking = {name: need for name, need in extra.items() if name not in found.probes}
        if not lacking:
            return found
        more = collect(model, {}, found.samples, run, lacking)
    return replace(found, probes=Stats({**found.probes, **more}, found.probes.samples))


def settled(
    model: ir.Model,
    plan: Plan,
    avoid: planning.Avoid,
    found: Measurement,
    recipe: Recipe,
    target: Target,
    run: Run,
) -> tuple[Measurement, Plan, planning.Avoid]:
    """The ranges of a plan, which is made again until the numbers speak against nothing in it."""
    for _ in range(_ROUNDS):
        stats, wanted = found.stats, schemes(plan)
        ranges = calibration.ranges(stats, wanted)
        unseen = frozenset(name for name in wanted if name not in stats)
        more = hazards.numeric(model, plan, ranges, calibration.unusable(stats, wanted), unseen)
        if not more:
            return replace(found, ranges=ranges), plan, avoid
        avoid = avoid.and_also(more)
        plan = planning.build(model, recipe, target, avoid)
        found = completed(model, plan, avoid, found, run)
    raise RecipeError("Calibration kept finding tensors that can't be quantized; exclude the nodes it names.")


def completed(
    model: ir.Model, plan: Plan, avoid: planning.Avoid, found: Measurement, run: Run
) -> Measurement:
    """The statistics with those of tensors that a new plan has to know as well."""
    stats = found.stats
    fresh = {n: m for n, m in plan.needs().items() if n not in stats and n not in avoid.tensors}
    if not fresh:
        return found
    return replace(found, stats=Stats({**stats, **collect(model, fresh, found.samples, run)}, stats.samples))


def schemes(plan: Plan) -> dict[str, Scheme]:
    """For each tensor that calibration measures, the scheme that its range is for."""
    return {
        key.tensor if entry.of is None else entry.of: entry.scheme
        for key, entry in plan.entries.items()
        if isinstance(entry, Measured)
    }


def watched(model: ir.Model, data: Any, limit: int | None) -> calibration.Watched:
    """The caller's data as samples for this model."""
    if isinstance(data, calibration.Watched):
        return data
    if data is None:
        raise DataError(
            "Static quantization needs calibration data: pass an iterable of {input name: array}, a reader"
            " with get_next(), or a path to .npz files; or choose dynamic quantization, which needs none."
        )
    return calibration.Watched(data, specs_of(model), limit=limit, small=expects_small(model))


def asked(needs: Mapping[str, Method]) -> dict[str, Need]:
    """What calibration has to find out so that these methods can be read."""
    return {name: need_of(method) for name, method in needs.items()}


def collect(
    model: ir.Model,
    needs: Mapping[str, Method],
    samples: calibration.Watched | None,
    run: Run,
    extra: Mapping[str, Need] | None = None,
) -> Stats:
    """One pass over the data for all that plan and steps have to know and nobody knows yet.

    Without samples it is what the statistics say that were given.
    """
    wanted = asked(needs)
    if run.histograms and samples is not None:
        wanted = {name: replace(need, histogram=True) for name, need in wanted.items()}
    wanted = {**calibration.sampled(model, wanted, run.stride), **(extra or {})}
    if samples is None:
        return calibration.known(run.stats or Stats(), wanted)
    if run.memo is None:
        return _pass(model, wanted, samples, run)
    lacking = run.memo.lacking(wanted)
    if lacking:
        run.memo.add(lacking, _pass(model, lacking, samples, run), samples)
    else:
        samples.peek()
    found = run.memo.of(wanted, samples)
    run.memo.forget_large()
    return found


def _pass(model: ir.Model, wanted: Mapping[str, Need], samples: calibration.Watched, run: Run) -> Stats:
    engine = engine_of(run.engine, run.workers, run.address, run.threads)
    options: dict[str, Any] = {
        "providers": run.providers,
        "custom_ops": run.custom_ops,
        "progress": lambda done, total: run.progress("calibrate", done, total),
    }
    if engine.name == "serial":
        return calibration.collect(model, wanted, samples, threads=run.threads, **options)
    return calibration.gather(model, wanted, samples, engine, **options)
