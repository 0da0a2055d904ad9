"""A scheme says how one tensor is to be quantized; it holds no measured number.

A calibration method is a value too: the settings by which a range is computed from the statistics of a
tensor. The code is in ``octavo.calibration.methods``, found by the method's name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, ClassVar

from octavo.core.arguments import check_type
from octavo.core.granularity import Granularity, PerChannel, PerTensor
from octavo.core.qtypes import UINT8, QType, TypeName, qtype
from octavo.core.shown import Brief
from octavo.errors import RecipeError, closest

METHODS: dict[str, type[Method]] = {}  # by the name that recipes and the command line use


@dataclass(frozen=True)
class Method:
    """The settings of a calibration method; a subclass with a ``name`` can be used in recipes."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        METHODS[cls.name] = cls


def all_methods() -> dict[str, type[Method]]:
    """Return every method by name, those that are defined beside their code included."""
    import_module("octavo.calibration.methods")
    return METHODS


@dataclass(frozen=True)
class MinMax(Method):
    """The smallest and the largest value seen.

    ``average`` takes the mean of the batches' minima and maxima instead; ``momentum`` folds them by
    an exponential moving average with that constant, in the order of the batches.
    """

    name: ClassVar[str] = "minmax"
    average: bool = False
    momentum: float | None = None

    def __post_init__(self) -> None:
        if self.momentum is not None and not 0.0 <= self.momentum <= 1.0:
            raise RecipeError(
                f"A momentum of {self.momentum} is out of range; choose between 0 and 1, such as 0.01."
            )


@dataclass(frozen=True)
class Percentile(Method):
    """The central ``percent`` of the values; the rest is clipped, half on either side."""

    name: ClassVar[str] = "percentile"
    percent: float = 99.999

    def __post_init__(self) -> None:
        if not isinstance(self.percent, int | float) or not 50.0 < self.percent <= 100.0:
            raise RecipeError(
                f"A percentile of {self.percent!r} makes no range; choose between 50 and 100, such as 99.99."
            )


@dataclass(frozen=True)
class Entropy(Method):
    """The symmetric threshold whose quantized histogram diverges least (KL) from the original."""

    name: ClassVar[str] = "entropy"
    bins: int = 2048
    levels: int = 128

    def __post_init__(self) -> None:
        if self.bins < 1 or self.levels < 1:
            raise RecipeError(
                f"Entropy with {self.bins} bins and {self.levels} levels compares nothing; choose 2048 and"
                " 128."
            )


@dataclass(frozen=True)
class MSE(Method):
    """The range with the least expected squared error of rounding and clipping."""

    name: ClassVar[str] = "mse"


@dataclass(frozen=True)
class Distribution(Method):
    """Mean and standard deviation, from which float8 scales are made."""

    name: ClassVar[str] = "distribution"


@dataclass(frozen=True)
class Auto(Method):
    """The method with the least expected quantization error, chosen for each tensor."""

    name: ClassVar[str] = "auto"


def refuse_unknown_fields(what: str, known: Iterable[str], given: Iterable[str]) -> None:
    """Raise where a name is not one of the fields of a value."""
    names = list(known)
    for name in given:
        if name not in names:
            hint = closest(name, names) or "."
            raise RecipeError(f"{what} has no {name!r}{hint} Known: {', '.join(names)}.")


@dataclass(frozen=True, repr=False)
class Scheme(Brief):
    """Type, granularity and the rules by which a range becomes a scale and a zero point."""

    qtype: QType
    granularity: Granularity = field(default_factory=PerTensor)
    symmetric: bool = False
    method: Method = field(default_factory=MinMax)
    min_range: float | None = None  # the smallest max - min that is allowed
    reduce_range: bool = False  # one bit less, for kernels that saturate in 16 bits
    restricted: bool = False  # zero point only at qmin (range >= 0) or at the middle

    def __post_init__(self) -> None:
        from octavo.core.codec import read_names  # which knows schemes

        read_names(self, {"qtype": QType, "granularity": Granularity, "method": Method})
        check_type("method", self.method, Method, "a method, or its name such as 'percentile:99.99'")
        if self.min_range is not None and not 0.0 <= self.min_range < math.inf:
            raise RecipeError(
                f"A smallest range of {self.min_range} makes no range; choose a small positive number such as"
                " 1e-4."
            )

    def but(self, **changes: Any) -> Scheme:
        """Return a copy with some fields changed."""
        refuse_unknown_fields("A scheme", self.__dataclass_fields__, changes)
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


@dataclass(frozen=True)
class DynamicScheme:
    """Activations are quantized while the model runs, from each input's own range."""

    TAGGED: ClassVar[bool] = True
    qtype: QType = UINT8

    @classmethod
    def from_text(cls, text: str) -> DynamicScheme:
        """``dynamic`` in a recipe file."""
        if text != "dynamic":
            raise RecipeError(
                f"{text!r} is not an activation scheme; write 'dynamic', null, or a mapping of settings."
            )
        return cls()

    def __str__(self) -> str:
        return f"{self.qtype} at run time"


def weight_scheme(current: Scheme | None, name: TypeName) -> Scheme:
    """Return the scheme of weights with the type of this name; by default with a scale for each channel."""
    kind = qtype(name)
    base = current if current is not None else Scheme(kind, PerChannel())
    return base.but(qtype=kind, symmetric=kind.symmetric_by_default)


def activation_scheme(
    current: Scheme | DynamicScheme | None, name: TypeName
) -> Scheme | DynamicScheme | None:
    """Return the scheme of activations with the type of this name; ``dynamic`` and ``none`` are names too."""
    if isinstance(name, str) and name == "none":
        return None
    if isinstance(name, str) and name == "dynamic":
        return current if isinstance(current, DynamicScheme) else DynamicScheme()
    kind = qtype(name)
    match current:
        case Scheme() as scheme:
            return scheme.but(qtype=kind, symmetric=scheme.symmetric or kind.is_float)
        case DynamicScheme():
            return DynamicScheme(kind)
        case _:
            return Scheme(kind, symmetric=kind.is_float)
