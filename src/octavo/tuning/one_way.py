"""Requirements of a run that takes one way: measured after it is made, before it is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from octavo.core.effort import best_path
from octavo.core.outputs import refuse_special
from octavo.errors import RecipeError
from octavo.model.files.io import ModelSource
from octavo.pipeline import Run
from octavo.result import Result
from octavo.targets import Target
from octavo.tuning.requirements import RequirementKeywords, TaskCheck, limits_of, task_of


@dataclass(frozen=True)
class OneWay:
    """What one way of quantizing has to meet: measured after it is made, before it is written."""

    model: ModelSource
    data: Any
    limits: dict[str, Any]
    task: TaskCheck | None
    samples: int | None

    @classmethod
    def of(
        cls, model: ModelSource, data: Any, requirements: RequirementKeywords, samples: int | None
    ) -> OneWay:
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
        limits = limits_of(given)
        if task is not None and "max_drop" not in limits:
            raise RecipeError(
                "task measures what a requirement limits, and this call takes one way; give max_drop=… as"
                " well, or evaluate the result afterwards (octavo evaluate)."
            )
        return cls(model, data, limits, task, samples)

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
