"""A few verbs: quantize, plan, prepare, calibrate, emit, inspect. They choose defaults and call the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo import calibration, pipeline, planning
from octavo.core.plan import Plan
from octavo.core.recipe import PRESETS, Pattern, Recipe, Style, preset
from octavo.core.scheme import Method
from octavo.core.stats import Need, Stats
from octavo.errors import RecipeError
from octavo.model import inspect as model_inspect
from octavo.model import io, query
from octavo.model.prepare import PrepareOptions, PrepareReport
from octavo.model.prepare import prepare as prepare_model
from octavo.pipeline import Progress, Run
from octavo.result import Result
from octavo.targets import Target
from octavo.targets import target as find_target

ModelSource = io.ModelSource


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
    progress: Progress | None = None,
) -> Result:
    """Quantize a model.

    With ``data`` (an iterable of ``{input name: array}``, a reader with ``get_next()``, or a path) activations are
    calibrated; without, they are quantized while the model runs. ``recipe`` is a :class:`Recipe`, the name of a
    preset or a file; left out, the target's own. ``plan`` carries out a plan made before. With ``output`` the
    result is written, checked there, and only then put in place.
    """
    chosen = find_target(target)
    wanted = _recipe(recipe, chosen, static=data is not None, style=style, include=include, exclude=exclude, op_types=op_types)
    chosen = find_target(wanted.target) if recipe is not None and target == "ort-cpu" else chosen
    run = Run(
        prepare=prepare,
        verify=verify,
        output=Path(output) if output is not None else None,
        external_data=external_data,
        samples=samples if samples is not None else wanted.calibration_samples,
        providers=providers,
        custom_ops=custom_ops,
        threads=threads,
        progress=progress if progress is not None else pipeline.silent,
    )
    ready_plan = Plan.load(plan) if isinstance(plan, str | Path) else plan
    return pipeline.quantize(model, data, wanted, chosen, run, ready_plan)


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
) -> Plan:
    """A dry run: what would be quantized, how, and what would stay float and why."""
    chosen = find_target(target)
    wanted = _recipe(recipe, chosen, static=static, style=style, include=include, exclude=exclude, op_types=op_types)
    loaded = io.load(model)
    query.refuse_unsupported(loaded)
    pipeline.ready(loaded, wanted, Run(prepare=prepare))
    return planning.build(loaded, wanted, chosen)


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


def ready(model: ModelSource, recipe: Recipe | str | Path | None = None, options: PrepareOptions | None = None) -> ir.Model:
    """The model as ``plan``, ``calibrate`` and ``emit`` see it: prepared for this recipe."""
    loaded = io.load(model)
    pipeline.ready(loaded, _recipe(recipe, find_target("ort-cpu"), static=True), Run(prepare=options or PrepareOptions()))
    return loaded


def calibrate(
    model: ModelSource,
    needs: Mapping[str, Method] | Plan,
    data: Any,
    *,
    samples: int | None = None,
    providers: Sequence[str] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Stats:
    """Run the model on the data and remember what a plan (or ``plan.needs()``) has to know of its tensors."""
    from octavo.calibration.methods import needs_histogram

    methods = needs.needs() if isinstance(needs, Plan) else needs
    shown = progress if progress is not None else pipeline.silent
    return calibration.collect(
        _as_ready(model),
        {name: Need(histogram=needs_histogram(method)) for name, method in methods.items()},
        data,
        limit=samples,
        providers=providers,
        threads=threads,
        progress=lambda done, total: shown("calibrate", done, total),
    )


def emit(model: ModelSource, plan: Plan, stats: Stats | None = None, *, verify: bool = True) -> Result:
    """Write a plan out with the numbers of a calibration."""
    source = io.load(model) if isinstance(model, ir.Model) else _as_ready(model)
    float_bytes = io.weight_bytes(source)
    ranges = calibration.ranges(stats, pipeline.schemes(plan)) if stats is not None else {}
    made, params = pipeline.finish(source, plan, ranges, Run(verify=verify))
    return Result(made, plan, params, stats=stats, float_bytes=float_bytes, bytes=io.weight_bytes(made))


def inspect(model: ModelSource) -> model_inspect.Inspection:
    """How a model is quantized: types, granularity, counts, size by part."""
    return model_inspect.inspect(io.load(model))


def _as_ready(model: ModelSource) -> ir.Model:
    return model if isinstance(model, ir.Model) else ready(model)


def _recipe(
    recipe: Recipe | str | Path | None,
    target: Target,
    *,
    static: bool,
    style: Style | str | None = None,
    include: Sequence[Pattern] = (),
    exclude: Sequence[Pattern] = (),
    op_types: Sequence[str] | None = None,
) -> Recipe:
    """The recipe with the call's own wishes laid over it."""
    if recipe is None:
        chosen = target.static_recipe if static else target.dynamic_recipe
    elif isinstance(recipe, Recipe):
        chosen = recipe
    elif str(recipe) in PRESETS:
        chosen = preset(str(recipe))
    else:
        chosen = Recipe.load(recipe)
    changes: dict[str, Any] = {}
    if style is not None:
        changes["style"] = _style(style)
    if include:
        changes["include"] = (*chosen.include, *include)
    if exclude:
        changes["exclude"] = (*chosen.exclude, *exclude)
    if op_types is not None:
        changes["op_types"] = tuple(op_types)
    return replace(chosen, **changes)


def _style(style: Style | str) -> Style:
    if isinstance(style, Style):
        return style
    try:
        return Style(style)
    except ValueError:
        legal = ", ".join(s.value for s in Style)
        raise RecipeError(f"{style!r} is no style; choose one of: {legal}.") from None
