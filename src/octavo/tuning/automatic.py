"""The automatic choice: prepare once, search among trials, and return the best of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo import pipeline
from octavo.calibration.engines import Engine, held
from octavo.core import scratch
from octavo.core.cpu import cores
from octavo.core.recipe import Recipe
from octavo.errors import RecipeError
from octavo.model.files import io
from octavo.pipeline import Destination, Run
from octavo.pipeline.request import RecipeRequest
from octavo.tuning import choice
from octavo.tuning.deadline import TIME_LIMIT, Deadline, Limit
from octavo.tuning.requirements import FAITHFUL_DB, Requirements, TaskCheck
from octavo.tuning.runner import TrialRunner
from octavo.tuning.search import Search
from octavo.tuning.split import Split
from octavo.tuning.task_check import TaskChecker
from octavo.tuning.trial import Trial, Tuned


def tune(
    model: io.ModelSource,
    data: Any,
    request: RecipeRequest,
    run: Run,
    *,
    requirements: Requirements | None = None,
    task: TaskCheck | None = None,
    thorough: bool = True,
    time_limit: Limit | float | None = TIME_LIMIT,
    seconds: float = 3.0,
) -> Tuned:
    """Quantize a model in the way that measuring shows to be best.

    All static candidates start from the recipe of the request; what it includes and excludes holds for every
    candidate. Unless ``thorough``, layers and kinds of operators are left in float only where nothing else
    meets the requirements and is faster than float. The first result that meets them is written to the
    destination of the run at once, and replaced by the best in the end. After ``time_limit`` seconds the
    trial under way is given up; Ctrl-C does the same. Both keep the best so far, and a note says so.
    """
    deadline = Deadline.after(time_limit)
    wanted = requirements if requirements is not None else _default_requirements(data)
    if wanted.max_drop is not None and task is None:
        raise RecipeError("max_drop limits the loss of a task's figure; say which task, with its data.")
    base, target = request.resolve(static=True)
    if request.recipe is None:
        base = base.but(steps=())  # candidates add their own
    execution = run.execution
    target = target.at(execution.threads if execution.threads is not None else cores())
    prepared = pipeline.prepared(model, pipeline.needed_opset(base), run, fingerprint=True)
    split = Split.of(data, prepared.model, run.observation.samples)
    engine = execution.start()
    to, run = run.destination, _of_trials(run, base, engine)
    with scratch.folder() as folder, held(engine):
        runner = TrialRunner(prepared, split, target, Path(folder), engine, run, deadline)
        runner.requirements = wanted
        _check_objective(wanted, runner)
        search = Search(runner, wanted, base, seconds, thorough, to, is_free=not request.fixes_recipe)
        if task is not None:
            search.begin("float")
            runner.checker = TaskChecker(task, model, engine, runner.run.progress)
        _run(search, runner)
        best, met, reason = choice.pick(runner.trials, wanted, runner.unchanged)
        if met:
            search.write(best)
    if deadline.is_over and deadline.limit is not None:
        runner.notes.append(
            f"the time limit of {deadline.allowed:g} s ended the search before everything was tried"
        )
    return Tuned(
        tuple(runner.trials),
        best,
        met,
        reason,
        split.unseen,
        runner.float_bytes,
        wanted,
        search.layers,
        (*split.notes, *runner.notes, *_uncertain(best, wanted, split.unseen)),
        execution.threads,
    )


def _of_trials(run: Run, base: Recipe, engine: Engine) -> Run:
    """Return how trials are carried out: in the engine that is at hand, and nothing is written."""
    return replace(
        run,
        execution=replace(run.execution, engine=engine),
        observation=replace(run.observation, samples=base.calibration_samples),
        destination=Destination(),
    )


def _uncertain(best: Trial, requirements: Requirements, held_back: int) -> list[str]:
    """What the samples that were held back can't tell of the result."""
    least = requirements.min_sqnr if requirements.min_sqnr is not None else FAITHFUL_DB
    interval = best.sqnr_interval
    if interval is None or best.sqnr_db is None or not interval[0] < least <= best.sqnr_db:
        return []
    return [
        f"{held_back} held-back samples can't tell whether {least:g} dB are kept: {best.sqnr_db:.1f} dB"
        f" ({interval[0]:.1f} … {interval[1]:.1f}); give more data to know"
    ]


def _default_requirements(data: Any) -> Requirements:
    """Random inputs say little about fidelity, so nothing is required of it."""
    return Requirements() if data is not None else Requirements(min_sqnr=-math.inf)


def _check_objective(wanted: Requirements, runner: TrialRunner) -> None:
    """Raise where tokens shall count most, and the model predicts none."""
    if wanted.optimize.is_about_tokens and runner.reference.language is None:
        raise RecipeError(
            f"optimize {wanted.optimize.value!r} is about language models, and this is not one: it has"
            " no input of token ids with logits for each of them that depend on earlier tokens alone."
            " Leave it out, or write 'size'."
        )


def _run(search: Search, runner: TrialRunner) -> None:
    """Run all trials; Ctrl-C ends them where there is a result already."""
    try:
        search.run()
    except KeyboardInterrupt:
        if search.best is None:
            raise
        runner.notes.append(f"stopped after {len(runner.trials)} trials; this is the best of them")
