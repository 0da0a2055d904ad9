"""What a result has to meet: :class:`Requirements` as a value, and the keywords that say the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from octavo.core.arguments import check_type
from octavo.errors import RecipeError, closest
from octavo.reporting.figures import speed_text
from octavo.tuning.objective import Objective

if TYPE_CHECKING:
    from octavo.evaluation.task import Task
    from octavo.tuning.trial import Score, Trial

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
class TaskCheck:
    """A task of ``octavo.evaluate``, with its data and options."""

    task: str | Task | Callable[..., float]
    data: Any
    samples: int | None = None
    batch: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Requirements:
    """Requirements of a search: by default no slower than float, no larger, and close enough to it.

    Where nothing is said about fidelity, a result is close enough with an error of a hundredth of the
    signal's power in its worst part (20 dB), or where at least 95 of 100 answers that are read from its
    outputs are float's own. Where nothing is said about speed, it counts as it was measured; a trial that
    quantizes nothing runs the same kernels as the float model, and two sessions of one model differ by up to
    5 %. A speed that is requested has to lie below the whole interval of what was measured.
    """

    min_speed: float | None = None  # None: no slower than float, as far as noise lets tell
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

    @property
    def least_speed(self) -> float:
        """The speed that is required, as a multiple of float's."""
        return 1.0 if self.min_speed is None else self.min_speed

    def leaves_speed_open(self, trial: Trial) -> bool:
        """Whether a trial misses nothing but that its speed was not measured closely enough."""
        if self.min_speed is None or trial.speed is None or self.unfaithful(trial) or self._large(trial):
            return False
        return trial.speed.reaches(self.min_speed) is None

    def _slow(self, trial: Trial) -> str | None:
        if trial.speed is None:
            return None
        if self.min_speed is None:
            is_slow = trial.speed.value < (1 - ALIKE if trial.runs_float else 1)
            return f"it is not faster than float ({trial.speed.value:.2f} × its speed)" if is_slow else None
        found, least = trial.speed.reaches(self.min_speed), f"{self.min_speed:g}"
        if found is None:
            shown = speed_text(asdict(trial.speed))
            return f"the measurement does not tell whether {shown} the speed of float reaches {least} ×"
        return None if found else f"{trial.speed.value:.2f} × the speed of float is less than {least}"

    def _large(self, trial: Trial) -> str | None:
        if trial.size is not None and trial.size > self.max_size:
            return f"{trial.size:.2f} × the bytes of float are more than {self.max_size:g}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        drop = str(self.max_drop) if self.max_drop is not None else None
        return {
            "min_speed": self.least_speed,
            "min_sqnr": self.min_sqnr,
            "max_drop": drop,
            "max_size": self.max_size,
            "optimize": self.optimize.value,
        }


class RequirementKeywords(TypedDict, total=False):
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
            "Requirements are an octavo.Requirements or a dict such as {'min_sqnr': 20}, not a"
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


def requirements_of(given: Requirements | Mapping[str, Any] | None, data: Any) -> Requirements | None:
    """Return what a result has to meet, from keywords; None where nothing is said."""
    if given is None or isinstance(given, Requirements):
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
    return Requirements(**said)


def task_of(task: TaskCheck | str | None, data: Any) -> TaskCheck | None:
    """Return the task that trials are evaluated on; a name alone is evaluated on the same data."""
    if task is not None:
        check_type("task", task, (TaskCheck, str), "a TaskCheck or the name of a task")
    return TaskCheck(task, data) if isinstance(task, str) else task
