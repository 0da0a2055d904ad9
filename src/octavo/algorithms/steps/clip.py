"""Clipping: chooses ranges of activations by the error that they cause in the layers that read them.

A narrower range rounds more finely and clips more. Which range is best depends on the consumers: an outlier
channel that meets tiny weights may be clipped, one that meets large weights may not; and values far below
zero before a SiLU make no difference after it. One sample in a hundred may be ten times as large as the
others: what it loses counts for one sample, not for a hundred. The range with the least ::

    mean over samples of  √( Σ_c v_c · E[(f(x_c) - f(Q(x_c)))²]  /  Σ_c v_c · E[f(x_c)²] )

is taken, with ``v_c = Σ |w_c|²``, which has a mean of 1 for each consumer, and ``f`` the activation function
between the tensor and those layers, if there is one. Consumers that are not layers, such as Add and Concat,
have ``v = 1``. Channels whose ``v`` is within a factor of 4 share one histogram, and so do samples whose root
mean square is within a factor of 2. A range is changed only where this error falls by a tenth.

A tensor that reaches an output of the model with no layer in between keeps its range: there the rare values
are the result, the one class that is found or the one character that is read. Only scores that go through a
Sigmoid are measured after it, where the many scores near zero weigh nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from octavo.algorithms.layers.activation_spread import Samples, after_function, joined, mean_square
from octavo.algorithms.layers.channel_importance import (
    Importance,
    channel_importance,
    output_function,
    reaches_output,
)
from octavo.algorithms.layers.layer import F64
from octavo.algorithms.layers.statistics_requests import (
    ChannelClasses,
    StatisticsRequests,
    histogram_names,
)
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.algorithms.steps.step import Change, Phase, Step, StepReport
from octavo.calibration.methods.mse import least_squares
from octavo.calibration.methods.spread import Spread
from octavo.calibration.statistics import MagnitudeState
from octavo.core.plan import Measured
from octavo.core.scheme import Scheme
from octavo.core.stats import Range, State

_CLASS_FACTOR = 4.0  # between the importance of channels that share a histogram, at most
_CLASSES = 4  # histograms of one tensor, at most
_LEAST_GAIN = 0.1  # share of the error; values still to come may be larger than all that were seen


@dataclass(frozen=True)
class Clip(Step):
    """Narrow the ranges of activations."""

    name: ClassVar[str] = "clip"
    phase: ClassVar[Phase] = Phase.RANGES
    summary: ClassVar[str] = "chooses ranges of activations by the error in the layers that read them"

    def request(self, subject: Subject, requests: StatisticsRequests) -> None:
        """Request histograms of each tensor, for channels of like importance."""
        for tensor in tensors(subject)[0]:
            requests.add_histograms(tensor.classes)

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Narrow every range where that makes the error fall."""
        found, refused = tensors(subject)
        ranges = subject.ranges if subject.ranges is not None else {}
        done = [_narrowed(tensor, stats, ranges) for tensor in subject.each(self.name, found)]
        return StepReport.of(self.name, [*refused, *done], "narrowed", "ranges")


def _narrowed(tensor: Tensor, stats: Mapping[str, State], ranges: dict[str, Range]) -> Change | Refusal:
    """Give a tensor the range with the least error, unless that gains little."""
    name, old = tensor.name, ranges.get(tensor.name)
    values = tensor.values(stats)
    if old is None or values is None:
        return Refusal(name, "its values were not observed")
    new = least_squares(values, old.low, old.high, tensor.scheme)
    before, after = values.error([old.low, new.low], [old.high, new.high], tensor.scheme)
    if not after < before * (1 - _LEAST_GAIN):
        return Refusal(name, "no other range reduces the error by a tenth")
    ranges[name] = Range(new.low, new.high, old.std)
    what = f"{old.low:.4g} … {old.high:.4g} to {new.low:.4g} … {new.high:.4g}"
    return Change(name, what, float(before) ** 2, float(after) ** 2)


@dataclass(frozen=True)
class Tensor:
    """A tensor whose range is measured, and its channels in classes of like importance."""

    name: str
    scheme: Scheme
    importance: Importance
    classes: ChannelClasses
    weights: tuple[float, ...]

    def values(self, stats: Mapping[str, State]) -> Samples | None:
        """Return the observed values, each weighted by its importance; None where there are none."""
        classes = [stats.get(name) for name in histogram_names(self.classes)]
        groups: dict[int, list[Spread]] = {}
        counts: dict[int, int] = {}
        for state, weight in zip(classes, self.weights, strict=True):
            if not isinstance(state, MagnitudeState) or state.non_finite:
                return None
            for magnitude, part in state.groups.items():
                spread = Spread.of(part)
                groups.setdefault(magnitude, []).append(Spread(spread.edges, spread.counts * weight))
                counts[magnitude] = part.count
        found = []
        for magnitude, spreads in sorted(groups.items()):
            values = after_function(joined(spreads), self.importance.function)
            if (power := mean_square(values)) > 0:
                found.append((counts[magnitude], power, values))
        return Samples(tuple(found)) if found else None


def tensors(subject: Subject) -> tuple[list[Tensor], list[Refusal]]:
    """Return the tensors of the main graph with measured ranges, and those that keep their range."""
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
        weight = channel_importance(value, subject)
        if reaches_output(value, subject):
            weight = Importance(function=output_function(value))
            if weight.function is None:
                refused[name] = Refusal(name, "it reaches an output of the model, where rare values count")
                continue
        channels, weights = classed(weight.channels) if weight.channels is not None else ((), (1.0,))
        classes = ChannelClasses(value, weight.axis, channels)
        found[name] = Tensor(name, entry.scheme, weight, classes, weights)
    return list(found.values()), list(refused.values())


def classed(weights: F64) -> tuple[tuple[tuple[int, ...], ...], tuple[float, ...]]:
    """Return channels in classes of like importance, and the mean importance of each, largest first."""
    top = float(weights.max())
    with np.errstate(divide="ignore"):
        ratios = np.floor(np.log(top / weights) / np.log(_CLASS_FACTOR))
        steps = np.minimum(ratios, _CLASSES - 1).astype(int)
    found = [np.flatnonzero(steps == step) for step in np.unique(steps)]
    return tuple(tuple(map(int, one)) for one in found), tuple(float(weights[one].mean()) for one in found)
