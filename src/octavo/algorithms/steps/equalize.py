"""Cross-layer equalization: scales the channels between convolutions so that one scale fits all of them.

For ``conv A → activation → conv B`` and a factor ``s_i > 0`` for each channel between them, ``A`` is divided
by it and ``B`` multiplied with it. Relu, LeakyRelu and PRelu keep positive factors, and so the function::

    B · f(A x + a) = (B s) · f((A x + a) / s)        s_i = r_i^p · m_i^q / t_i^(1-p-q)

``r_i`` and ``t_i`` are the largest weights that produce and consume the channel, ``m_i`` is its largest
value. Equal weight ranges (p = ½, q = 0), alignment with the activations (p = 0, q = ½) and mixtures are
tried, and the one with the least estimated error along the whole chain of convolutions is taken.

A Clip has one bound for all channels. A channel that came near it in any sample keeps its scale. The others
are only made smaller (``s_i > 1``), so that the bound acts on them no earlier than before; the model computes
the same for every input on which they stay below it, as they did by a margin in all samples.

*Bias absorption*: where a channel stayed above zero by ``c`` before a Relu, ``c`` moves from the bias of A to
that of B. The model computes the same for every input on which the channel stays above ``c``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from octavo.algorithms.layers import quantization_noise
from octavo.algorithms.layers.conv_chains import Chain, chains
from octavo.algorithms.layers.input_moments import InputMoments, channel_extremes, input_moments
from octavo.algorithms.layers.layer import F64, Layer
from octavo.algorithms.layers.statistics_requests import StatisticsRequests
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.algorithms.steps.step import Change, Phase, Step, StepReport
from octavo.core.recipe import Recipe
from octavo.core.stats import State
from octavo.model.graph.edit import Editor

_MIXTURES = ((0.5, 0.0), (0.0, 0.5), (1 / 3, 1 / 3))  # p, q
_LEVELS = (0.1, 0.4, 0.7)  # the share of a Clip's channels that is not made smaller
_SWEEPS = 8  # over a chain, at most
_SETTLED = 0.01  # a sweep whose largest factor is within 1 % ends the search
_MARGIN = 1.5  # the factor by which a channel has to stay below a Clip's bound
_RESERVE = 0.25  # share of its range by which a channel has to stay above the bias that moves
_LEAST_GAIN = 0.02  # share of the error; a smaller gain is within what the estimate is wrong by


@dataclass(frozen=True)
class Equalize(Step):
    """Scale the channels between convolutions."""

    name: ClassVar[str] = "equalize"
    phase: ClassVar[Phase] = Phase.FLOAT
    summary: ClassVar[str] = "scales the channels between convolutions so that one scale fits all"

    absorb: bool = True  # move biases of channels that stay above zero into the next layer

    def request(self, subject: Subject, requests: StatisticsRequests) -> None:
        """Request channel extremes of inputs and outputs of layers, and moments of their inputs."""
        for chain in chains(subject)[0]:
            requests.add_moments(chain.layers, gram=False)
            for layer in chain.layers:
                requests.add_extremes(layer.x, 1)
            for pair in chain.pairs:
                requests.add_extremes(pair.first.y, 1)

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Equalize every chain whose error falls."""
        found, refused = chains(subject)
        editor = Editor(subject.model)
        done = [self._equalize(chain, subject.recipe, stats, editor) for chain in found]
        return StepReport.of(self.name, [*refused, *done], "equalized", "chains of convolutions")

    def _equalize(
        self, chain: Chain, recipe: Recipe, stats: Mapping[str, State], editor: Editor
    ) -> Change | Refusal:
        state = Numbers.of(chain, stats)
        if state is None:
            return Refusal(chain.name, "its tensors were not observed")
        before = state.error(recipe)
        levels = _LEVELS if any(pair.is_bounded for pair in chain.pairs) else (0.5,)
        tried = [state.equalized(p, q, level) for p, q in _MIXTURES for level in levels]
        best = min(tried, key=lambda one: one.error(recipe))
        if not best.error(recipe) < before:
            best = state
        what = "" if best is state else "scaled"
        if self.absorb:
            absorbed = best.absorbed()
            if absorbed.error(recipe) < best.error(recipe) * (1 - _LEAST_GAIN):
                best, what = absorbed, f"{what}, biases absorbed".lstrip(", ")
        after = best.error(recipe)
        if not after < before * (1 - _LEAST_GAIN):
            return Refusal(chain.name, "its error would not fall")
        for layer, view in zip(chain.layers, best.views, strict=True):
            layer.store(view.rows)
            if layer.bias is not None or np.any(view.bias):
                layer.store_bias(view.bias, editor)
        return Change(chain.name, what, before, after)


@dataclass(frozen=True)
class View:
    """The numbers of one layer of a chain; ``unit`` is what its outputs are divided by so far."""

    rows: F64
    bias: F64
    inputs: InputMoments
    low: F64  # of each input channel
    high: F64
    unit: F64
    variance: F64  # of each output

    def error(self, recipe: Recipe) -> float:
        """Return the estimated error, relative to the output's variance, in the model's own units."""
        step = quantization_noise.step_of(float(self.low.min()), float(self.high.max()), recipe)
        error = quantization_noise.layer_error(self.rows, self.inputs, step, recipe.weights)
        return quantization_noise.relative(error * self.unit.reshape(error.shape) ** 2, self.variance)


@dataclass(frozen=True)
class Numbers:
    """The numbers of a chain: its layers, and the extremes before each activation between two of them."""

    chain: Chain
    views: tuple[View, ...]
    lows: tuple[F64, ...]
    highs: tuple[F64, ...]

    @classmethod
    def of(cls, chain: Chain, stats: Mapping[str, State]) -> Numbers | None:
        """Return the numbers from statistics; None where some are missing."""
        views = [_view(layer, stats) for layer in chain.layers]
        known = [view for view in views if view is not None]
        between = [channel_extremes(pair.first.y, stats) for pair in chain.pairs]
        extremes = [pair for pair in between if pair is not None]
        if len(known) < len(views) or len(extremes) < len(between):
            return None
        return cls(chain, tuple(known), tuple(e[0] for e in extremes), tuple(e[1] for e in extremes))

    def error(self, recipe: Recipe) -> float:
        """Return the mean error of the layers."""
        return float(np.mean([view.error(recipe) for view in self.views]))

    def equalized(self, p: float, q: float, level: float) -> Numbers:
        """Return the chain with every pair scaled, repeatedly until the factors settle."""
        state = self
        for _ in range(_SWEEPS):
            moved = 0.0
            for index in range(len(self.chain.pairs)):
                factors = state.factors(index, p, q, level)
                moved = max(moved, float(np.abs(np.log(factors)).max(initial=0.0)))
                state = state.scaled(index, factors)
            if moved < _SETTLED:
                break
        return state

    def factors(self, index: int, p: float, q: float, level: float) -> F64:
        """Return the factors of the channels between two layers."""
        pair, first, second = self.chain.pairs[index], self.views[index], self.views[index + 1]
        r = np.abs(first.rows).max(axis=2).reshape(-1)
        t = np.abs(pair.second.by_channel(second.rows)).max(axis=1)
        m = np.maximum(np.abs(second.low), np.abs(second.high))
        used = (r > 0) & (t > 0) & (m > 0)
        s = np.ones(r.shape)
        s[used] = r[used] ** p * m[used] ** q / t[used] ** (1 - p - q)
        bound = pair.bound(self.lows[index], self.highs[index], _MARGIN)
        free = s[used & ~bound.binding]
        middle = float(np.quantile(free, level)) if free.size else 1.0
        s = np.clip(s / middle, 1e-3, 1e3)
        s = np.maximum(s, bound.least)
        return np.where(used & ~bound.binding, s, 1.0)

    def scaled(self, index: int, s: F64) -> Numbers:
        """Return the chain with the channels between two layers divided by ``s``."""
        pair, first, second = self.chain.pairs[index], self.views[index], self.views[index + 1]
        shape = first.rows.shape[:2]
        views = list(self.views)
        views[index] = replace(
            first, rows=first.rows / s.reshape(*shape, 1), bias=first.bias / s, unit=first.unit * s
        )
        spread = pair.second.spread(s)
        views[index + 1] = replace(
            second,
            rows=second.rows * spread,
            inputs=second.inputs.scaled(1.0 / spread),
            low=second.low / s,
            high=second.high / s,
        )
        lows, highs = list(self.lows), list(self.highs)
        lows[index], highs[index] = lows[index] / s, highs[index] / s
        return Numbers(self.chain, tuple(views), tuple(lows), tuple(highs))

    def absorbed(self) -> Numbers:
        """Return the chain with biases moved into the next layer, where channels stay above zero."""
        state = self
        for index, pair in enumerate(self.chain.pairs):
            if pair.absorbs:
                low, high = state.lows[index], state.highs[index]
                binding = pair.bound(low, high, _MARGIN).binding
                movable = low - _RESERVE * (high - low)
                state = state.shifted(index, np.where(binding, 0.0, np.maximum(movable, 0.0)))
        return state

    def shifted(self, index: int, c: F64) -> Numbers:
        """Return the chain with the channels between two layers lowered by ``c``."""
        pair, first, second = self.chain.pairs[index], self.views[index], self.views[index + 1]
        views = list(self.views)
        views[index] = replace(first, bias=first.bias - c)
        spread = pair.second.spread(c)
        moved = (second.rows * spread).sum(axis=2).reshape(-1)
        inputs, flat = second.inputs, spread[:, 0, :]
        mean = inputs.mean - flat
        views[index + 1] = replace(
            second,
            bias=second.bias + moved,
            inputs=InputMoments(inputs.count, mean, inputs.variance + mean**2),
            low=second.low - c,
            high=second.high - c,
        )
        lows, highs = list(self.lows), list(self.highs)
        lows[index], highs[index] = lows[index] - c, highs[index] - c
        return Numbers(self.chain, tuple(views), tuple(lows), tuple(highs))


def _view(layer: Layer, stats: Mapping[str, State]) -> View | None:
    inputs, extremes = input_moments(layer, stats), channel_extremes(layer.x, stats)
    if inputs is None or extremes is None:
        return None
    rows = layer.rows()
    plain = InputMoments(inputs.count, inputs.mean, inputs.square)
    variance = quantization_noise.output_variance(rows, plain)
    return View(rows, layer.bias_values(), plain, *extremes, np.ones(layer.outputs), variance)
