"""A few verbs: quantize, plan, prepare, calibrate, emit, inspect. They choose; the pipeline works."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo import calibration, measuring, pipeline, qat
from octavo.algorithms import steps as stepping
from octavo.algorithms.steps import Phase
from octavo.calibration import saved
from octavo.calibration.engines import Engine, engine_of
from octavo.calibration.readers import can_repeat
from octavo.core.origin import Origin
from octavo.core.plan import Plan
from octavo.core.recipe import PRESETS, Pattern, Recipe, Style, preset
from octavo.core.scheme import Method
from octavo.core.stats import Stats
from octavo.errors import RecipeError
from octavo.measuring import Progress, Run
from octavo.model import inspect as model_inspect
from octavo.model import io, query
from octavo.model.prepare import PrepareOptions, PrepareReport
from octavo.model.prepare import prepare as prepare_model
from octavo.planning import check_fits
from octavo.result import Result
from octavo.targets import Target
from octavo.targets import target as find_target

ModelSource = io.ModelSource

# what is done where nothing is said, and how many samples it takes at least
USUAL_STEPS = {"smoothquant:mul=0.5": 8, "clip": 32, "bias-correction": 8}


def quantize(
    model: ModelSource,
    data: Any = None,
    *,
    target: str | Target = "ort-cpu",
    recipe: Recipe | str | Path | None = None,
    plan: Plan | str | Path | None = None,
    output: str | Path | None = None,
    style: Style | str | None = None,
    include: Sequence[Pattern] = (),
    exclude: Sequence[Pattern] = (),
    op_types: Sequence[str] | None = None,
    samples: int | None = None,
    prepare: PrepareOptions | None = PrepareOptions(),  # noqa: B008
    verify: bool = True,
    external_data: bool | None = None,
    providers: Sequence[str] | None = None,
    custom_ops: Sequence[str | Path] = (),
    threads: int | None = None,
    engine: Engine | str = "auto",
    workers: int | None = None,
    address: str | None = None,
    stats: Stats | str | Path | None = None,
    stride: int | None = None,
    histograms: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Quantize a model.

    With ``data`` (an iterable of ``{input name: array}``, a reader with ``get_next()``, or a path)
    activations are calibrated; without, they are quantized while the model runs. ``recipe`` is a
    :class:`Recipe`, the name of a preset or a file; left out, the target's own. ``plan`` carries out a plan
    made before. Where neither is given, the usual steps are taken: from 32 samples on ranges are chosen by
    the error behind them (``clip``); from 8 on mean shifts are corrected (``bias-correction``), and a few
    loud channels of what linear layers read move into the weights (``smoothquant``, with a Mul where nothing
    else takes them up and half of the layer's error goes). With ``output`` the result is written, checked
    there, and only then put in place. ``stats`` of :func:`calibrate` (or their file) take the place of data.
    ``engine`` is where calibration runs: ``serial``, ``processes`` (as many ``workers`` as cores), ``ray``
    (at an ``address``), or ``auto``. With a ``stride`` histograms count every so many-th value, and extremes
    are still exact. With ``histograms`` calibration keeps one of every tensor, which reports show.
    """
    run = Run(
        prepare=prepare,
        verify=verify,
        output=Path(output) if output is not None else None,
        external_data=external_data,
        samples=samples,
        providers=providers,
        custom_ops=custom_ops,
        threads=threads,
        histograms=histograms,
        progress=progress if progress is not None else measuring.silent,
        engine=engine,
        workers=workers,
        address=address,
        stats=load_stats(stats) if isinstance(stats, str | Path) else stats,
        stride=stride,
    )
    selection = _Selection(style, tuple(include), tuple(exclude), op_types)
    if plan is not None:
        if recipe is not None or selection != _Selection():
            raise RecipeError(
                "A plan has decided what recipe, style, include, exclude and op_types would say; leave them"
                " out, or make a new plan with them."
            )
        return pipeline.carry_out(model, data, Plan.load(plan) if isinstance(plan, str | Path) else plan, run)
    static = data is not None or stats is not None
    wanted, chosen = _recipe(recipe, target, selection, static=static)
    run = replace(run, samples=samples if samples is not None else wanted.calibration_samples)
    if recipe is None and stats is None and wanted.is_static:
        wanted = wanted.but(steps=(*wanted.steps, *_usual_steps(data, run.samples)))
    return pipeline.quantize(model, data, wanted, chosen.at(threads), run)


def _usual_steps(data: Any, limit: int | None) -> Iterator[str]:
    """Those that there are samples enough for; some go through them twice."""
    for text, least in USUAL_STEPS.items():
        once = stepping.step(text).phase is not Phase.FLOAT
        if _has(least, data, limit) and (once or can_repeat(data)):
            yield text


def _has(least: int, data: Any, limit: int | None) -> bool:
    """Whether data has enough samples; a file, and what can be gone through only once, is taken to have."""
    if limit is not None and limit < least:
        return False
    if isinstance(data, str | Path):
        try:
            return not Path(data).is_dir() or _many(least, Path(data).iterdir())
        except (OSError, ValueError):  # whoever reads it says why that can't be done
            return False
    if isinstance(data, bytes) or not isinstance(data, Sized | Iterable):
        return True
    if isinstance(data, Sized):
        return len(data) >= least
    again = iter(data)
    return again is data or _many(least, again)


def _many(least: int, entries: Iterable[Any]) -> bool:
    return sum(1 for _ in itertools.islice(entries, least)) == least


def convert_qat(
    model: ModelSource,
    data: Any = None,
    *,
    target: str | Target = "ort-cpu",
    output: str | Path | None = None,
    style: Style | str = Style.QDQ,
    exact: bool = True,
    include: Sequence[Pattern] = (),
    exclude: Sequence[Pattern] = (),
    op_types: Sequence[str] | None = None,
    samples: int | None = None,
    verify: bool = True,
    external_data: bool | None = None,
    providers: Sequence[str] | None = None,
    custom_ops: Sequence[str | Path] = (),
    threads: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Turn a model trained with fake quantization into one that computes with integers.

    The trained scales and zero points stay as they are; weights become integers, biases int32. ``data`` is
    asked only for ranges that training left open. ``exact=False`` lets activations that were trained on a
    part of their type's integers (0 … 127 of uint8) use all of them, which is faster.
    """
    run = Run(
        verify=verify,
        output=Path(output) if output is not None else None,
        external_data=external_data,
        samples=samples,
        providers=providers,
        custom_ops=custom_ops,
        threads=threads,
        progress=progress if progress is not None else measuring.silent,
    )
    return qat.convert(
        model,
        data,
        _style(style),
        find_target(target),
        run,
        exact=exact,
        op_types=op_types,
        include=include,
        exclude=exclude,
    )


def plan(
    model: ModelSource,
    recipe: Recipe | str | Path | None = None,
    *,
    target: str | Target = "ort-cpu",
    static: bool = True,
    style: Style | str | None = None,
    include: Sequence[Pattern] = (),
    exclude: Sequence[Pattern] = (),
    op_types: Sequence[str] | None = None,
    prepare: PrepareOptions | None = PrepareOptions(),  # noqa: B008
    threads: int | None = None,
) -> Plan:
    """A dry run: what would be quantized, how, and what would stay float and why.

    ``threads`` are those that the model will run with: with many of them some targets have other rules.
    """
    selection = _Selection(style, tuple(include), tuple(exclude), op_types)
    wanted, chosen = _recipe(recipe, target, selection, static=static)
    loaded = io.load(model)
    query.refuse_unsupported(loaded)
    pipeline.ready(loaded, pipeline.needed_opset(wanted), prepare)
    return pipeline.planned(loaded, wanted, chosen.at(threads))[0]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model that is ready to be quantized, and what was done to it."""

    model: ir.Model
    report: PrepareReport

    def save(self, path: str | Path, *, external_data: bool | None = None) -> list[Path]:
        """Write the prepared model."""
        return io.save(self.model, path, external_data=external_data)

    def __str__(self) -> str:
        return str(self.report)


def prepare(model: ModelSource, options: PrepareOptions | None = None) -> Prepared:
    """Fold, infer shapes, fuse and clean up: the first step of ``quantize``, on its own."""
    loaded = io.load(model)
    report = prepare_model(loaded, options or PrepareOptions())
    return Prepared(loaded, report)


def ready(
    model: ModelSource,
    recipe: Recipe | str | Path | None = None,
    options: PrepareOptions | None = PrepareOptions(),  # noqa: B008
) -> ir.Model:
    """The model as ``plan``, ``calibrate`` and ``emit`` see it: prepared for this recipe."""
    wanted, _ = _recipe(recipe, "ort-cpu", _Selection(), static=True)
    return _as_ready(model, pipeline.needed_opset(wanted), options)


def calibrate(
    model: ModelSource,
    needs: Mapping[str, Method] | Plan,
    data: Any,
    *,
    samples: int | None = None,
    prepare: PrepareOptions | None = PrepareOptions(),  # noqa: B008
    providers: Sequence[str] | None = None,
    custom_ops: Sequence[str | Path] = (),
    threads: int | None = None,
    engine: Engine | str = "auto",
    workers: int | None = None,
    address: str | None = None,
    shard: tuple[int, int] | None = None,
    every_method: bool = False,
    stride: int | None = None,
    output: str | Path | None = None,
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> Stats:
    """Run the model on the data and remember what a plan (or ``plan.needs()``) has to know of its tensors.

    ``shard`` (1, 4) is the first of four parts of the data; statistics of parts merge into those of the
    whole, whoever made them. ``every_method`` also keeps what methods other than the plan's read; with a
    ``stride`` histograms count every so many-th value, and extremes are still exact. With an
    ``output`` the statistics are saved there. What is finished is written to the ``checkpoint`` from time to
    time (beside the output, unless it is named), and a run that was cut off goes on from it.
    """
    loaded = io.load(model)
    origin = Origin(io.fingerprint(loaded), pipeline.prepare_name(prepare), {}, source=saved.name_of(data))
    pipeline.ready(loaded, needs.opset if isinstance(needs, Plan) else pipeline.LEAST_OPSET, prepare)
    wanted = measuring.asked(needs.needs() if isinstance(needs, Plan) else needs)
    if every_method:
        wanted = {name: replace(need, histogram=True, samples=True) for name, need in wanted.items()}
    wanted = calibration.sampled(loaded, wanted, stride)
    if checkpoint is None and output is not None:
        checkpoint = saved.checkpoint_of(output)
    stats = calibration.gather(
        loaded,
        wanted,
        measuring.watched(loaded, data, samples),
        engine_of(engine, workers, address, threads),
        origin=origin,
        shard=shard,
        checkpoint=checkpoint,
        providers=providers,
        custom_ops=custom_ops,
        progress=None if progress is None else lambda done, total: progress("calibrate", done, total),
    )
    if output is not None:
        saved.save(stats, output)
    saved.Checkpoint(checkpoint).remove()
    return stats


def load_stats(
    path: str | Path,
    model: ModelSource | None = None,
    *,
    prepare: PrepareOptions | None = PrepareOptions(),  # noqa: B008
) -> Stats:
    """Statistics that were saved; with a model, those of another one are refused."""
    stats = saved.load(path)
    if model is not None and stats.origin is not None:
        loaded = io.load(model)
        stats.origin.check_model(io.fingerprint(loaded), pipeline.prepare_name(prepare), io.describe(loaded))
    return stats


def save_stats(stats: Stats, path: str | Path) -> Path:
    """Write statistics to a file, as a whole or not at all."""
    return saved.save(stats, path)


def emit(
    model: ModelSource,
    plan: Plan,
    stats: Stats | None = None,
    *,
    prepare: PrepareOptions | None = PrepareOptions(),  # noqa: B008
    verify: bool = True,
    custom_ops: Sequence[str | Path] = (),
) -> Result:
    """Write a plan out with the numbers of a calibration."""
    run = Run(prepare=prepare, verify=verify, custom_ops=custom_ops)
    started = pipeline.start(model, plan.opset, run)
    check_fits(started.model, plan)
    if stats is None:
        return pipeline.finish(started, plan, None, run)
    found = measuring.Measurement(stats, calibration.ranges(stats, measuring.schemes(plan)))
    return pipeline.finish(started, plan, found, run)


def inspect(model: ModelSource) -> model_inspect.Inspection:
    """How a model is quantized: types, granularity, counts, size by part."""
    return model_inspect.inspect(io.load(model))


def _as_ready(model: ModelSource, opset: int, options: PrepareOptions | None) -> ir.Model:
    loaded = io.load(model)
    pipeline.ready(loaded, opset, options)
    return loaded


@dataclass(frozen=True)
class _Selection:
    """The wishes of a call beside its recipe."""

    style: Style | str | None = None
    include: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()
    op_types: Sequence[str] | None = None


def _recipe(
    recipe: Recipe | str | Path | None, target: str | Target, selection: _Selection, *, static: bool
) -> tuple[Recipe, Target]:
    """The recipe under the call's own wishes, and the target: the call's, else the recipe's."""
    chosen = find_target(target)
    if recipe is None:
        wanted = chosen.static_recipe if static else chosen.dynamic_recipe
    elif isinstance(recipe, Recipe):
        wanted = recipe
    elif str(recipe) in PRESETS:
        wanted = preset(str(recipe))
    else:
        wanted = Recipe.load(recipe)
    if recipe is not None and target == "ort-cpu":
        chosen = find_target(wanted.target)
    changes: dict[str, Any] = {
        "include": (*wanted.include, *selection.include),
        "exclude": (*wanted.exclude, *selection.exclude),
    }
    if selection.style is not None:
        changes["style"] = _style(selection.style)
    if selection.op_types is not None:
        changes["op_types"] = tuple(selection.op_types)
    return replace(wanted, **changes), chosen


def _style(style: Style | str) -> Style:
    if isinstance(style, Style):
        return style
    try:
        return Style(style)
    except ValueError:
        legal = ", ".join(s.value for s in Style)
        raise RecipeError(f"{style!r} is no style; choose one of: {legal}.") from None
