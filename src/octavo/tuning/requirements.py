"""The keywords that say what a result has to meet: for a search, and for a run that takes one way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from octavo.core.arguments import check_type
from octavo.core.effort import best_path
from octavo.core.outputs import refuse_special
from octavo.errors import RecipeError, closest
from octavo.model.files.io import ModelSource
from octavo.pipeline import Run
from octavo.result import Result
from octavo.targets import Target
from octavo.tuning.objective import Objective
from octavo.tuning.task_check import TaskCheck
from octavo.tuning.trial import Demands, Drop, checked_limit


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


GATES = ("max_drop", "min_sqnr", "min_speed", "max_size")


def limits_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gates among keywords, with a largest drop read from its text; others are refused."""
    if not isinstance(given, Mapping):
        raise RecipeError(
            "Requirements are octavo.Demands or a dict such as {'min_sqnr': 20}, not a"
            f" {type(given).__name__}."
        )
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in GATES:
            raise RecipeError(f"There is no requirement {name!r}{closest(name, GATES) or '.'}")
        if value is not None:
            if name == "max_drop":
                found[name] = value if isinstance(value, Drop) else Drop.parse(str(value))
            else:
                found[name] = checked_limit(name, value)
    return found


def demands_of(given: Demands | Mapping[str, Any] | None, data: Any) -> Demands | None:
    """Return what a result has to meet, from keywords; None where nothing is said."""
    if given is None or isinstance(given, Demands):
        return given
    plain = {**given} if isinstance(given, Mapping) else given
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
    if task is not None:
        check_type("task", task, (TaskCheck, str), "a TaskCheck or the name of a task")
    return TaskCheck(task, data) if isinstance(task, str) else task


@dataclass(frozen=True)
class OneWay:
    """What one way of quantizing has to meet: measured after it is made, before it is written."""

    model: ModelSource
    data: Any
    limits: dict[str, Any]
    task: TaskCheck | None
    samples: int | None

    @classmethod
    def of(cls, model: ModelSource, data: Any, requirements: Requirements, samples: int | None) -> OneWay:
        """Return the limits among requirements; raise for those that only a search can meet."""
        given: dict[str, Any] = {**requirements}
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

    def without_output(self, run: Run) -> Run:
        """The run that makes the result; where limits decide the name of the output, it writes nothing."""
        if not self.limits or run.destination.path is None:
            return run
        refuse_special(run.destination.path)
        return replace(run, destination=replace(run.destination, path=None))

    def checked(self, result: Result, run: Run) -> Result:
        """Return the result with its gates, written under the name that they decide."""
        if not self.limits:
            return result
        from octavo.tuning.gates import check_gates  # slow to import, and seldom needed

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
