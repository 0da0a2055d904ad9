"""A task that trials are evaluated on: its first figure, beside the float model's on the same samples."""

from __future__ import annotations

from pathlib import Path

from octavo.calibration.engines import Engine
from octavo.core.arguments import check_arguments
from octavo.core.progress import Progress
from octavo.errors import RecipeError
from octavo.evaluation.scores import Evaluation
from octavo.model.files import io
from octavo.tuning.requirements import TaskCheck
from octavo.tuning.trial import Score


class TaskChecker:
    """Evaluates trials on a task; the float model is evaluated once."""

    def __init__(
        self, check: TaskCheck, model: io.ModelSource, engine: Engine, progress: Progress | None = None
    ) -> None:
        if check.task == "agreement":
            raise RecipeError(
                "The task 'agreement' has no figure of the float model that could drop; choose another task,"
                " or require fidelity with --min-sqnr."
            )
        self._check, self._engine, self._progress = check, engine, progress
        self._float = self._evaluated(model)

    def score(self, path: Path) -> Score:
        """Return a trial's figure."""
        found = self._evaluated(path)
        score = found.scores[0]
        return Score(
            score.name,
            score.value,
            self._float.scores[0].value,
            score.higher_is_better,
            score.percent,
            score.low,
            score.high,
            found.samples,
        )

    def _evaluated(self, model: io.ModelSource) -> Evaluation:
        from octavo.evaluation.evaluator import evaluate  # slow to import, and seldom needed

        check = self._check
        check_arguments(options=check.options)
        return evaluate(
            model,
            check.data,
            check.task,
            samples=check.samples,
            batch=check.batch,
            engine=self._engine,
            progress=self._progress,
            **check.options,
        )
