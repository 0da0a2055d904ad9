"""The stages of ``quantize`` as verbs of their own, and how a model is quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from octavo import calibration, pipeline
from octavo.calibration import saved
from octavo.core.arguments import check_arguments, check_type
from octavo.core.outputs import note_inputs, note_sources, refuse_inputs, refuse_sources
from octavo.core.plan import Plan
from octavo.core.recipe import RecipeSource
from octavo.core.scheme import Method
from octavo.core.shown import Shown
from octavo.core.stats import Stats
from octavo.model.files import io
from octavo.model.files.io import ModelSource
from octavo.model.prepare import PrepareOptions, PrepareReport
from octavo.model.prepare import prepare as prepare_model
from octavo.pipeline import Calibrated, Options, run_of
from octavo.pipeline.calibrate import statistics
from octavo.pipeline.request import Changes, RecipeRequest
from octavo.planning import check_fits
from octavo.reporting import inspection
from octavo.reporting.inspection import Inspection
from octavo.result import Result, inputs_of
from octavo.targets import Target

if TYPE_CHECKING:
    from typing_extensions import Unpack


def plan(
    model: ModelSource,
    recipe: RecipeSource | None = None,
    *,
    target: str | Target | None = None,
    static: bool = True,
    prepare: PrepareOptions | None = PrepareOptions(),  # noqa: B008
    threads: int | None = None,
    **changes: Unpack[Changes],
) -> Plan:
    """Return what would be quantized and how, and what would stay in float and why: a dry run.

    ``threads`` are those that the model will run with: with many of them some targets have other rules. The
    keywords that change the recipe are those of :func:`quantize`.
    """
    wanted, sheet = RecipeRequest.of(recipe, target, changes).resolve(static=static)
    run = run_of({"prepare": prepare})
    subject = pipeline.prepared(model, pipeline.needed_opset(wanted), run)
    found = pipeline.planned(subject.model, wanted, sheet.at(threads)).plan
    found, _ = pipeline.with_half(found, subject.model, wanted, sheet, None, run)
    found = replace(found, notes=(*subject.report.notes, *found.notes))
    return note_inputs(found, inputs_of(model, recipe=recipe))


@dataclass(frozen=True, eq=False, repr=False)
class Prepared(Shown):
    """A model that is ready to be quantized, and what was done to it."""

    model: ir.Model
    report: PrepareReport

    def save(self, path: str | Path, *, external_data: bool | None = None) -> list[Path]:
        """Write the prepared model."""
        return io.save(self.model, path, external_data=external_data)

    def __str__(self) -> str:
        return str(self.report)


def prepare(model: ModelSource, options: PrepareOptions | None = None) -> Prepared:
    """Infer shapes, fold constants, fuse operators and clean up: the first stage of ``quantize``."""
    loaded = io.load(model)
    report = prepare_model(loaded, options or PrepareOptions())
    return Prepared(loaded, report)


def ready(
    model: ModelSource,
    recipe: RecipeSource | None = None,
    options: PrepareOptions | None = PrepareOptions(),  # noqa: B008
) -> ir.Model:
    """Return the model as ``plan``, ``calibrate`` and ``emit`` see it: prepared for this recipe."""
    wanted, _ = RecipeRequest.of(recipe, None, {}).resolve(static=True)
    loaded = io.load(model)
    pipeline.ready(loaded, pipeline.needed_opset(wanted), options)
    return loaded


def calibrate(
    model: ModelSource,
    needs: Mapping[str, Method] | Plan,
    data: Any,
    *,
    samples: int | None = None,
    shard: tuple[int, int] | None = None,
    every_method: bool = False,
    output: str | Path | None = None,
    checkpoint: str | Path | None = None,
    **options: Unpack[Options],
) -> Stats:
    """Run the model on data, and return the statistics that a plan (or ``plan.needs()``) requests.

    ``shard`` (1, 4) is the first of four parts of the data; statistics of parts merge into those of the
    whole, whoever made them. ``every_method`` also keeps what methods other than the plan's read. With an
    ``output`` the statistics are saved there. What is finished is written to the ``checkpoint`` from time to
    time (beside the output, unless it is named), and a run that was cut off goes on from it.
    """
    check_arguments(output=output, samples=samples)
    check_type("needs", needs, (Plan, Mapping), "a Plan, or methods by tensor")
    if checkpoint is None and output is not None:
        checkpoint = saved.checkpoint_of(output)
    inputs = inputs_of(model, data=data)
    refuse_inputs({"output": output, "checkpoint": checkpoint}, inputs)
    run = run_of(options, samples=samples)
    opset = needs.opset if isinstance(needs, Plan) else pipeline.LEAST_OPSET
    subject = pipeline.prepared(model, opset, run, fingerprint=True)
    stats = statistics(
        subject, needs, data, run, every_method=every_method, shard=shard, checkpoint=checkpoint
    )
    if output is not None:
        saved.save(stats, output)
    saved.Checkpoint(checkpoint).remove()
    return note_inputs(stats, inputs)


def load_stats(
    path: str | Path,
    model: ModelSource | None = None,
    *,
    prepare: PrepareOptions | None = PrepareOptions(),  # noqa: B008
) -> Stats:
    """Read statistics that were saved; with a model, those of another one are refused."""
    stats = saved.load(path)
    if model is not None and stats.origin is not None:
        loaded = io.load(model)
        stats.origin.check_model(io.fingerprint(loaded), pipeline.prepare_name(prepare), io.describe(loaded))
    return stats


def save_stats(stats: Stats, path: str | Path) -> Path:
    """Write statistics to a file, as a whole or not at all."""
    refuse_sources(stats, {"path": path})
    return saved.save(stats, path)


def emit(
    model: ModelSource,
    plan: Plan,
    stats: Stats | None = None,
    **options: Unpack[Options],
) -> Result:
    """Write a plan as a model, with the statistics of a calibration."""
    check_type("plan", plan, Plan, "a Plan")
    check_type("stats", stats, (Stats, type(None)), "Stats, such as calibrate returns")
    run = run_of(options)
    subject = pipeline.prepared(model, plan.opset, run)
    check_fits(subject.model, plan)
    found = None
    if stats is not None:
        found = Calibrated(stats, calibration.ranges(stats, pipeline.schemes(plan)))
    return note_sources(pipeline.finish(subject, plan, found, run), plan, stats)


def inspect(model: ModelSource) -> Inspection:
    """Return how a model is quantized: types, granularity, counts, size by part."""
    return inspection.inspect(io.load(model))
