"""The verbs that make a quantized model: they look up what is given by name, and call pipeline or search.

``quantize`` is the one verb that most people need; :mod:`octavo.core.effort` says how much it tries, and how
much where a call says nothing. ``octavo quantize`` on the command line calls the same function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from octavo import pipeline
from octavo.core.arguments import check_arguments, check_type, unknown_keyword
from octavo.core.effort import EFFORTS, best_path, effort_of
from octavo.core.outputs import note_inputs, refuse_inputs
from octavo.core.plan import Plan
from octavo.core.recipe import Pattern, RecipeSource, Style
from octavo.core.stats import Stats
from octavo.errors import RecipeError
from octavo.model.files.io import ModelSource
from octavo.pipeline import Options, run_of
from octavo.pipeline.request import Changes, RecipeRequest, style_of
from octavo.pipeline.weight_inputs import reads_inputs
from octavo.result import Result, inputs_of, written_files
from octavo.stages import load_stats
from octavo.targets import Target
from octavo.tuning.deadline import TIME_LIMIT, Limit
from octavo.tuning.one_way import OneWay
from octavo.tuning.requirements import RequirementKeywords, requirements_of, task_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from octavo.tuning.requirements import Requirements, TaskCheck
    from octavo.tuning.trial import Tuned


class _Keywords(Changes, RequirementKeywords, Options, total=False):
    """All keywords of ``quantize`` beside those of its signature."""

    plan: Plan | str | Path | None
    stats: Stats | str | Path | None


_OF_SIGNATURE = ("model", "data", "output", "target", "recipe", "effort", "samples")
_KNOWN = (
    *Changes.__annotations__,
    *RequirementKeywords.__annotations__,
    *Options.__annotations__,
    "plan",
    "stats",
)


@dataclass(frozen=True)
class _Call:
    """The keywords of a call, by what they are about."""

    changes: Changes
    requirements: RequirementKeywords
    options: Options
    plan: Plan | str | Path | None
    stats: Stats | str | Path | None

    @classmethod
    def of(cls, given: dict[str, Any]) -> _Call:
        for name in given:
            if name not in _KNOWN:
                raise unknown_keyword(name, (*_KNOWN, *_OF_SIGNATURE))
        check_arguments(**given)
        for name, kind, words in (
            ("plan", Plan, "a Plan or the path of one"),
            ("stats", Stats, "Stats or the path of them"),
        ):
            if given.get(name) is not None:
                check_type(name, given[name], (kind, str, Path), words)

        def part(kind: Any) -> Any:
            return {name: value for name, value in given.items() if name in kind.__annotations__}

        said = {name: value for name, value in part(RequirementKeywords).items() if value is not None}
        requirements = cast("RequirementKeywords", said)
        return cls(part(Changes), requirements, part(Options), given.get("plan"), given.get("stats"))

    def refuse_choices(self, recipe: RecipeSource | None, effort: str | None) -> None:
        """Raise where a call with a plan says what the plan has decided."""
        said = ["recipe"] if recipe is not None else []
        said += [name for name, value in self.changes.items() if value not in (None, (), [])]
        if said or effort not in (None, "plain"):
            what = ", ".join(said) or f"effort {effort!r}"
            raise RecipeError(f"A plan has decided {what} already; leave it out, or make a new plan with it.")


def quantize(
    model: ModelSource,
    data: Any = None,
    *,
    output: str | Path | None = None,
    target: str | Target | None = None,
    recipe: RecipeSource | None = None,
    effort: str | None = None,
    samples: int | None = None,
    **more: Unpack[_Keywords],
) -> Result:
    """Quantize a model.

    With ``data`` (an iterable of ``{input name: array}``, a reader with ``get_next()``, or a path)
    activations are calibrated; without, they are quantized while the model runs. ``effort`` says how much is
    tried: ``plain``, ``standard`` or ``search`` (:mod:`octavo.core.effort` tells them apart, and which is the
    default).

    ``recipe`` is a :class:`Recipe`, a dict, the name of a preset or a file; left out, it is the target's own.
    A ``target`` that is given wins over the recipe's. Keywords change the recipe: ``weights``,
    ``activations``, ``per``, ``symmetric``, ``algorithm``, ``accuracy_level``, ``head``, ``embeddings``,
    ``layers``, ``method``, ``steps``, ``style``, ``compressed``, ``include``, ``exclude``,
    ``op_types``. ``plan`` carries out a plan made before; ``stats`` of :func:`calibrate` (or their file) take
    the place of data.

    What the result has to meet is said by ``max_drop`` with a ``task``, ``min_sqnr``, ``min_speed`` and
    ``max_size``; ``result.choice`` has all trials, and whether the best of them meets that. ``optimize`` says
    what counts most of those that do: ``balanced`` or ``size``, and of language models ``decode`` (the speed
    of writing tokens) or ``prefill`` (that of reading prompts). With ``output``
    the result is written and checked there before it takes its place; one that misses a requirement goes to
    ``NAME.best.onnx`` instead.

    How the run is carried out is said by ``threads``, ``engine``, ``workers``, ``address``, ``providers``,
    ``custom_ops``, ``prepare``, ``verify``, ``external_data``, ``stride``, ``histograms`` and ``progress``
    (:class:`octavo.pipeline.Options`).
    """
    check_arguments(output=output, effort=effort, samples=samples)
    call = _Call.of(dict(more))
    inputs = inputs_of(
        model,
        data=data,
        recipe=recipe,
        plan=call.plan,
        stats=call.stats,
        task=call.requirements.get("task"),
        custom_ops=call.options.get("custom_ops"),
    )
    may_miss = effort != "plain" or bool(call.requirements)
    refuse_inputs(written_files(output, may_miss=may_miss), inputs)
    return note_inputs(_quantize(model, data, output, target, recipe, effort, samples, call), inputs)


def _quantize(
    model: ModelSource,
    data: Any,
    output: str | Path | None,
    target: str | Target | None,
    recipe: RecipeSource | None,
    effort: str | None,
    samples: int | None,
    call: _Call,
) -> Result:
    """Carry out a plan, or a recipe, or search; what the call reads and writes was checked."""
    if call.plan is not None:
        call.refuse_choices(recipe, effort)
        way = OneWay.of(model, data, call.requirements, samples)
        run = run_of(call.options, output=output, samples=samples, stats=_loaded(call.stats))
        plan = Plan.load(call.plan) if isinstance(call.plan, str | Path) else call.plan
        return way.checked(pipeline.carry_out(model, data, plan, way.without_output(run)), run)
    request = RecipeRequest.of(recipe, target, call.changes)
    chosen = _effort(effort, request, call, data)
    run = run_of(call.options, output=output, samples=samples, stats=_loaded(call.stats))
    if chosen != "plain":
        return _searched(model, data, request, run, call.requirements, thorough=chosen == "search")
    return _one_way(model, data, request, run, call, samples=samples, may_refuse=effort is None)


def _one_way(
    model: ModelSource,
    data: Any,
    request: RecipeRequest,
    run: pipeline.Run,
    call: _Call,
    *,
    samples: int | None,
    may_refuse: bool,
) -> Result:
    """Carry the recipe out and nothing else; with ``may_refuse`` a model that gains nothing is refused."""
    wanted, sheet = request.resolve(static=data is not None or call.stats is not None)
    way = OneWay.of(model, data, call.requirements, samples)
    way.refuse(sheet)
    if samples is None:
        run = replace(run, observation=replace(run.observation, samples=wanted.calibration_samples))
    if not (wanted.is_static or wanted.steps or wanted.half is not None or reads_inputs(wanted)):
        data = None
    is_free = may_refuse and not request.fixes_recipe
    if is_free and data is None and call.stats is None and sheet.runs_here:
        from octavo.tuning.measure import refuse_no_gain  # slow to import, and seldom needed

        accept = partial(refuse_no_gain, model, run.execution.threads)
        run = replace(run, destination=replace(run.destination, accept=accept))
    made = pipeline.quantize(model, data, wanted, sheet.at(run.execution.threads), way.without_output(run))
    return way.checked(made, run)


def _effort(effort: str | None, request: RecipeRequest, call: _Call, data: Any) -> str:
    """Return how much is tried, checked against what else the call says."""
    _, sheet = request.resolve(static=True)
    is_fixed = (
        request.fixes_recipe
        or call.stats is not None
        or call.options.get("verify") is False
        or call.options.get("prepare", True) is None
    )
    chosen = effort_of(effort, can_compare=data is not None and sheet.runs_here, is_fixed=is_fixed)
    if chosen != "plain" and not sheet.runs_here:
        raise RecipeError(
            f"effort {effort!r} compares and times models on this machine, and {sheet.name} does not run"
            " here; choose effort 'plain'."
        )
    if chosen != "plain" and call.stats is not None:
        raise RecipeError(f"effort {effort!r} compares models on data; give data instead of statistics.")
    return chosen


def _searched(
    model: ModelSource,
    data: Any,
    request: RecipeRequest,
    run: pipeline.Run,
    requirements: RequirementKeywords,
    *,
    thorough: bool,
) -> Result:
    from octavo.tuning import automatic
    from octavo.tuning.gates import gates_of_trial

    given = dict(requirements)
    limit = cast("Limit | float | None", given.pop("time_limit", TIME_LIMIT))
    task = task_of(cast("TaskCheck | str | None", given.pop("task", None)), data)
    tuned = automatic.tune(
        model,
        data,
        request,
        run,
        requirements=requirements_of(given, data),
        task=task,
        thorough=thorough,
        time_limit=limit,
    )
    if tuned.result is None:
        raise RecipeError(tuned.reason)
    if not tuned.met and run.destination.path is not None:
        tuned.result.save(best_path(run.destination.path))
    shown = gates_of_trial(tuned.best, tuned.requirements, given) if tuned.best is not None else ()
    return replace(tuned.result, choice=tuned, gates=shown)


def _loaded(stats: Stats | str | Path | None) -> Stats | None:
    return load_stats(stats) if isinstance(stats, str | Path) else stats


def tune(
    model: ModelSource,
    data: Any = None,
    *,
    output: str | Path | None = None,
    target: str | Target | None = None,
    recipe: RecipeSource | None = None,
    requirements: Requirements | Mapping[str, Any] | None = None,
    effort: str = "search",
    samples: int | None = None,
    seconds: float = 3.0,
    **more: Unpack[_Keywords],
) -> Tuned:
    """Try several ways of quantizing a model, and return all trials and the best of them.

    This is what ``quantize`` does with the efforts ``standard`` and ``search``. Without data inputs are made
    up, and nothing is required of fidelity. ``seconds`` is how long models are timed in one round.
    """
    from octavo.tuning import automatic

    check_arguments(output=output, effort=effort, samples=samples, seconds=seconds)
    call = _Call.of(dict(more))
    task = call.requirements.get("task")
    inputs = inputs_of(model, data=data, recipe=recipe, task=task)
    refuse_inputs(written_files(output, may_miss=True), inputs)
    if effort not in EFFORTS[1:]:
        raise RecipeError(f"tune takes effort 'standard' or 'search', not {effort!r}.")
    given = dict(call.requirements)
    limit: Limit | float | None = more.get("time_limit", TIME_LIMIT)
    given.pop("task", None)
    given.pop("time_limit", None)
    tuned = automatic.tune(
        model,
        data,
        RecipeRequest.of(recipe, target, call.changes),
        run_of(call.options, output=output, samples=samples),
        requirements=requirements_of(requirements if requirements is not None else given, data),
        task=task_of(task, data),
        thorough=effort == "search",
        time_limit=limit,
        seconds=seconds,
    )
    if tuned.result is not None:
        note_inputs(tuned.result, inputs)
    return note_inputs(tuned, inputs)


def convert_qat(
    model: ModelSource,
    data: Any = None,
    *,
    target: str | Target | None = None,
    output: str | Path | None = None,
    style: Style | str = Style.QDQ,
    exact: bool = True,
    include: Iterable[Pattern] | Pattern = (),
    exclude: Iterable[Pattern] | Pattern = (),
    op_types: Iterable[str] | str | None = None,
    samples: int | None = None,
    **options: Unpack[Options],
) -> Result:
    """Turn a model trained with fake quantization into one that computes with integers.

    The trained scales and zero points stay as they are; weights become integers, biases int32. ``data`` is
    needed only for ranges that training left open. ``exact=False`` lets activations that were trained on a
    part of their type's integers (0 … 127 of uint8) use all of them, which is faster.
    """
    from octavo.pipeline import trained

    inputs = inputs_of(model, data=data)
    refuse_inputs(written_files(output), inputs)
    changes: Changes = {"include": include, "exclude": exclude, "op_types": op_types}
    wanted, sheet = RecipeRequest.of(None, target, changes).resolve(static=True)
    run = run_of(options, output=output, samples=samples)
    made = trained.convert(model, data, style_of(style), wanted, sheet, run, exact=exact)
    return note_inputs(made, inputs)
