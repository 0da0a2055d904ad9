"""What a trial found, what is demanded of it, and what came of the search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from octavo.evaluation.latency import Ratio
from octavo.result import Result
from octavo.tuning.candidates import Candidate

SCHEMA = "octavo/tuned/1"


@dataclass(frozen=True)
class Demands:
    """What a result has to meet: as fast as float at least, and close enough to it."""

    min_speed: float = 1.0
    min_sqnr: float = 10.0  # dB, at the outputs, on samples that calibration has not seen

    def missed(self, trial: Trial) -> str | None:
        """Why a trial does not meet them; None if it does."""
        if trial.error is not None:
            return trial.error
        if trial.sqnr_db is not None and trial.sqnr_db < self.min_sqnr:
            return f"{trial.sqnr_db:.1f} dB at the outputs are less than {self.min_sqnr:g}"
        if trial.speed is not None and trial.speed.value < self.min_speed:
            return f"{trial.speed.value:.2f} × the speed of float is less than {self.min_speed:g}"
        return None


@dataclass(frozen=True, eq=False)
class Trial:
    """A candidate, and what was measured of it."""

    candidate: Candidate
    result: Result | None = None
    sqnr_db: float | None = None
    agreement: float | None = None  # the share of samples with the same best class, where outputs are scores
    speed: Ratio | None = None
    bytes: int | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        """The candidate's."""
        return self.candidate.name

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "idea": self.candidate.idea,
            "sqnr_db": self.sqnr_db,
            "agreement": self.agreement,
            "speed": self.speed.to_dict() if self.speed is not None else None,
            "bytes": self.bytes,
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

    @property
    def result(self) -> Result | None:
        """The quantized model that was chosen, as ``quantize`` gives it."""
        return self.best.result if self.best is not None else None

    def front(self) -> list[Trial]:
        """The trials that no other beats in fidelity, speed and size at once."""
        seen = [trial for trial in self.trials if trial.error is None]
        return [one for one in seen if not any(_beats(other, one) for other in seen if other is not one)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; docs/tune.md says what each key holds."""
        return {
            "schema": SCHEMA,
            "best": self.best.name if self.best is not None else None,
            "met": self.met,
            "reason": self.reason,
            "held_back": self.held_back,
            "float_bytes": self.float_bytes,
            "demands": {"min_speed": self.demands.min_speed, "min_sqnr": self.demands.min_sqnr},
            "trials": [trial.to_dict() for trial in self.trials],
            "front": [trial.name for trial in self.front()],
        }

    def __str__(self) -> str:
        from octavo.reporting.tuning import table

        return table(self.to_dict())


def _beats(one: Trial, other: Trial) -> bool:
    """At least as good in everything, and better in something."""
    mine, theirs = _merits(one), _merits(other)
    return all(a >= b for a, b in zip(mine, theirs, strict=True)) and mine != theirs


def _merits(trial: Trial) -> tuple[float, float, float]:
    return (
        trial.sqnr_db if trial.sqnr_db is not None else float("-inf"),
        trial.speed.value if trial.speed is not None else 0.0,
        -float(trial.bytes or 0),
    )
