"""The result of a trial, the requirements on it, and the result of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.core.shown import Shown
from octavo.evaluation.timing.latency import Ratio
from octavo.reporting.figures import metric_text, metric_title
from octavo.reporting.text import many
from octavo.reporting.trial_tables import trial_figures, trials_table
from octavo.result import Result
from octavo.tuning.candidates import Candidate
from octavo.tuning.language import Predictions, TokenSpeeds
from octavo.tuning.requirements import Requirements

if TYPE_CHECKING:
    from octavo.tuning.sensitivity import Layer

SCHEMA = "octavo/tuned/2"
UNKNOWN = float("-inf")


@dataclass(frozen=True)
class Score:
    """A task's first metric, of the trial and of the float model on the same samples.

    ``low`` and ``high`` are the 95 % interval of the trial's value, ``samples`` how many it rests on.
    """

    name: str
    value: float
    float_value: float
    higher_is_better: bool = True
    percent: bool = False
    low: float | None = None
    high: float | None = None
    samples: int = 0

    @property
    def lost(self) -> float:
        """Return how much worse than float; below zero where it is better."""
        return (self.float_value - self.value) * (1.0 if self.higher_is_better else -1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        plain = asdict(self)
        return {**plain, "float": plain.pop("float_value"), "lost": self.lost}

    def __str__(self) -> str:
        return f"{metric_title(self.name)} {metric_text(self.name, self.value, self.percent)}"

    @property
    def float_text(self) -> str:
        """Return the float model's value in its unit."""
        return metric_text(self.name, self.float_value, self.percent)


@dataclass(frozen=True, eq=False, repr=False)
class Trial(Shown):
    """A candidate, and what was measured of it."""

    candidate: Candidate
    result: Result | None = None
    sqnr_db: float | None = None  # of the worst part of the outputs
    agreement: float | None = None  # the share of places with the same best class, where outputs are scores
    speed: Ratio | None = None
    bytes: int | None = None
    error: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)  # dB of each part of the outputs
    places: int = 0  # that the agreement was counted in
    size: float | None = None  # of the weights, to the float model's
    score: Score | None = None
    seconds: float = 0.0  # that it took to make
    sqnr_interval: tuple[float, float] | None = None  # 95 %, of sqnr_db
    predictions: Predictions | None = None  # of a language model, beside float's
    tokens: TokenSpeeds | None = None  # its speed, which ``speed`` sums up by the objective

    @property
    def name(self) -> str:
        """Return the candidate's name."""
        return self.candidate.name

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.name}: {self.error}"
        return f"{self.name}: {', '.join(trial_figures(self.to_dict()))}"

    @property
    def runs_float(self) -> bool:
        """Whether nothing is quantized: weights are compressed at most."""
        return self.result is not None and not self.result.plan.nodes

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "idea": self.candidate.idea,
            "sqnr_db": self.sqnr_db,
            "sqnr_interval": self.sqnr_interval,
            "outputs": dict(self.parts),
            "agreement": self.agreement,
            "places": self.places,
            "score": self.score.to_dict() if self.score is not None else None,
            "speed": asdict(self.speed) if self.speed is not None else None,
            "predictions": self.predictions.to_dict() if self.predictions is not None else None,
            "tokens": asdict(self.tokens) if self.tokens is not None else None,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "error": self.error,
            "recipe": self.candidate.recipe.to_dict(),
        }


@dataclass(frozen=True, eq=False, repr=False)
class Tuned(Shown):
    """All trials, and the one that was chosen."""

    trials: tuple[Trial, ...]
    best: Trial | None
    met: bool  # whether the best meets the requirements
    reason: str
    held_back: int
    float_bytes: int
    requirements: Requirements = field(default_factory=Requirements)
    layers: tuple[Layer, ...] = ()  # by what each loses alone, the weakest first
    notes: tuple[str, ...] = ()
    threads: int | None = None

    @property
    def result(self) -> Result | None:
        """Return the quantized model that was chosen, as ``quantize`` gives it."""
        return self.best.result if self.best is not None else None

    @property
    def is_open(self) -> bool:
        """Whether nothing is missed but that the speed was not measured closely enough for a requirement."""
        return not self.met and self.best is not None and self.requirements.leaves_speed_open(self.best)

    def front(self) -> list[Trial]:
        """Return the trials that no other beats in fidelity, speed and size at once."""
        seen = [trial for trial in self.trials if trial.error is None]
        return [one for one in seen if not any(_beats(other, one) for other in seen if other is not one)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; docs/tuning.md says what each key holds."""
        return {
            "schema": SCHEMA,
            "kind": "tuning",
            "best": self.best.name if self.best is not None else None,
            "met": self.met,
            "reason": self.reason,
            "held_back": self.held_back,
            "threads": self.threads,
            "float_bytes": self.float_bytes,
            "requirements": self.requirements.to_dict(),
            "trials": [trial.to_dict() for trial in self.trials],
            "front": [trial.name for trial in self.front()],
            "layers": [layer.to_dict() for layer in self.layers],
            "notes": list(self.notes),
        }

    def chosen_dict(self) -> dict[str, Any]:
        """Return what was measured of the chosen trial, as plain data: what a manifest keeps."""
        kept = ("best", "met", "held_back", "threads", "float_bytes", "requirements", "notes")
        plain = self.to_dict()
        trials = [trial for trial in plain["trials"] if trial["name"] == plain["best"]]
        return {**{key: plain[key] for key in kept}, "trials": trials}

    def __str__(self) -> str:
        return trials_table(self.to_dict())

    def _line(self) -> str:
        chosen = self.reason if self.met else f"nothing meets the requirements; {self.reason}"
        return f"{many(len(self.trials), 'trial')}, {chosen}"


def _beats(one: Trial, other: Trial) -> bool:
    """At least as good in everything, and better in something."""
    mine, theirs = merits(one), merits(other)
    return all(a >= b for a, b in zip(mine, theirs, strict=True)) and mine != theirs


def merits(trial: Trial) -> tuple[float, float, float]:
    """Fidelity, speed and size, more being better."""
    return (
        trial.sqnr_db if trial.sqnr_db is not None else UNKNOWN,
        trial.speed.value if trial.speed is not None else 0.0,
        -float(trial.bytes or 0),
    )
