"""The list of steps that ``quantize`` runs, readable from top to bottom.

::

    load → prepare → plan → calibrate → (plan again around what the numbers speak against) → resolve → emit → verify
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import onnx_ir as ir

from octavo import calibration, emission, planning
from octavo.calibration.methods import needs_histogram
from octavo.core.plan import Measured, Plan
from octavo.core.recipe import DynamicScheme, Recipe
from octavo.core.scheme import Scheme
from octavo.core.stats import Need, Range, Stats
from octavo.errors import DataError, RecipeError
from octavo.model import io, query
from octavo.model.prepare import PrepareOptions, PrepareReport, prepare
from octavo.model.prepare.widen import widen
from octavo.model.session import verify
from octavo.planning import hazards
from octavo.result import Result, write_verified
from octavo.targets import Target

Progress: TypeAlias = Callable[[str, int, int | None], None]

_ROUNDS = 3  # plans made around what calibration showed, before it is an error


def silent(phase: str, done: int, total: int | None) -> None:
    """A progress callback that shows nothing."""


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


def quantize(source: io.ModelSource, data: Any, recipe: Recipe, target: Target, run: Run, plan: Plan | None = None) -> Result:
    """All steps; ``plan`` replaces the planner's own."""
    run.progress("load", 0, 1)
    model = io.load(source)
    query.refuse_unsupported(model)
    float_bytes = io.weight_bytes(model)
    report = ready(model, recipe, run)
    fingerprints = {"model": io.fingerprint(model)}
    run.progress("plan", 0, 1)
    made = plan if plan is not None else planning.build(model, recipe, target)
    stats: Stats | None = None
    ranges: Mapping[str, Range] = {}
    if made.needs():
        stats, ranges, made = measure(model, made, data, recipe, target, run, given=plan is not None)
    result = finish(model, made, ranges, run)
    return Result(
        model=result[0],
        plan=made,
        params=result[1],
        recipe=recipe,
        stats=stats,
        prepared=report,
        notes=tuple(report.notes) if report is not None else (),
        float_bytes=float_bytes,
        bytes=io.weight_bytes(result[0]),
        fingerprints=fingerprints,
    )


def ready(model: ir.Model, recipe: Recipe, run: Run) -> PrepareReport | None:
    """Bring a model into the form that planning needs: canonical, prepared, float32, at a sufficient opset."""
    from dataclasses import replace

    run.progress("prepare", 0, 1)
    opset = needed_opset(recipe)
    if run.prepare is not None:
        options = replace(run.prepare, opset=max(opset, run.prepare.opset or 0))
    else:
        options = PrepareOptions(
            symbolic_shapes=False, fold_batch_norm=False, fold_constants=False, fuse=False, opset=opset
        )
    report = prepare(model, options)
    widen(model)
    return report


def needed_opset(recipe: Recipe) -> int:
    """13 for scales per channel; 19 for float8; 21 for 16 bits, 4 bits and blocks."""
    schemes: list[Scheme] = [recipe.weights]
    if isinstance(recipe.activations, Scheme):
        schemes.append(recipe.activations)
    types = [s.qtype for s in schemes] + [o.qtype for o in recipe.overrides if o.qtype is not None]
    grains = [s.granularity for s in schemes] + [o.granularity for o in recipe.overrides if o.granularity is not None]
    blocks = any("block" in str(g) for g in grains)
    return max([13, *(t.min_opset for t in types), *([21] if blocks else [])])


def measure(
    model: ir.Model, plan: Plan, data: Any, recipe: Recipe, target: Target, run: Run, *, given: bool = False
) -> tuple[Stats, Mapping[str, Range], Plan]:
    """Calibrate, and plan again where the numbers speak against the first plan."""
    if data is None:
        raise DataError(
            "Static quantization needs calibration data: pass an iterable of {input name: array}, a reader with"
            " get_next(), or a path to .npz files; or choose dynamic quantization, which needs none."
        )
    stats = collect(model, plan, data, run)
    for _ in range(_ROUNDS):
        wanted = schemes(plan)
        missing = [name for name in wanted if name not in stats]
        ranges = calibration.ranges(stats, wanted)
        avoid = hazards.numeric(model, plan, ranges, calibration.unusable(stats, wanted))
        if not avoid or given:
            return stats, ranges, plan
        plan = planning.build(model, recipe, target, avoid)
        fresh = {n for n in plan.needs() if n not in stats and n not in missing}
        if fresh:
            stats = collect(model, plan, data, run)
    raise RecipeError("Calibration kept finding tensors that can't be quantized; exclude the nodes it names.")


def schemes(plan: Plan) -> dict[str, Scheme]:
    """For each tensor that calibration measures, the scheme that its range is for."""
    return {key.tensor: entry.scheme for key, entry in plan.entries.items() if isinstance(entry, Measured)}


def collect(model: ir.Model, plan: Plan, data: Any, run: Run) -> Stats:
    """One pass over the data for everything that the plan has to know."""
    needs = {name: Need(histogram=needs_histogram(method)) for name, method in plan.needs().items()}
    return calibration.collect(
        model,
        needs,
        data,
        limit=run.samples,
        providers=run.providers,
        threads=run.threads,
        custom_ops=run.custom_ops,
        progress=lambda done, total: run.progress("calibrate", done, total),
    )


def finish(model: ir.Model, plan: Plan, ranges: Mapping[str, Range], run: Run) -> tuple[ir.Model, Any]:
    """Parameters, the written graph, and the check of it."""
    run.progress("quantize", 0, 1)
    params = planning.resolve(model, plan, ranges)
    emission.emit(model, plan, params)
    if run.output is not None and run.verify:
        run.progress("verify", 0, 1)
        write_verified(model, run.output, None, run.external_data)
    elif run.output is not None:
        io.save(model, run.output, external_data=run.external_data)
    elif run.verify:
        run.progress("verify", 0, 1)
        verify(model)
    return model, params


def is_dynamic(recipe: Recipe) -> bool:
    """Whether a recipe needs no data."""
    return isinstance(recipe.activations, DynamicScheme) or recipe.activations is None
