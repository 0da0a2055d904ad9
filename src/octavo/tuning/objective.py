"""What the automatic choice prefers: how much speed, bytes and predictions weigh in the value of a trial.

===========  ==========================  ======  =====  ====================================================
objective    speed of a language model   speed   bytes  a nat that the predictions of a language model lose
===========  ==========================  ======  =====  ====================================================
``balanced``  of prompts and of tokens    1       0.3    2
``decode``    of the tokens it writes     1       0.1    1
``prefill``   of the prompts it reads     1       0.1    1
``size``      of prompts and of tokens    0.1     1      1
===========  ==========================  ======  =====  ====================================================

Who names an objective wants it at the price of some fidelity, so that this weighs half as much there. Speed
of prompts and of tokens together is their geometric mean. ``balanced`` and ``size`` go for any model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import sqrt
from typing import TYPE_CHECKING

from octavo.errors import RecipeError, closest

if TYPE_CHECKING:
    from octavo.evaluation.timing.latency import Ratio


@dataclass(frozen=True)
class Weights:
    """What a trial's figures are worth, in units of ln(speed)."""

    speed: float
    size: float  # of ln(bytes)
    nat: float  # of KL divergence


class Objective(Enum):
    """What counts most of those trials that are close enough to float."""

    BALANCED = "balanced"
    DECODE = "decode"
    PREFILL = "prefill"
    SIZE = "size"

    @classmethod
    def of(cls, name: str | Objective) -> Objective:
        """Return the objective of this name."""
        if isinstance(name, Objective):
            return name
        known = [one.value for one in cls]
        if name not in known:
            hint = closest(str(name), known) or "."
            raise RecipeError(f"optimize: {name!r} is not known{hint} Choose one of {', '.join(known)}.")
        return cls(name)

    @property
    def is_about_tokens(self) -> bool:
        """Whether it makes sense for language models alone."""
        return self in (Objective.DECODE, Objective.PREFILL)

    @property
    def weights(self) -> Weights:
        """Return what counts how much."""
        return _WEIGHTS[self]

    def speed(self, prefill: Ratio, decode: Ratio | None) -> Ratio:
        """Return the speed that counts of a language model; without a cache it only reads prompts."""
        if decode is None or self is Objective.PREFILL:
            return prefill
        if self is Objective.DECODE:
            return decode
        return replace(
            prefill,
            value=sqrt(prefill.value * decode.value),
            low=sqrt(prefill.low * decode.low),
            high=sqrt(prefill.high * decode.high),
        )


_WEIGHTS = {
    Objective.BALANCED: Weights(1.0, 0.3, 2.0),
    Objective.DECODE: Weights(1.0, 0.1, 1.0),
    Objective.PREFILL: Weights(1.0, 0.1, 1.0),
    Objective.SIZE: Weights(0.1, 1.0, 1.0),
}
