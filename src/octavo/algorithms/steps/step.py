"""What a step is, and what it reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from octavo.algorithms.layers.statistics_requests import StatisticsRequests
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.core.stats import State


class Phase(Enum):
    """When a step runs, and what it changes."""

    FLOAT = "float"  # the float model, before planning and calibration
    PLAN = "plan"  # the plan, when it is known what it does to each layer; it is made again then
    WEIGHTS = "weights"  # float weights, when the plan and the statistics of their inputs are known
    RANGES = "ranges"  # ranges of activations, before scales are computed from them
    INTEGERS = "integers"  # weights and biases, when scales are known


@dataclass(frozen=True)
class Change:
    """What was done to a layer, tensor or group of layers; errors are relative to the output's variance."""

    layer: str
    what: str
    before: float
    after: float


@dataclass(frozen=True)
class StepReport:
    """What a step did."""

    step: str
    changed: tuple[Change, ...] = ()
    refused: tuple[Refusal, ...] = ()
    verb: str = "changed"
    noun: str = "layers"
    total: int | None = None  # the layers that were looked at; None: those changed and refused

    @classmethod
    def of(cls, step: str, done: Iterable[Change | Refusal], verb: str, noun: str) -> StepReport:
        """Return the report of a step by what it did to each item, or why it left that alone."""
        items = list(done)
        changed = tuple(one for one in items if isinstance(one, Change))
        return cls(step, changed, tuple(one for one in items if isinstance(one, Refusal)), verb, noun)

    @property
    def fall(self) -> float:
        """Return the share of the estimated errors that is gone."""
        before = sum(change.before for change in self.changed)
        return 1.0 - sum(change.after for change in self.changed) / before if before else 0.0

    def __str__(self) -> str:
        total = self.total if self.total is not None else len(self.changed) + len(self.refused)
        if self.changed:
            percent = f"{-100 * self.fall:+.0f} %".replace("-", "−")
            done = f"{self.step}: {self.verb} {len(self.changed)} of {total} {self._counted(total)}"
            is_estimated = any(one.before or one.after for one in self.changed)
            return f"{done}, estimated error {percent}" if is_estimated else done
        if not self.refused:
            return f"{self.step}: nothing to change"
        reasons = [refusal.reason for refusal in self.refused]
        usual = max(dict.fromkeys(reasons), key=reasons.count)
        where = f" ({reasons.count(usual)} of them)" if reasons.count(usual) < len(reasons) else ""
        if total == 1:
            return f"{self.step}: the only {self._counted(1)} was not {self.verb}: {usual}"
        return f"{self.step}: {self.verb} none of {total} {self.noun}: {usual}{where}"

    def _counted(self, count: int) -> str:
        """Return the noun in the number of a count: one group of linear layers, two groups of them."""
        if count != 1:
            return self.noun
        first, of, rest = self.noun.partition(" of ")
        return f"{first.removesuffix('es' if first.endswith('ses') else 's')}{of}{rest}"


class Step:
    """A change to a whole model that wins back accuracy."""

    name: ClassVar[str]
    phase: ClassVar[Phase]
    summary: ClassVar[str]
    reads_float_model: ClassVar[bool] = False  # beside the quantized one, when integers are known

    def prepare(self, subject: Subject) -> None:
        """Change the float model as needed before it is planned; most steps leave it as it is."""

    def request(self, subject: Subject, requests: StatisticsRequests) -> None:
        """Request the statistics of the float model that the step needs; none by default."""

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Change the model and report what was done."""
        raise NotImplementedError
