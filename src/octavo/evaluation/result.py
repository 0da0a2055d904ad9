"""What an evaluation hands over: figures with intervals, for one model or two side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.evaluation.task import ClassScore
from octavo.reporting.evaluation import evaluation_table
from octavo.reporting.html.notebook import table_html

if TYPE_CHECKING:
    import pandas

SCHEMA = 1


@dataclass(frozen=True)
class Score:
    """A figure of one model, with its 95 % confidence interval."""

    name: str
    value: float
    low: float
    high: float
    higher_is_better: bool = True
    percent: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "higher_is_better": self.higher_is_better,
            "percent": self.percent,
        }


@dataclass(frozen=True)
class Difference:
    """Model less reference on the same samples, with the 95 % confidence interval of the difference."""

    name: str
    value: float
    low: float
    high: float
    method: str
    p_value: float | None = None

    @property
    def half_width(self) -> float:
        """The ± of the difference."""
        return (self.high - self.low) / 2

    @property
    def significant(self) -> bool:
        """Whether the interval leaves zero out."""
        return not self.low <= 0.0 <= self.high

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "half_width": self.half_width,
            "method": self.method,
            "p_value": self.p_value,
            "significant": self.significant,
        }


@dataclass(frozen=True)
class Evaluation:
    """How well a model does, and how a reference does on the same samples; prints as a table."""

    task: str
    model: str
    samples: int
    scores: tuple[Score, ...]
    against: str | None = None
    against_scores: tuple[Score, ...] = ()
    differences: tuple[Difference, ...] = ()
    class_figure: str = ""
    per_class: tuple[ClassScore, ...] = ()
    against_per_class: tuple[ClassScore, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def __getitem__(self, name: str) -> float:
        """The value of a figure: ``evaluation["top1"]``."""
        for score in self.scores:
            if score.name == name:
                return score.value
        raise KeyError(f"{name!r}; there are {', '.join(score.name for score in self.scores)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for machines; ``docs/evaluate.md`` describes the keys."""
        return {
            "schema": SCHEMA,
            "kind": "evaluation",
            "task": self.task,
            "model": self.model,
            "against": self.against,
            "samples": self.samples,
            "scores": [score.to_dict() for score in self.scores],
            "against_scores": [score.to_dict() for score in self.against_scores],
            "differences": [difference.to_dict() for difference in self.differences],
            "per_class": {
                "figure": self.class_figure,
                "model": [_class(score) for score in self.per_class],
                "against": [_class(score) for score in self.against_per_class],
            },
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each figure of each model; needs pandas."""
        from octavo.evaluation.frames import frame

        rows = [
            {"model": name, **score.to_dict()}
            for name, scores in ((self.model, self.scores), (self.against, self.against_scores))
            for score in scores
        ]
        return frame(rows)

    def __str__(self) -> str:
        return evaluation_table(self.to_dict())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return table_html(str(self))


def _class(score: ClassScore) -> dict[str, Any]:
    return {"name": score.name, "value": score.value, "count": score.count}
