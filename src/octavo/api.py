"""The verbs. They look up what is given by name, group settings and call the pipeline or the search.

``quantize`` is the one verb that most people need; :mod:`octavo.core.effort` says how much it tries, and how
much where a call says nothing. ``octavo quantize`` on the command line calls the same function.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import onnx_ir as ir

from octavo import calibration, pipeline, tuning
from octavo.calibration import saved
from octavo.core.effort import EFFORTS, best_path, effort_of
from octavo.core.outputs import refuse_inputs, refuse_special
from octavo.core.plan import Plan
from octavo.core.recipe import Pattern, Style
from octavo.core.scheme import Method
from octavo.core.shown import Shown
from octavo.core.stats import Stats
from octavo.errors import RecipeError, closest
from octavo.model.files import io
from octavo.model.prepare import PrepareOptions, PrepareReport
from octavo.model.prepare import prepare as prepare_model
from octavo.pipeline import Calibrated, Options, run_of
from octavo.pipeline import trained as qat
from octavo.pipeline.request import Changes, RecipeRequest, RecipeSource, patterns, style_of
from octavo.pipeline.statistics import statistics
from octavo.pipeline.weight_inputs import reads_inputs
from octavo.planning import check_fits
from octavo.reporting import inspection as model_inspect
from octavo.result import Result
from octavo.targets import Target
from octavo.tuning import Demands, Drop, TaskCheck, Tuned
from octavo.tuning.deadline import Limit
from octavo.tuning.gates import check_gates, gates_of_trial, limits_of
from octavo.tuning.objective import Objective
from octavo.tuning.search import TIME_LIMIT

if TYPE_CHECKING:
    from typing_extensions import Unpack

ModelSource = io.ModelSource


class Requirements(TypedDict, total=False):
    """The keywords that say what a result has to meet.

    ===========  =======================================================================================
    max_drop     what the figure of the ``task`` may lose: ``"0.5%"`` of float's, or ``0.005`` in its unit
    min_sqnr     fidelity of the worst output, in dB
    min_speed    speed as a multiple of float's
    max_size     bytes of weights as a multiple of float's
    task         a :class:`octavo.TaskCheck`, or the name of a task that needs no options
    time_limit   seconds after which the search ends with the best so far; None: no limit
    optimize     what counts most: ``balanced``, ``decode``, ``prefill`` or ``size``
    ===========  =======================================================================================
    """

    max_drop: Drop | str | float | None
    min_sqnr: float | None
    min_speed: float | None
    max_size: float | None
    task: TaskCheck | str | None
    time_limit: float | None
    optimize: str | None


class _Keywords(Changes, Requirements, Options, total=False):
    """All keywords of ``quantize`` beside those of its signature."""

    plan: Plan | str | Path | None
    stats: Stats | str | Path | None


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
    keywords = _Split.of(dict(more))
    plan, stats = keywords.rest.get("plan"), keywords.rest.get("stats")
    _refuse_inputs(
        written_files(output, may_miss=effort != "plain" or bool(keywords.requirements)),
        model,
        data=data,
        recipe=recipe,
        plan=plan,
        stats=stats,
        task=keywords.requirements.get("task"),
        custom_ops=keywords.options.get("custom_ops"),
    )
    if plan is not None:
        gates = _Gates.of(model, data, keywords.requirements, samples)
        return _carry_out(model, data, plan, recipe, keywords, output, samples, effort, gates)
    request = RecipeRequest.of(recipe, target, keywords.changes)
    chosen = _effort(effort, request, keywords, data, stats)
    run = run_of(keywords.options, output=output, samples=samples, stats=_loaded(stats))
    if chosen != "plain":
        return _searched(model, data, request, run, keywords.requirements, thorough=chosen == "search")
    wanted, sheet = request.resolve(static=data is not None or stats is not None)
    gates = _Gates.of(model, data, keywords.requirements, samples)
    gates.refuse(sheet)
    if samples is None:
        run = replace(run, observation=replace(run.observation, samples=wanted.calibration_samples))
    if not (wanted.is_static or wanted.steps or wanted.half is not None or reads_inputs(wanted)):
        data = None
    made = pipeline.quantize(model, data, wanted, sheet.at(run.execution.threads), gates.without_output(run))
    return gates.checked(made, run)


def _effort(effort: str | None, request: RecipeRequest, keywords: _Split, data: Any, stats: Any) -> str:
    """Return how much is tried, checked against what else the call says."""
    _, sheet = request.resolve(static=True)
    is_fixed = (
        request.fixes_recipe
        or stats is not None
        or keywords.options.get("verify") is False
        or keywords.options.get("prepare", True) is None
    )
    chosen = effort_of(effort, can_compare=data is not None and sheet.runs_here, is_fixed=is_fixed)
    if chosen != "plain" and not sheet.runs_here:
        raise RecipeError(
            f"effort {effort!r} compares and times models on this machine, and {sheet.name} does not run"
            " here; choose effort 'plain'."
        )
    if chosen != "plain" and stats is not None:
        raise RecipeError(f"effort {effort!r} compares models on data; give data instead of statistics.")
    return chosen


def _searched(
    model: ModelSource,
    data: Any,
    request: RecipeRequest,
    run: pipeline.Run,
    requirements: Requirements,
    *,
    thorough: bool,
) -> Result:
    given = dict(requirements)
    limit = cast("Limit | float | None", given.pop("time_limit", TIME_LIMIT))
    task = task_of(cast("TaskCheck | str | None", given.pop("task", None)), data)
    tuned = tuning.tune(
        model,
        data,
        request,
        run,
        demands=demands_of(given, data),
        task=task,
        thorough=thorough,
        time_limit=limit,
    )
    if tuned.result is None:
        raise RecipeError(tuned.reason)
    if not tuned.met and run.destination.path is not None:
        tuned.result.save(best_path(run.destination.path))
    shown = gates_of_trial(tuned.best, tuned.demands, given) if tuned.best is not None else ()
    return replace(tuned.result, choice=tuned, gates=shown)


@dataclass(frozen=True)
class _Gates:
    """What one way of quantizing has to meet: measured after it is made, before it is written."""

    model: ModelSource
    data: Any
    limits: dict[str, Any]
    task: TaskCheck | None
    samples: int | None

    @classmethod
    def of(cls, model: ModelSource, data: Any, requirements: Requirements, samples: int | None) -> _Gates:
        given: dict[str, Any] = dict(requirements)
        if given.pop("optimize", None) is not None:
            raise RecipeError(
                "optimize says which of several ways is preferred, and this call takes one way; give data and"
                " leave out what fixes the recipe, or leave optimize out."
            )
        if given.pop("time_limit", None) is not None:
            raise RecipeError(
                "time_limit bounds how long ways are tried, and this call takes one way; leave it out, or"
                " choose effort 'standard' or 'search'."
            )
        task = task_of(given.pop("task", None), data)
        return cls(model, data, limits_of(given), task, samples)

    def refuse(self, sheet: Target) -> None:
        """Raise where a limit can't be measured, before any work is done."""
        if self.limits and not sheet.runs_here:
            raise RecipeError(
                f"{', '.join(self.limits)} can't be combined with the target {sheet.name}, which does not run"
                " on this machine: nothing can be measured."
            )
        if "min_sqnr" in self.limits and self.data is None:
            raise RecipeError("min_sqnr compares outputs with those of float; give data=… to run both.")
        if "max_drop" in self.limits and self.task is None:
            raise RecipeError("max_drop limits the loss of a task's metric; say which task, and its data.")

    def without_output(self, run: pipeline.Run) -> pipeline.Run:
        """The run that makes the result; where limits decide the name of the output, it writes nothing."""
        if not self.limits or run.destination.path is None:
            return run
        refuse_special(run.destination.path)
        return replace(run, destination=replace(run.destination, path=None))

    def checked(self, result: Result, run: pipeline.Run) -> Result:
        """Return the result with its gates, written under the name that they decide."""
        if not self.limits:
            return result
        gates = check_gates(
            self.model,
            result,
            self.limits,
            data=self.data,
            task=self.task,
            samples=self.samples,
            threads=run.execution.threads,
        )
        result, to = replace(result, gates=gates), run.destination
        if to.path is not None:
            result.save(to.path if result.met else best_path(to.path), external_data=to.external_data)
        return result


def demands_of(given: Demands | Mapping[str, Any] | None, data: Any) -> Demands | None:
    """Return what a result has to meet, from keywords; None where nothing is said."""
    if isinstance(given, Demands):
        return given
    plain = dict(given or {}) if isinstance(given, Mapping) or given is None else given
    optimize = plain.pop("optimize", None) if isinstance(plain, dict) else None
    said = limits_of(plain)
    if optimize is not None:
        said["optimize"] = Objective.of(optimize)
    if not said:
        return None
    if data is None:
        said.setdefault("min_sqnr", float("-inf"))
    return Demands(**said)


def task_of(task: TaskCheck | str | None, data: Any) -> TaskCheck | None:
    """Return the task that trials are evaluated on; a name alone is evaluated on the same data."""
    return TaskCheck(task, data) if isinstance(task, str) else task


def tune(
    model: ModelSource,
    data: Any = None,
    *,
    output: str | Path | None = None,
    target: str | Target | None = None,
    recipe: RecipeSource | None = None,
    demands: Demands | Mapping[str, Any] | None = None,
    effort: str = "search",
    samples: int | None = None,
    seconds: float = 3.0,
    **more: Unpack[_Keywords],
) -> Tuned:
    """Try the ways of quantizing a model that make sense, and return all trials and the best of them.

    This is what ``quantize`` does with the efforts ``standard`` and ``search``. Without data inputs are made
    up, and nothing is required of fidelity. ``seconds`` is how long models are timed in one round.
    """
    keywords = _Split.of(dict(more))
    task = keywords.requirements.get("task")
    _refuse_inputs(written_files(output, may_miss=True), model, data=data, recipe=recipe, task=task)
    if effort not in EFFORTS[1:]:
        raise RecipeError(f"tune takes effort 'standard' or 'search', not {effort!r}.")
    given = dict(keywords.requirements)
    limit: Limit | float | None = more.get("time_limit", TIME_LIMIT)
    given.pop("task", None)
    given.pop("time_limit", None)
    return tuning.tune(
        model,
        data,
        RecipeRequest.of(recipe, target, keywords.changes),
        run_of(keywords.options, output=output, samples=samples),
        demands=demands_of(demands if demands is not None else given, data),
        task=task_of(task, data),
        thorough=effort == "search",
        time_limit=limit,
        seconds=seconds,
    )


@dataclass(frozen=True)
class _Split:
    """The keywords of a call, by what they are about."""

    changes: Changes
    requirements: Requirements
    options: Options
    rest: dict[str, Any]

    @classmethod
    def of(cls, given: dict[str, Any]) -> _Split:
        for name in given:
            if name not in _KNOWN:
                known = (*_KNOWN, *_OF_SIGNATURE)
                raise RecipeError(f"There is no keyword {name!r}{closest(name, known) or '.'}")

        def part(kind: Any) -> Any:
            return {name: value for name, value in given.items() if name in kind.__annotations__}

        said = {name: value for name, value in part(Requirements).items() if value is not None}
        rest: dict[str, Any] = {name: given[name] for name in ("plan", "stats") if name in given}
        return cls(part(Changes), cast("Requirements", said), part(Options), rest)


_OF_SIGNATURE = ("model", "data", "output", "target", "recipe", "effort", "samples")
_KNOWN = (*Changes.__annotations__, *Requirements.__annotations__, *Options.__annotations__, "plan", "stats")


def _carry_out(
    model: ModelSource,
    data: Any,
    plan: Plan | str | Path,
    recipe: Any,
    keywords: _Split,
    output: str | Path | None,
    samples: int | None,
    effort: str | None,
    gates: _Gates,
) -> Result:
    said = [name for name, value in keywords.changes.items() if value not in (None, (), [])]
    if recipe is not None or said or effort not in (None, "plain"):
        names = [*(["recipe"] if recipe is not None else []), *said]
        raise RecipeError(
            f"A plan has decided what {', '.join(names) or f'effort {effort!r}'} would say; leave that out,"
            " or make a new plan with it."
        )
    run = run_of(keywords.options, output=output, samples=samples, stats=_loaded(keywords.rest.get("stats")))
    loaded = Plan.load(plan) if isinstance(plan, str | Path) else plan
    return gates.checked(pipeline.carry_out(model, data, loaded, gates.without_output(run)), run)


def _loaded(stats: Stats | str | Path | None) -> Stats | None:
    return load_stats(stats) if isinstance(stats, str | Path) else stats


def written_files(output: str | Path | None, *, may_miss: bool = False) -> dict[str, str | Path]:
    """The files that a model may be written to; a result that misses what is required has another name."""
    if output is None:
        return {}
    found = {"output": output, "the weights beside the output,": f"{output}.data"}
    if may_miss and Path(output).name:
        found["the name for a result that misses its requirements,"] = best_path(output)
    return found


def _refuse_inputs(outputs: Mapping[str, Any], model: ModelSource, **read: Any) -> None:
    """Raise where an output is a file that the call reads; only data can be a folder."""
    files = {name: one for name, one in read.items() if name in ("data", "task") or _is_file(one)}
    refuse_inputs(outputs, {"model": model, **files, "weights of the model": io.read_files(model)})


def _is_file(given: Any) -> bool:
    """Whether an argument is the path of a file, or several, and not a name or what is read from there."""
    if isinstance(given, list | tuple):
        return all(map(_is_file, given))
    return isinstance(given, str | Path) and os.path.isfile(given)  # noqa: PTH113 - False for names too long


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
    _refuse_inputs(written_files(output), model, data=data)
    changes: Changes = {"include": include, "exclude": exclude, "op_types": op_types}
    wanted, sheet = RecipeRequest.of(None, target, changes).resolve(static=True)
    run = run_of(options, output=output, samples=samples)
    return qat.convert(model, data, style_of(style), wanted, sheet, run, exact=exact)


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
    """A dry run: what would be quantized, how, and what would stay in float and why.

    ``threads`` are those that the model will run with: with many of them some targets have other rules. The
    keywords that change the recipe are those of :func:`quantize`.
    """
    wanted, sheet = RecipeRequest.of(recipe, target, _Split.of(dict(changes)).changes).resolve(static=static)
    run = run_of({"prepare": prepare})
    subject = pipeline.prepared(model, pipeline.needed_opset(wanted), run)
    found = pipeline.planned(subject.model, wanted, sheet.at(threads)).plan
    return replace(found, notes=(*subject.report.notes, *found.notes))


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
    """Fold, infer shapes, fuse and clean up: the first stage of ``quantize``, on its own."""
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
    """Run the model on the data and keep what a plan (or ``plan.needs()``) has to know of its tensors.

    ``shard`` (1, 4) is the first of four parts of the data; statistics of parts merge into those of the
    whole, whoever made them. ``every_method`` also keeps what methods other than the plan's read. With an
    ``output`` the statistics are saved there. What is finished is written to the ``checkpoint`` from time to
    time (beside the output, unless it is named), and a run that was cut off goes on from it.
    """
    if checkpoint is None and output is not None:
        checkpoint = saved.checkpoint_of(output)
    _refuse_inputs({"output": output, "checkpoint": checkpoint}, model, data=data)
    run = run_of(options, samples=samples)
    opset = needs.opset if isinstance(needs, Plan) else pipeline.LEAST_OPSET
    subject = pipeline.prepared(model, opset, run, fingerprint=True)
    stats = statistics(
        subject, needs, data, run, every_method=every_method, shard=shard, checkpoint=checkpoint
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
    **options: Unpack[Options],
) -> Result:
    """Write a plan out with the numbers of a calibration."""
    run = run_of(options)
    subject = pipeline.prepared(model, plan.opset, run)
    check_fits(subject.model, plan)
    if stats is None:
        return pipeline.finish(subject, plan, None, run)
    found = Calibrated(stats, calibration.ranges(stats, pipeline.schemes(plan)))
    return pipeline.finish(subject, plan, found, run)


def inspect(model: ModelSource) -> model_inspect.Inspection:
    """Return how a model is quantized: types, granularity, counts, size by part."""
    return model_inspect.inspect(io.load(model))


__all__ = [
    "Prepared",
    "calibrate",
    "convert_qat",
    "emit",
    "inspect",
    "load_stats",
    "patterns",
    "plan",
    "prepare",
    "quantize",
    "ready",
    "save_stats",
    "tune",
]
