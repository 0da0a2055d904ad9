"""The steps by name, and how a recipe writes them: ``name:option=value:…``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from octavo.algorithms.layers.probes import probed
from octavo.algorithms.layers.statistics_requests import StatisticsRequests
from octavo.algorithms.layers.subject import Subject
from octavo.algorithms.steps.step import Phase, Step, StepReport
from octavo.core.codec import options_of
from octavo.core.lazy import load_entry
from octavo.core.qtypes import UINT16
from octavo.core.requests import Request
from octavo.core.stats import State
from octavo.errors import RecipeError, closest
from octavo.targets import Target

# Name: module of octavo.algorithms.steps and class, in the order in which steps build on each other.
_STEPS: dict[str, str] = {
    "smoothquant": "smoothquant:SmoothQuant",
    "awq": "awq:Awq",
    "cache": "cache:Cache",
    "equalize": "equalize:Equalize",
    "mixed-precision": "mixed_precision:MixedPrecision",
    "clip": "clip:Clip",
    "rounding": "rounding:Rounding",
    "bias-correction": "bias_correction:BiasCorrection",
    "distill": "distill:Distill",
}
NAMES = tuple(_STEPS)
FOR_BLOCKS = ("awq", "cache")  # steps of weights in blocks beside float activations
_MIN_SAMPLES = "min_samples"  # an option of every step


@dataclass(frozen=True)
class ListedStep:
    """A step of a recipe, and the number of samples below which it is left out."""

    step: Step
    min_samples: int = 0


def step_class(name: str) -> Any:
    """Return the class of a step."""
    if name not in _STEPS:
        raise RecipeError(f"{name!r} is not a step{closest(name, NAMES) or '.'} Known: {', '.join(NAMES)}.")
    return load_entry("octavo.algorithms.steps", _STEPS[name])


def step(text: str) -> Step:
    """Return the step written as ``name`` or ``name:option=value:…``."""
    return _parsed(text).step


def steps(texts: Iterable[str]) -> tuple[Step, ...]:
    """Return the steps of a recipe in the order in which they build on each other."""
    return tuple(one.step for one in listed(texts))


def listed(texts: Iterable[str]) -> tuple[ListedStep, ...]:
    """Return the steps of a recipe in order, with their ``min-samples``; a step listed twice is refused."""
    found = tuple(sorted((_parsed(text) for text in texts), key=lambda one: NAMES.index(one.step.name)))
    names = [one.step.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"The step {name!r} is listed twice; remove one of them.")
    return found


def _parsed(text: str) -> ListedStep:
    name, *options = (part.strip() for part in text.split(":"))
    kind = step_class(name)
    given = options_of(f"The step {name!r}", kind, options, {_MIN_SAMPLES: int})
    least = given.pop(_MIN_SAMPLES, 0)
    return ListedStep(kind(**given), least)


def of_phase(chosen: Sequence[Step], phase: Phase) -> tuple[Step, ...]:
    """Return the steps of one phase."""
    return tuple(one for one in chosen if one.phase is phase)


def opset(chosen: Sequence[Step], target: Target) -> int:
    """Return the least opset that steps may make necessary: 21 for 16-bit activations."""
    wide = any(target.is_fast(op, UINT16.name) for op in target.placement.linear)
    return UINT16.min_opset if wide and of_phase(chosen, Phase.PLAN) else 0


def observed(
    chosen: Sequence[Step], subject: Subject, requests: StatisticsRequests | None = None
) -> AbstractContextManager[dict[str, Request]]:
    """Add probes to the model for all statistics that steps request; give what calibration has to record.

    ``requests`` are those of others, which are served by the same pass.
    """
    requests = requests if requests is not None else StatisticsRequests()
    for one in chosen:
        one.request(subject, requests)
    return probed(subject.model, requests)


def apply(chosen: Sequence[Step], subject: Subject, stats: Mapping[str, State]) -> tuple[StepReport, ...]:
    """Run steps one after the other."""
    return tuple(one.apply(subject, stats) for step in chosen for one in subject.each(step.name, [step]))
