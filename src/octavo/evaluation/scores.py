"""The result of an evaluation: metrics with confidence intervals, for one model or two side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.core.shown import Shown
from octavo.evaluation.task import ClassScore
from octavo.reporting.evaluation_tables import evaluation_line, evaluation_table
from octavo.reporting.notebook import data_frame

if TYPE_CHECKING:
    import pandas

SCHEMA = 1  # the version of what to_dict() returns


@dataclass(frozen=True)
class Score:
    """A metric of one model, with its 95 % confidence interval."""

    name: str
    value: float
    low: float
    high: float
    higher_is_better: bool = True
    percent: bool = False


@dataclass(frozen=True)
class Difference:
    """Model minus reference on the same samples, with the 95 % confidence interval of the difference."""

    name: str
    value: float
    low: float
    high: float
    method: str
    p_value: float | None = None

    @property
    def half_width(self) -> float:
        """Return the ± of the difference: half the width of its interval."""
        return (self.high - self.low) / 2

    @property
    def significant(self) -> bool:
        """Whether zero lies outside the interval."""
        return not self.low <= 0.0 <= self.high

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "half_width": self.half_width, "significant": self.significant}


@dataclass(frozen=True, repr=False)
class Evaluation(Shown):
    """The accuracy of a model, and of a reference on the same samples; prints as a table."""

    task: str
    model: str
    samples: int
    scores: tuple[Score, ...]
    against: str | None = None
    against_scores: tuple[Score, ...] = ()
    differences: tuple[Difference, ...] = ()
    class_metric: str = ""
    per_class: tuple[ClassScore, ...] = ()
    against_per_class: tuple[ClassScore, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def __getitem__(self, name: str) -> float:
        """Return the value of a metric: ``evaluation["top1"]``."""
        for score in self.scores:
            if score.name == name:
                return score.value
        raise KeyError(f"{name!r}; there are {', '.join(score.name for score in self.scores)}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for machines; ``docs/evaluate.md`` describes the keys."""
        return {
            "schema": SCHEMA,
            "kind": "evaluation",
            "task": self.task,
            "model": self.model,
            "against": self.against,
            "samples": self.samples,
            "scores": [asdict(score) for score in self.scores],
            "against_scores": [asdict(score) for score in self.against_scores],
            "differences": [difference.to_dict() for difference in self.differences],
            "per_class": {
                "figure": self.class_metric,
                "model": [asdict(score) for score in self.per_class],
                "against": [asdict(score) for score in self.against_per_class],
            },
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row for each metric of each model as a data frame; needs pandas."""
        models = ((self.model, self.scores), (self.against, self.against_scores))
        return data_frame([{"model": name, **asdict(score)} for name, scores in models for score in scores])

    def __str__(self) -> str:
        return evaluation_table(self.to_dict())

    def _line(self) -> str:
        return evaluation_line(self.to_dict())
