"""Steps: small changes that win back accuracy, at no cost in size or speed.

============  ==========================================================================================
phase         a step of it
============  ==========================================================================================
``float``     changes the float model before it is planned and calibrated, and keeps what it computes
``plan``      sees what the plan does to each layer, and has it made again
``ranges``    changes the ranges of activations before scales are made of them
``integers``  changes weights and biases when all scales are known
============  ==========================================================================================

Each says what it has to know (:class:`~.wishes.Wishes`; one pass over the data serves all steps), measures
the local error of every layer before and after, and leaves a layer alone where it does not fall.

A recipe lists steps by name, with options behind colons: ``smoothquant:alpha=0.5:fold=no``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from enum import Enum
from importlib import import_module
from typing import Any, ClassVar, Protocol, get_args, get_type_hints

import onnx_ir as ir

from octavo.algorithms.probes import probed
from octavo.algorithms.wishes import Wishes
from octavo.core.plan import Key, Plan
from octavo.core.qparams import QParams
from octavo.core.qtypes import UINT16
from octavo.core.recipe import Override, Recipe
from octavo.core.stats import Need, Range, State
from octavo.errors import RecipeError, closest
from octavo.targets import Target


class Phase(Enum):
    """When a step runs."""

    FLOAT = "float"  # before planning and calibration
    PLAN = "plan"  # when it is known what the plan does to each layer; it is made again then
    RANGES = "ranges"  # when activations are measured, before scales are made of it
    INTEGERS = "integers"  # when scales are known


@dataclass(frozen=True)
class Change:
    """What was done to one layer, or to some that go together; errors are shares of the output's variance."""

    layer: str
    what: str
    before: float
    after: float


@dataclass(frozen=True)
class Refusal:
    """A layer that was left alone, and why."""

    layer: str
    reason: str


@dataclass(frozen=True)
class StepReport:
    """What a step did."""

    step: str
    changed: tuple[Change, ...] = ()
    refused: tuple[Refusal, ...] = ()

    @property
    def fall(self) -> float:
        """The share of the local errors that is gone."""
        before = sum(change.before for change in self.changed)
        return 1.0 - sum(change.after for change in self.changed) / before if before else 0.0

    def __str__(self) -> str:
        if not self.changed:
            done = "nothing changed"
        else:
            places = len(self.changed)
            noun = "place" if places == 1 else "places"
            done = f"{places} {noun} changed, local error {-100 * self.fall:+.0f} %"
        return f"{self.step}: {done}{self._left_alone()}"

    def _left_alone(self) -> str:
        if not self.refused:
            return ""
        reasons: dict[str, int] = {}
        for refusal in self.refused:
            reasons[refusal.reason] = reasons.get(refusal.reason, 0) + 1
        most = sorted(reasons.items(), key=lambda item: -item[1])
        listed = "; ".join(f"{count} × {reason}" for reason, count in most[:3])
        return f"; {len(self.refused)} left alone ({listed}{'; …' if len(most) > 3 else ''})"


@dataclass(frozen=True)
class Lab:
    """What a step can ask for while it works: the model as quantized so far, and statistics of any model."""

    emitted: Callable[[], ir.Model]
    collect: Callable[[ir.Model, Wishes], Mapping[str, State]]
    can_repeat: bool = True  # the data can be gone through again


@dataclass
class Changes:
    """What steps want to be planned otherwise."""

    floats: dict[str, str] = field(default_factory=dict)  # nodes that stay float, and why
    tensors: dict[str, str] = field(default_factory=dict)  # that stay float for every reader, and why
    overrides: dict[str, Override] = field(default_factory=dict)  # by tensor

    def __bool__(self) -> bool:
        return bool(self.floats or self.tensors or self.overrides)


@dataclass(frozen=True)
class Subject:
    """The model that steps work on, in place, and what is known of its future."""

    model: ir.Model
    recipe: Recipe
    plan: Plan
    params: dict[Key, QParams] | None = None  # in the phase of integers; steps may replace entries
    ranges: dict[str, Range] | None = None  # of activations, in the phase of ranges; likewise
    lab: Lab | None = None
    target: Target | None = None  # in the phase of plans, as is the next
    changes: Changes = field(default_factory=Changes)

    def is_quantized(self, node: ir.Node | None) -> bool:
        """Whether the plan quantizes a node."""
        return node is not None and (node.name or "") in self.plan.nodes


class Step(Protocol):
    """One way to win back accuracy."""

    name: ClassVar[str]
    phase: ClassVar[Phase]
    summary: ClassVar[str]

    def prepare(self, subject: Subject) -> None:
        """Make room in the float model, before it is planned."""
        ...

    def wishes(self, subject: Subject, wishes: Wishes) -> None:
        """Ask for the statistics that it needs."""
        ...

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Change the model, and say what was done."""
        ...


_STEPS: dict[str, tuple[str, str]] = {
    "smoothquant": ("smoothquant", "SmoothQuant"),
    "equalize": ("equalize", "Equalize"),
    "mixed-precision": ("mixed_precision", "MixedPrecision"),
    "clip": ("clip", "Clip"),
    "rounding": ("rounding", "Rounding"),
    "bias-correction": ("bias_correction", "BiasCorrection"),
}
NAMES = tuple(_STEPS)


def step(spelled: str) -> Step:
    """The step written as ``name`` or ``name:option=value:…``."""
    name, *options = spelled.split(":")
    kind = step_class(name.strip())
    hints, given = get_type_hints(kind), {}
    known = {entry.name: hints[entry.name] for entry in fields(kind)}
    for option in options:
        key, sign, value = option.partition("=")
        key = key.strip().replace("-", "_")
        if key not in known:
            raise RecipeError(
                f"The step {name!r} has no option {key!r}{closest(key, known) or '.'}"
                f" Known: {', '.join(known) or 'none'}."
            )
        text = value.strip() if sign else "yes"
        if text != "auto" or known[key] in (bool, str):  # auto: as if nothing was said
            given[key] = _value(f"{name}:{key}", known[key], text)
    made: Step = kind(**given)
    return made


def step_class(name: str) -> Any:
    """The class of a step."""
    if name not in _STEPS:
        raise RecipeError(f"{name!r} is no step{closest(name, NAMES) or '.'} Known: {', '.join(NAMES)}.")
    module, attribute = _STEPS[name]
    return getattr(import_module(f"octavo.algorithms.{module}"), attribute)


def _value(where: str, kind: Any, text: str) -> Any:
    if bool in (kind, *get_args(kind)):
        if text.lower() not in ("yes", "no", "true", "false"):
            known = "neither yes nor no" if kind is bool else "none of yes, no and auto"
            raise RecipeError(f"{where}={text} is {known}.")
        return text.lower() in ("yes", "true")
    if kind is str:
        return text
    try:
        number = int(text) if int in (kind, *get_args(kind)) else float(text)
        if not math.isfinite(number):
            raise ValueError(text)
        return number
    except ValueError as error:
        raise RecipeError(f"{where}={text} is no number; give one, or auto for what is usual.") from error


def steps(texts: Iterable[str]) -> tuple[Step, ...]:
    """The steps of a recipe in the order in which they build on each other; none may come twice."""
    found = tuple(sorted((step(text) for text in texts), key=lambda one: NAMES.index(one.name)))
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"The step {name!r} is listed twice; leave one of them out.")
    return found


def of_phase(chosen: Sequence[Step], phase: Phase) -> tuple[Step, ...]:
    """The steps of one phase."""
    return tuple(one for one in chosen if one.phase is phase)


def opset(chosen: Sequence[Step], target: Target) -> int:
    """The least opset that steps may make necessary: 16-bit activations take 21."""
    wide = any(target.is_fast(op, UINT16.name) for op in target.products)
    return UINT16.min_opset if wide and of_phase(chosen, Phase.PLAN) else 0


def observed(chosen: Sequence[Step], subject: Subject) -> AbstractContextManager[dict[str, Need]]:
    """The model with probes for all that these steps have to know, and what calibration has to note."""
    wishes = Wishes()
    for one in chosen:
        one.wishes(subject, wishes)
    return probed(subject.model, wishes)


def apply(chosen: Sequence[Step], subject: Subject, stats: Mapping[str, State]) -> tuple[StepReport, ...]:
    """Run steps, one after the other."""
    return tuple(one.apply(subject, stats) for one in chosen)
