"""What a trial found, what is demanded of it, and what came of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import RecipeError
from octavo.evaluation.latency import Ratio
from octavo.result import Result
from octavo.tuning.candidates import Candidate
from octavo.tuning.sensitivity import Layer

SCHEMA = "octavo/tuned/2"
UNKNOWN = float("-inf")
ALIKE = 0.05  # speeds that differ by less count as the same


@dataclass(frozen=True)
class Drop:
    """How much of a task's figure may be lost: a share of float's (``0.5%``), or an amount (``0.005``)."""

    amount: float
    relative: bool = False

    @classmethod
    def parse(cls, text: str) -> Drop:
        """``0.5%`` or ``0.005``."""
        relative = text.strip().endswith("%")
        try:
            amount = float(text.strip().removesuffix("%"))
        except ValueError:
            amount = -1.0
        if not 0 <= amount < float("inf"):
            raise RecipeError(
                f"--max-drop {text!r} is no loss; write 0.5% (of float's figure) or 0.005 (in its unit)."
            )
        return cls(amount / 100 if relative else amount, relative)

    def allows(self, score: Score) -> bool:
        """Whether a figure has lost no more than that."""
        most = self.amount * abs(score.float_value) if self.relative else self.amount
        return score.lost <= most + 1e-12

    def __str__(self) -> str:
        return f"{100 * self.amount:g} %" if self.relative else f"{self.amount:g}"


@dataclass(frozen=True)
class Score:
    """A task's first figure, of the trial and of the float model on the same samples."""

    name: str
    value: float
    float_value: float
    higher_is_better: bool = True

    @property
    def lost(self) -> float:
        """How much worse than float; below zero where it is better."""
        return (self.float_value - self.value) * (1.0 if self.higher_is_better else -1.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "value": self.value, "float": self.float_value, "lost": self.lost}


@dataclass(frozen=True)
class Demands:
    """What a result has to meet: no slower than float, no larger, and close enough to it.

    A speed is missed where the whole of its interval is below: noise decides nothing. A trial that quantizes
    nothing runs the float model, and two sessions of one model differ by more than their intervals say.
    """

    min_speed: float = 1.0
    min_sqnr: float = 10.0  # dB, of the worst output, on samples that calibration has not seen
    max_drop: Drop | None = None  # of a task's figure
    max_size: float = 1.0  # to the float model's weights

    def missed(self, trial: Trial) -> str | None:
        """Why a trial does not meet them; None if it does."""
        return self.unfaithful(trial) or self._slow(trial) or self._large(trial)

    def unfaithful(self, trial: Trial) -> str | None:
        """Why a trial is too far from float; None if it is not."""
        if trial.error is not None:
            return trial.error
        if trial.sqnr_db is not None and trial.sqnr_db < self.min_sqnr:
            return f"{trial.sqnr_db:.1f} dB at the outputs are less than {self.min_sqnr:g}"
        if self.max_drop is None:
            return None
        if trial.score is None:
            return "its task was not evaluated"
        if not self.max_drop.allows(trial.score):
            score = trial.score
            return (
                f"{score.name} {score.value:.4g} is more than {self.max_drop} below {score.float_value:.4g}"
            )
        return None

    def _slow(self, trial: Trial) -> str | None:
        least = self.min_speed * (1 - ALIKE) if trial.runs_float and self.min_speed <= 1 else self.min_speed
        if trial.speed is not None and trial.speed.high < least:
            return f"{trial.speed.value:.2f} × the speed of float is less than {self.min_speed:g}"
        return None

    def _large(self, trial: Trial) -> str | None:
        if trial.size is not None and trial.size > self.max_size:
            return f"{trial.size:.2f} × the bytes of float are more than {self.max_size:g}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        drop = str(self.max_drop) if self.max_drop is not None else None
        return {
            "min_speed": self.min_speed,
            "min_sqnr": self.min_sqnr,
            "max_drop": drop,
            "max_size": self.max_size,
        }


@dataclass(frozen=True, eq=False)
class Trial:
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

    @property
    def name(self) -> str:
        """The candidate's."""
        return self.candidate.name

    @property
    def runs_float(self) -> bool:
        """Whether nothing is quantized, only stored."""
        return self.result is not None and not self.result.plan.nodes

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "idea": self.candidate.idea,
            "sqnr_db": self.sqnr_db,
            "outputs": dict(self.parts),
            "agreement": self.agreement,
            "places": self.places,
            "score": self.score.to_dict() if self.score is not None else None,
            "speed": self.speed.to_dict() if self.speed is not None else None,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "error": self.error,
            "recipe": self.candidate.recipe.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Tuned:
    """All trials, and the one that was chosen."""

    trials: tuple[Trial, ...]
    best: Trial | None
    met: bool  # whether the best meets what was demanded
    reason: str
    held_back: int
    float_bytes: int
    demands: Demands = field(default_factory=Demands)
    layers: tuple[Layer, ...] = ()  # by what each loses alone, the weakest first
    notes: tuple[str, ...] = ()
    threads: int | None = None

    @property
    def result(self) -> Result | None:
        """The quantized model that was chosen, as ``quantize`` gives it."""
        return self.best.result if self.best is not None else None

    def front(self) -> list[Trial]:
        """The trials that no other beats in fidelity, speed and size at once."""
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
            "demands": self.demands.to_dict(),
            "trials": [trial.to_dict() for trial in self.trials],
            "front": [trial.name for trial in self.front()],
            "layers": [layer.to_dict() for layer in self.layers],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        from octavo.reporting.tuning import table

        return table(self.to_dict())


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
