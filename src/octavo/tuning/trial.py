"""The result of a trial, the demands on it, and the result of the search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.core.shown import Shown
from octavo.errors import RecipeError
from octavo.evaluation.timing.latency import Ratio
from octavo.reporting.figures import metric_text, metric_title
from octavo.reporting.text import many
from octavo.reporting.trial_tables import trial_figures, trials_table
from octavo.result import Result
from octavo.tuning.candidates import Candidate
from octavo.tuning.language import Predictions, TokenSpeeds
from octavo.tuning.objective import Objective

if TYPE_CHECKING:
    from octavo.tuning.sensitivity import Layer

SCHEMA = "octavo/tuned/2"
UNKNOWN = float("-inf")
ALIKE = 0.05  # speeds that differ by less count as the same: two sessions of one model differ by as much
FAITHFUL_DB = 20.0  # the error has a hundredth of the signal's power
READABLE_DB = 10.0  # a tenth: the least, however well what is read from the outputs agrees
# The share of equal answers that stands for fidelity in the place of decibels. Answers change where float is
# unsure, and there as often for the better as for the worse: of 5 in 100, the task's figure loses 1 or 2.
SAME_ANSWERS = 0.95
COUNTED_ANSWERS = 50  # with fewer, one answer that differs says more than the share does
# What a language model may lose in nats a token, as much as one of half the size loses or more: models of 4
# bits that were rounded without data are near to it.
READABLE_NATS = 0.35


@dataclass(frozen=True)
class Drop:
    """How much of a task's figure may be lost: a share of float's (``0.5%``), or an amount (``0.005``)."""

    amount: float
    relative: bool = False

    @classmethod
    def parse(cls, text: str) -> Drop:
        """Return the drop that ``0.5%`` or ``0.005`` means."""
        relative = text.strip().endswith("%")
        try:
            amount = float(text.strip().removesuffix("%"))
        except ValueError:
            amount = -1.0
        if not 0 <= amount < float("inf"):
            raise RecipeError(
                f"max_drop can't be {text!r}; write '0.5%' (of float's figure) or 0.005 (in its unit)."
            )
        return cls(amount / 100 if relative else amount, relative)

    def allows(self, score: Score) -> bool:
        """Whether a figure has lost no more than that."""
        most = self.amount * abs(score.float_value) if self.relative else self.amount
        return score.lost <= most + 1e-12

    def __str__(self) -> str:
        return f"{100 * self.amount:g} %" if self.relative else f"{self.amount:g}"


def checked_limit(name: str, value: float) -> float:
    """Return the number of a requirement; raise for one that nothing or everything meets by mistake."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise RecipeError(f"{name}={value!r} is not a number.")
    if name == "max_size" and value <= 0:
        raise RecipeError(
            f"{name}={value:g} allows no weights at all; give a share of float's bytes, such as 0.3."
        )
    if name == "min_speed" and not 0 <= value < math.inf:
        raise RecipeError(f"{name}={value:g} is not a speed; give a multiple of float's, such as 1.5.")
    return value


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


@dataclass(frozen=True)
class Demands:
    """Requirements of a search: by default no slower than float, no larger, and close enough to it.

    Where nothing is said about fidelity, a result is close enough with an error of a hundredth of the
    signal's power in its worst part (20 dB), or where at least 95 of 100 answers that are read from its
    outputs are float's own. Speeds count as they were measured. A trial that quantizes nothing runs the same
    kernels as the float model, and two sessions of one model differ by up to 5 %.
    """

    min_speed: float = 1.0
    min_sqnr: float | None = None  # dB of the worst part, on samples that calibration has not seen
    max_drop: Drop | None = None  # of a task's figure
    max_size: float = 1.0  # to the float model's weights
    optimize: Objective = Objective.BALANCED  # what counts most of those that meet all this

    def __post_init__(self) -> None:
        for name in ("min_speed", "min_sqnr", "max_size"):
            if getattr(self, name) is not None:
                checked_limit(name, getattr(self, name))

    def missed(self, trial: Trial) -> str | None:
        """Why a trial does not meet them; None if it does."""
        return self.unfaithful(trial) or self._slow(trial) or self._large(trial)

    def unfaithful(self, trial: Trial) -> str | None:
        """Why a trial is too far from float; None if it is not."""
        if trial.error is not None:
            return trial.error
        if (missed := self._noisy(trial)) is not None or self.max_drop is None:
            return missed
        if trial.score is None:
            return "its task was not evaluated"
        if not self.max_drop.allows(trial.score):
            side = "below" if trial.score.higher_is_better else "above"
            return f"{trial.score} is more than {self.max_drop} {side} float's {trial.score.float_text}"
        return None

    def is_close(self, trial: Trial) -> bool:
        """Whether a trial is as close to float as is requested; where nothing is, in decibels.

        Equal answers stand for them where no trial is as close, but of few answers some are equal by chance.
        """
        if self.unfaithful(trial) is not None:
            return False
        said = self.settles_fidelity or trial.predictions is not None or trial.sqnr_db is None
        return said or (trial.sqnr_db or 0.0) >= FAITHFUL_DB

    @property
    def settles_fidelity(self) -> bool:
        """Whether it is said how much fidelity is enough: then more of it is worth nothing in itself."""
        return self.max_drop is not None or self.min_sqnr is not None

    def _noisy(self, trial: Trial) -> str | None:
        decibels, told = trial.sqnr_db, trial.predictions
        if told is not None and self.min_sqnr is None:
            if self.max_drop is not None or told.lost <= READABLE_NATS:
                return None
            return f"predictions lose {told.lost:.2f} nats a token, more than {READABLE_NATS:g}"
        if decibels is None:
            return None
        if self.min_sqnr is not None:
            low = decibels < self.min_sqnr
            return f"{decibels:.1f} dB at the outputs are less than {self.min_sqnr:g}" if low else None
        if self.max_drop is not None or decibels >= FAITHFUL_DB:
            return None
        same = trial.agreement
        if decibels < READABLE_DB or same is None or trial.places < COUNTED_ANSWERS:
            return f"{decibels:.1f} dB at the outputs are less than {FAITHFUL_DB:g}"
        if same >= SAME_ANSWERS:
            return None
        return (
            f"{decibels:.1f} dB at the outputs, and {100 * (1 - same):.1f} % of the answers are not float's"
        )

    def _slow(self, trial: Trial) -> str | None:
        least = self.min_speed * (1 - ALIKE) if trial.runs_float and self.min_speed <= 1 else self.min_speed
        if trial.speed is not None and trial.speed.value < least:
            if self.min_speed == 1:
                return f"it is not faster than float ({trial.speed.value:.2f} × its speed)"
            return f"{trial.speed.value:.2f} × the speed of float is less than {self.min_speed:g}"
        return None

    def _large(self, trial: Trial) -> str | None:
        if trial.size is not None and trial.size > self.max_size:
            return f"{trial.size:.2f} × the bytes of float are more than {self.max_size:g}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        drop = str(self.max_drop) if self.max_drop is not None else None
        return {
            "min_speed": self.min_speed,
            "min_sqnr": self.min_sqnr,
            "max_drop": drop,
            "max_size": self.max_size,
            "optimize": self.optimize.value,
        }


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
        """Return the quantized model that was chosen, as ``quantize`` gives it."""
        return self.best.result if self.best is not None else None

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
            "demands": self.demands.to_dict(),
            "trials": [trial.to_dict() for trial in self.trials],
            "front": [trial.name for trial in self.front()],
            "layers": [layer.to_dict() for layer in self.layers],
            "notes": list(self.notes),
        }

    def chosen_dict(self) -> dict[str, Any]:
        """Return what was measured of the chosen trial, as plain data: what a manifest keeps."""
        kept = ("best", "met", "held_back", "threads", "float_bytes", "demands", "notes")
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
