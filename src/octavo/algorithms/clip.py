"""Clipping: ranges of activations by the error that they make in the layers that read them.

A narrower range rounds more finely and cuts more off. Which one is best depends on who reads: an outlier
channel that a layer gives tiny weights may be cut off, one with large weights may not; and what is far below
zero before a SiLU makes no difference behind it. And one odd sample of a hundred may be ten times as loud as
the others: what it loses counts for one sample, not for a hundred. The range with the least ::

    mean over samples of  √( Σ_c v_c · E[(f(x_c) - f(Q(x_c)))²]  /  Σ_c v_c · E[f(x_c)²] )

is taken, with ``v_c = Σ |w_c|²``, which has a mean of 1 for each reader, and ``f`` the activation function
between the tensor and those layers, if there is one. Readers that are no layers, such as Add and Concat, have
``v = 1``. Channels whose ``v`` is within a factor of 4 share one histogram, and so do samples whose root mean
square is within a factor of 2. A range is changed only where this error falls by a tenth.

A tensor that no layer stands between and an output of the model keeps its range: there the rare values are
the answer, the one class that is found or the one character that is read. Only scores that go through a
Sigmoid are judged behind it, where the many that say no weigh nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from octavo.algorithms.layers import F64
from octavo.algorithms.readers import Importance, answer_function, is_answer, read_by
from octavo.algorithms.spreads import Samples, answering, joined, power
from octavo.algorithms.steps import Change, Phase, Refusal, StepReport, Subject
from octavo.algorithms.wishes import Classes, Wishes, class_names
from octavo.calibration.methods.mse import least_squares
from octavo.calibration.methods.spread import Spread
from octavo.calibration.observers import LoudnessState
from octavo.core.plan import Measured
from octavo.core.scheme import Scheme
from octavo.core.stats import Range, State

_APART = 4.0  # a factor between the importance of channels that share a histogram
_MOST = 4  # histograms of one tensor
_LEAST_GAIN = 0.1  # of the error; values that are yet to come may be larger than all that were seen


@dataclass(frozen=True)
class Clip:
    """Narrow the ranges of activations."""

    name: ClassVar[str] = "clip"
    phase: ClassVar[Phase] = Phase.RANGES
    summary: ClassVar[str] = "chooses ranges of activations by the error in the layers that read them"

    def prepare(self, subject: Subject) -> None:
        """Nothing has to be made ready."""

    def wishes(self, subject: Subject, wishes: Wishes) -> None:
        """Histograms of each tensor, for channels of like importance."""
        for tensor in tensors(subject)[0]:
            wishes.classes_of(tensor.classes)

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Narrow every range that gains by it."""
        changed: list[Change] = []
        found, refused = tensors(subject)
        ranges = subject.ranges if subject.ranges is not None else {}
        for tensor in found:
            name, old = tensor.name, ranges.get(tensor.name)
            values = tensor.values(stats)
            if old is None or values is None:
                refused.append(Refusal(name, "nothing is known of its values"))
                continue
            new = least_squares(values, old.low, old.high, tensor.scheme)
            before, after = values.error([old.low, new.low], [old.high, new.high], tensor.scheme)
            if not after < before * (1 - _LEAST_GAIN):
                refused.append(Refusal(name, "no other range makes a tenth less error"))
                continue
            ranges[name] = Range(new.low, new.high, old.std)
            what = f"{old.low:.4g} … {old.high:.4g} to {new.low:.4g} … {new.high:.4g}"
            changed.append(Change(name, what, float(before) ** 2, float(after) ** 2))
        return StepReport(self.name, tuple(changed), tuple(refused))


@dataclass(frozen=True)
class Tensor:
    """A tensor whose range is measured, and its channels in classes of like importance."""

    name: str
    scheme: Scheme
    importance: Importance
    classes: Classes
    weights: tuple[float, ...]

    def values(self, stats: Mapping[str, State]) -> Samples | None:
        """What was seen of it, each value counted by its importance; None where nothing was."""
        classes = [stats.get(name) for name in class_names(self.classes)]
        groups: dict[int, list[Spread]] = {}
        counts: dict[int, int] = {}
        for state, weight in zip(classes, self.weights, strict=True):
            if not isinstance(state, LoudnessState) or state.non_finite:
                return None
            for loudness, part in state.groups.items():
                spread = Spread.of(part)
                groups.setdefault(loudness, []).append(Spread(spread.edges, spread.counts * weight))
                counts[loudness] = part.count
        found = []
        for loudness, spreads in sorted(groups.items()):
            values = answering(joined(spreads), self.importance.function)
            if (strength := power(values)) > 0:
                found.append((counts[loudness], strength, values))
        return Samples(tuple(found)) if found else None


def tensors(subject: Subject) -> tuple[list[Tensor], list[Refusal]]:
    """The tensors of the main graph whose range calibration measures, and those that keep it."""
    values = {v.name or "": v for node in subject.model.graph for v in node.outputs}
    values.update((v.name or "", v) for v in subject.model.graph.inputs)
    found: dict[str, Tensor] = {}
    refused: dict[str, Refusal] = {}
    for key, entry in subject.plan.entries.items():
        if not isinstance(entry, Measured) or entry.scheme.qtype.is_float:
            continue
        name = entry.of if entry.of is not None else key.tensor
        value = values.get(name)
        if value is None or name in found or name in refused:
            continue
        weight = read_by(value, subject)
        if is_answer(value, subject):
            weight = Importance(function=answer_function(value))
            if weight.function is None:
                refused[name] = Refusal(name, "it goes to an output of the model, where rare values count")
                continue
        channels, weights = classed(weight.channels) if weight.channels is not None else ((), (1.0,))
        found[name] = Tensor(name, entry.scheme, weight, Classes(value, weight.axis, channels), weights)
    return list(found.values()), list(refused.values())


def classed(weights: F64) -> tuple[tuple[tuple[int, ...], ...], tuple[float, ...]]:
    """Channels in classes of like importance, and the mean importance of each, the largest first."""
    top = float(weights.max())
    with np.errstate(divide="ignore"):
        steps = np.minimum(np.floor(np.log(top / weights) / np.log(_APART)), _MOST - 1).astype(int)
    found = [np.flatnonzero(steps == step) for step in np.unique(steps)]
    return tuple(tuple(map(int, one)) for one in found), tuple(float(weights[one].mean()) for one in found)
