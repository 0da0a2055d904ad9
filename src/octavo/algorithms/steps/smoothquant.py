"""SmoothQuant: moves outliers from the inputs of linear layers into their weights.

A few channels of a transformer's activations are much larger than the others and use up the 8-bit range. With
a factor for each input channel ``j``::

    s_j = m_j^α / max|w_j|^(1-α)        (x / s) · (s w) = x · w
    m_j = max(max|x_j|, floor · median of max|x| over the channels)

``α`` and the floor are those of a grid with the least estimated error; the floor is 0 where ``α`` is given. A
channel that was quiet in all samples, such as a unit of a Gelu that never fired, is enlarged most, and in a
new sample it may reach far beyond the range. So the error is estimated for new samples: each quarter of them
is left out in turn, factors and range come from the others, and what it reaches beyond that range is added
(:class:`~octavo.calibration.statistics.ChannelState`)::

    error = that of rounding weights and inputs + Σ_j excess_j² · |w_j|² / number of inputs

The division is folded into what comes before (the scale of a normalization, a constant factor, a linear
layer), so that nothing is added to the model. Where that is not possible, as for layers that share their
input with a residual connection, ``mul=SHARE`` inserts a Mul if at least that share of the error goes. Layers
that read the same input share its factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers import quantization_noise, scale_folding
from octavo.algorithms.layers.input_moments import InputMoments, channel_shares, input_moments
from octavo.algorithms.layers.layer import F64
from octavo.algorithms.layers.scale_folding import Group, channel_factors, groups, is_matrix_product
from octavo.algorithms.layers.statistics_requests import StatisticsRequests
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.algorithms.steps.step import Change, Phase, Step, StepReport
from octavo.core.plan import Key
from octavo.core.recipe import Placement
from octavo.core.stats import State
from octavo.errors import RecipeError
from octavo.model.graph.edit import Editor

GRID = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # values of alpha that are tried, with the first floor
FLOORS = (1.0, 0.0, 2.0, 4.0)  # tried with the best of these alphas: times the median of the channels
_LEAST_GAIN = 0.02  # share of the error; a smaller gain is within what the estimate is wrong by
_LEAST_OUTPUTS = 128  # of the layers after a Mul; with fewer it takes a noticeable part of their time


@dataclass(frozen=True)
class SmoothQuant(Step):
    """Move outliers of activations into weights."""

    name: ClassVar[str] = "smoothquant"
    phase: ClassVar[Phase] = Phase.FLOAT
    summary: ClassVar[str] = "moves outlier channels of a linear layer's input into its weights"

    alpha: float | None = None  # None: the best of a grid, for each group of layers
    fold: bool = True  # False: insert a Mul before the layers instead
    mul: float = 1.0  # where nothing can be folded: insert a Mul if this share of the error goes; 1: never
    check: bool = True  # leave layers alone whose error does not fall

    def __post_init__(self) -> None:
        for name, share in (("alpha", self.alpha), ("mul", self.mul)):
            if share is not None and not 0 <= share <= 1:
                raise RecipeError(f"smoothquant:{name} must be between 0 and 1, not {share:g}.")

    def request(self, subject: Subject, requests: StatisticsRequests) -> None:
        """Request extremes and moments of the channels that each group of layers reads."""
        for group in groups(subject):
            if isinstance(group, Group) and isinstance(self._division(group, subject), Division):
                requests.add_extremes(group.x, -1)
                requests.add_moments(group.layers[:1], gram=False)

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Smooth every group of layers whose error falls."""
        editor = Editor(subject.model)
        done = [
            group if isinstance(group, Refusal) else self._smooth(group, subject, stats, editor)
            for group in subject.each(self.name, groups(subject))
        ]
        return StepReport.of(self.name, done, "smoothed", "groups of linear layers")

    def _division(self, group: Group, subject: Subject) -> Division | str:
        """Return how the input of a group is divided, or why it can't be."""
        if not self.fold:
            return Division()
        consumers = {layer.node for layer in group.layers}
        folded = scale_folding.divisible(group.x, consumers, group.layers[0].inputs)
        if not isinstance(folded, str):
            return Division(tuple(folded))
        outputs = sum(layer.outputs for layer in group.layers)
        if self.mul == 1 or outputs < _LEAST_OUTPUTS or group.is_lone or _is_rounded(group.x, subject):
            return folded
        return Division(least_gain=self.mul)

    def _smooth(
        self, group: Group, subject: Subject, stats: Mapping[str, State], editor: Editor
    ) -> Change | Refusal:
        division = self._division(group, subject)
        if isinstance(division, str):
            return Refusal(group.name, division)
        shares, inputs = channel_shares(group.x, stats), input_moments(group.layers[0], stats)
        if shares is None or inputs is None:
            return Refusal(group.name, "its input was not observed")
        rows = [layer.rows().astype(np.float32) for layer in group.layers]
        problem = Problem(*shares, inputs, rows, subject)
        before = problem.error(None)
        if self.alpha is None:
            found = min((problem.error((alpha, FLOORS[0])), alpha, FLOORS[0]) for alpha in GRID)
            others = [(problem.error((found[1], floor)), found[1], floor) for floor in FLOORS[1:]]
            after, alpha, floor = min([found, *others])
        else:
            after, alpha, floor = problem.error((self.alpha, 0.0)), self.alpha, 0.0
        if self.check and not after < before * (1 - division.least_gain):
            fallen = after < before * (1 - _LEAST_GAIN)
            return Refusal(group.name, f"its error would {'hardly' if fallen else 'not'} fall")
        factors = problem.factors((alpha, floor))
        group.multiply(factors)
        for constants in division.folded:
            constants.divide(factors, editor)
        if not division.folded:
            consumers = [layer.node for layer in group.layers]
            scale_folding.insert_mul(group.x, consumers, 1.0 / factors, editor)
        return Change(group.name, f"alpha {alpha:g} and floor {floor:g}, {division}", before, after)


@dataclass(frozen=True)
class Division:
    """The constants that a division is folded into, or none for a Mul; and the gain that it must bring."""

    folded: tuple[scale_folding.Divisible, ...] = ()
    least_gain: float = _LEAST_GAIN

    def __str__(self) -> str:
        names = ", ".join(constants.name for constants in self.folded)
        return f"folded into {names}" if names else "by a Mul"


def _is_rounded(x: ir.Value, subject: Subject) -> bool:
    """Return whether a tensor is rounded where it is computed: a Mul after that comes too late."""
    node = x.producer()
    if subject.recipe.placement is not Placement.TARGET:
        return Key(x.name or "") in subject.plan.entries
    return node is not None and not is_matrix_product(node) and subject.is_quantized(node)


Choice: TypeAlias = tuple[float, float] | None  # alpha and floor; None: all factors are 1


@dataclass(frozen=True)
class Problem:
    """The search for the factors of one group: its input's extremes and moments, and all weights.

    ``lows`` and ``highs`` are those of each channel in each share of the samples.
    """

    lows: F64
    highs: F64
    inputs: InputMoments
    rows: Sequence[npt.NDArray[np.float32]]
    subject: Subject

    def factors(self, choice: Choice, left_out: int | None = None) -> F64:
        """Return the factor of the weights of each input channel; a share of the samples may be left out."""
        low, high = self._extremes(left_out)
        if choice is None:
            return np.ones(low.shape)
        alpha, floor = choice
        x = np.maximum(np.abs(low), np.abs(high))
        return channel_factors(np.maximum(x, floor * np.median(x)), alpha, self.largest, 1 - alpha)

    def _extremes(self, left_out: int | None = None) -> tuple[F64, F64]:
        if left_out is None:
            return self.lows.min(axis=0), self.highs.max(axis=0)
        lows, highs = (np.delete(part, left_out, axis=0) for part in (self.lows, self.highs))
        return lows.min(axis=0), highs.max(axis=0)

    @cached_property
    def largest(self) -> F64:
        """Return the largest weight of each input channel."""
        return np.asarray(np.max([np.abs(rows).max(axis=(0, 1)) for rows in self.rows], axis=0))

    @cached_property
    def variances(self) -> list[F64]:
        """Return the variance of the outputs of each layer."""
        return [quantization_noise.output_variance(rows, self.inputs) for rows in self.rows]

    @cached_property
    def energies(self) -> F64:
        """Return the sum of the squared weights of each input channel, relative to the outputs' variance."""
        parts = zip(self.rows, self.variances, strict=True)
        found = [np.einsum("gok,gok->k", rows, rows) / max(float(v.sum()), 1e-300) for rows, v in parts]
        return np.asarray(np.mean(found, axis=0), np.float64)

    def error(self, choice: Choice) -> float:
        """Return the estimated error of the layers' outputs in new samples, relative to their variance."""
        return self._rounding(self.factors(choice)) + self._beyond_range(choice)

    def _rounding(self, factors: F64) -> float:
        """Return the error of rounding weights and inputs."""
        recipe, (low, high) = self.subject.recipe, self._extremes()
        step = quantization_noise.step_of(float((low / factors).min()), float((high / factors).max()), recipe)
        seen = self.inputs.scaled(1.0 / factors[None, None, :])
        total = 0.0
        for rows, variance in zip(self.rows, self.variances, strict=True):
            scaled = rows * factors.astype(np.float32)
            error = quantization_noise.layer_error(scaled, seen, step, recipe.weights)
            total += quantization_noise.relative(error, variance)
        return total / len(self.rows)

    def _beyond_range(self, choice: Choice) -> float:
        """Return the error of what each share of the samples reaches beyond the range of the others."""
        if not self.subject.recipe.is_static or len(self.lows) < 2:
            return 0.0
        total = 0.0
        for share in range(len(self.lows)):
            low, high = self._extremes(share)
            factors = self.factors(choice, share)
            above = self.highs[share] - (high / factors).max() * factors
            below = (low / factors).min() * factors - self.lows[share]
            excess = np.maximum(above, 0.0) ** 2 + np.maximum(below, 0.0) ** 2
            total += float((excess * self.energies).sum())
        return total / self.inputs.count
