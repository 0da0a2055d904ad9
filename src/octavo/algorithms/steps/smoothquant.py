"""SmoothQuant: moves outliers from the inputs of linear layers into their weights.

A few channels of a transformer's activations are much larger than the others and use up the 8-bit range. With
a factor for each input channel ``j``::

    s_j = max|x_j|^α / max|w_j|^(1-α)        (x / s) · (s w) = x · w

The division is folded into what comes before (the scale of a normalization, a constant factor, a linear
layer), so that nothing is added to the model. Where that is not possible, as for layers that share their
input with a residual connection, ``mul=SHARE`` inserts a Mul if at least that share of the error goes. Layers
that read the same input share its factors. ``α`` is the one of a grid with the least estimated error, unless
it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers import quantization_noise, scale_folding
from octavo.algorithms.layers.input_moments import InputMoments, channel_extremes, input_moments
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

GRID = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # values of alpha that are tried
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
        extremes, inputs = channel_extremes(group.x, stats), input_moments(group.layers[0], stats)
        if extremes is None or inputs is None:
            return Refusal(group.name, "its input was not observed")
        rows = [layer.rows().astype(np.float32) for layer in group.layers]
        problem = Problem(*extremes, inputs, rows, subject)
        before = problem.error(np.ones(inputs.mean.shape[1]))
        alphas = GRID if self.alpha is None else (self.alpha,)
        tried = [(problem.error(problem.factors(alpha)), alpha) for alpha in alphas]
        after, alpha = min(tried)
        if self.check and not after < before * (1 - division.least_gain):
            fallen = after < before * (1 - _LEAST_GAIN)
            return Refusal(group.name, f"its error would {'hardly' if fallen else 'not'} fall")
        factors = problem.factors(alpha)
        group.multiply(factors)
        for constants in division.folded:
            constants.divide(factors, editor)
        if not division.folded:
            consumers = [layer.node for layer in group.layers]
            scale_folding.insert_mul(group.x, consumers, 1.0 / factors, editor)
        return Change(group.name, f"alpha {alpha:g}, {division}", before, after)


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


@dataclass(frozen=True)
class Problem:
    """The search for the factors of one group: extremes and moments of the input, and all weights."""

    low: F64
    high: F64
    inputs: InputMoments
    rows: Sequence[npt.NDArray[np.float32]]
    subject: Subject

    def factors(self, alpha: float) -> F64:
        """Return the factor of the weights of each input channel; 1 for channels that are always zero."""
        x = np.maximum(np.abs(self.low), np.abs(self.high))
        return channel_factors(x, alpha, self.largest, 1 - alpha)

    @cached_property
    def largest(self) -> F64:
        """Return the largest weight of each input channel."""
        return np.asarray(np.max([np.abs(rows).max(axis=(0, 1)) for rows in self.rows], axis=0))

    @cached_property
    def variances(self) -> list[F64]:
        """Return the variance of the outputs of each layer."""
        return [quantization_noise.output_variance(rows, self.inputs) for rows in self.rows]

    def error(self, factors: F64) -> float:
        """Return the estimated error of the layers' outputs, relative to their variance."""
        recipe = self.subject.recipe
        step = quantization_noise.step_of(
            float((self.low / factors).min()), float((self.high / factors).max()), recipe
        )
        seen = self.inputs.scaled(1.0 / factors[None, None, :])
        total = 0.0
        for rows, variance in zip(self.rows, self.variances, strict=True):
            scaled = rows * factors.astype(np.float32)
            error = quantization_noise.layer_error(scaled, seen, step, recipe.weights)
            total += quantization_noise.relative(error, variance)
        return total / len(self.rows)
