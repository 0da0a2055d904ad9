"""A scheme says how one tensor is to be quantized; it holds no measured number.

Methods are values: how a range is read off the statistics of a tensor. Their code is in
``octavo.calibration.methods``, found by class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from octavo.core.granularity import Granularity, PerTensor
from octavo.core.qtypes import QType
from octavo.errors import RecipeError


@dataclass(frozen=True)
class MinMax:
    """The smallest and the largest value seen.

    ``average`` takes the mean of the batches' minima and maxima instead; ``momentum`` folds them by
    an exponential moving average with that constant, in the order of the batches.
    """

    average: bool = False
    momentum: float | None = None

    def __post_init__(self) -> None:
        if self.momentum is not None and not 0.0 <= self.momentum <= 1.0:
            raise RecipeError(
                f"A momentum of {self.momentum} is no average; choose between 0 and 1, such as 0.01."
            )


@dataclass(frozen=True)
class Percentile:
    """The central ``percent`` of the values; the rest is clipped, half on either side."""

    percent: float = 99.999

    def __post_init__(self) -> None:
        if not 50.0 < self.percent <= 100.0:
            raise RecipeError(
                f"A percentile of {self.percent} makes no range; choose between 50 and 100, such as 99.99."
            )


@dataclass(frozen=True)
class Entropy:
    """The symmetric threshold whose quantized histogram diverges least (KL) from the original."""

    bins: int = 2048
    levels: int = 128

    def __post_init__(self) -> None:
        if self.bins < 1 or self.levels < 1:
            raise RecipeError(
                f"Entropy with {self.bins} bins and {self.levels} levels compares nothing; choose 2048 and"
                " 128."
            )


@dataclass(frozen=True)
class MSE:
    """The range with the least expected squared error of rounding and clipping."""


@dataclass(frozen=True)
class Distribution:
    """Mean and standard deviation, from which float8 scales are made."""


@dataclass(frozen=True)
class Auto:
    """The method with the least expected quantization error, chosen for each tensor."""


Method: TypeAlias = MinMax | Percentile | Entropy | MSE | Distribution | Auto
METHODS: dict[str, type[Method]] = {
    "minmax": MinMax,
    "percentile": Percentile,
    "entropy": Entropy,
    "mse": MSE,
    "distribution": Distribution,
    "auto": Auto,
}


@dataclass(frozen=True)
class Scheme:
    """Type, granularity and the rules by which a range becomes a scale and a zero point."""

    qtype: QType
    granularity: Granularity = field(default_factory=PerTensor)
    symmetric: bool = False
    method: Method = field(default_factory=MinMax)
    min_range: float | None = None  # the smallest max - min that is allowed
    reduce_range: bool = False  # one bit less, for kernels that saturate in 16 bits
    restricted: bool = False  # zero point only at qmin (range >= 0) or at the middle

    def __post_init__(self) -> None:
        if self.min_range is not None and not 0.0 <= self.min_range < math.inf:
            raise RecipeError(
                f"A smallest range of {self.min_range} makes no range; choose a small positive number such as"
                " 1e-4."
            )

    def but(self, **changes: Any) -> Scheme:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        parts = [self.qtype.name]
        if not isinstance(self.granularity, PerTensor):
            parts.append(f"/{self.granularity}")
        if self.symmetric:
            parts.append(" symmetric")
        if self.reduce_range:
            parts.append(" reduced")
        return "".join(parts)
