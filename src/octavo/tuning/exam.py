"""A task that trials have to pass: its first figure, beside the float model's on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.calibration.engines import Engine
from octavo.errors import RecipeError
from octavo.evaluation.result import Score as Figure
from octavo.evaluation.run import evaluate
from octavo.evaluation.task import Task
from octavo.model import io
from octavo.tuning.trial import Score

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Exam:
    """A task of ``octavo.evaluate``, with its data and options."""

    task: str | Task | Callable[..., float]
    data: Any
    samples: int | None = None
    batch: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class Examiner:
    """Sits trials for an exam; the float model sits it once."""

    def __init__(
        self, exam: Exam, model: io.ModelSource, engine: Engine, progress: Progress | None = None
    ) -> None:
        if exam.task == "agreement":
            raise RecipeError(
                "The task 'agreement' has no figure of the float model that could drop; choose another task,"
                " or demand fidelity itself with --min-sqnr."
            )
        self._exam, self._engine, self._progress = exam, engine, progress
        self._float = self._figure(model)

    def score(self, path: Path) -> Score:
        """A trial's figure."""
        found = self._figure(path)
        return Score(found.name, found.value, self._float.value, found.higher_is_better)

    def _figure(self, model: io.ModelSource) -> Figure:
        exam = self._exam
        return evaluate(
            model,
            exam.data,
            exam.task,
            samples=exam.samples,
            batch=exam.batch,
            engine=self._engine,
            progress=self._progress,
            **exam.options,
        ).scores[0]
