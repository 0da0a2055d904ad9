"""Rounding by the error of the layer's output: ranges first, then every weight.

With the Gram matrix ``H`` of what the layer reads (:mod:`.inputs`), the mean squared error that stored
weights ``ŵ`` make is ``e H eᵀ``, ``e = ŵ - w``.

*Range*: of ranges from the whole down to 0.4 of it, each channel (or the tensor) takes the one with the least
error.

*Weights* (GPTQ): column by column, with ``U`` the upper Cholesky factor of the inverse of ``H``, the columns
still to come make up for each rounding error: ``w[j+1:] -= (w[j] - ŵ[j]) / U[j, j] · U[j, j+1:]``. A channel
that rounds with less error to nearest keeps that.

``H`` is damped by the noise of the rounded input, and more where few samples were seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from octavo.algorithms import noise
from octavo.algorithms.feedback import Grid, fed_back, nearest, upper_factor
from octavo.algorithms.inputs import Inputs, inputs_of
from octavo.algorithms.layers import F64
from octavo.algorithms.probes import Wishes
from octavo.algorithms.quantized import (
    QuantizedLayer,
    least_scale,
    quantized_layers,
    remember,
    set_weight_params,
)
from octavo.algorithms.steps import Change, Phase, Refusal, StepReport, Subject
from octavo.core.granularity import PerTensor
from octavo.core.qparams import QParams
from octavo.core.stats import State

_RATIOS = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.81, 0.77, 0.73, 0.68, 0.62, 0.55, 0.47, 0.4)
_DAMPING = 0.01  # of the mean of the diagonal
_FEW = 0.1  # more damping, times products for each sample


@dataclass(frozen=True)
class Rounding:
    """Choose ranges and integers of weights by the error of the output."""

    name: ClassVar[str] = "rounding"
    phase: ClassVar[Phase] = Phase.INTEGERS
    summary: ClassVar[str] = "chooses ranges and integers of weights by the error of the layer's output"

    ranges: bool = True
    adaptive: bool = True

    def prepare(self, subject: Subject) -> None:
        """Nothing has to be made ready."""

    def wishes(self, subject: Subject, wishes: Wishes) -> None:
        """The Gram matrix of what each layer reads."""
        wishes.moments_of((one.layer for one in quantized_layers(subject)[0]), gram=True)

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Round every layer again."""
        found, refused = quantized_layers(subject)
        changed: list[Change] = []
        for one in found:
            inputs = inputs_of(one.layer, stats)
            if inputs is None:
                refused.append(Refusal(one.layer.name, "nothing is known of its input"))
                continue
            done = self._round(one, inputs, subject)
            if isinstance(done, Change):
                changed.append(done)
            else:
                refused.append(done)
        return StepReport(self.name, tuple(changed), tuple(refused))

    def _round(self, one: QuantizedLayer, inputs: Inputs, subject: Subject) -> Change | Refusal:
        rows = one.layer.rows()
        grid = one.grid(rows)
        whole = noise.power(rows, inputs)
        plain = nearest(rows, grid)
        before = inputs.error(plain - rows)
        judge = damped(inputs, one.input_step)
        best = grid
        if self.ranges and not one.given:
            together = isinstance(one.params.granularity, PerTensor)
            best = shrunk(rows, grid, judge, least_scale(subject, one), together=together)
        stored = nearest(rows, best)
        if self.adaptive and inputs.gram is not None:
            fed = fed_back(rows, best, upper_factor(judge.gram))  # type: ignore[arg-type]
            keep = judge.error(stored - rows) <= judge.error(fed - rows)
            stored = np.where(keep[:, :, None], stored, fed)
        after = inputs.error(stored - rows)
        if not after.sum() < before.sum():
            return Refusal(one.layer.name, "its error would not fall")
        if best is not grid:
            set_weight_params(subject, one, rescaled(one, best))
        remember(one.layer)
        one.layer.store(stored)
        return Change(one.layer.name, "rounded", noise.share(before, whole), noise.share(after, whole))


def damped(inputs: Inputs, step: float) -> Inputs:
    """The inputs with a Gram matrix that has an inverse, and does not say more than was seen."""
    if inputs.gram is None:
        return inputs
    products = inputs.gram.shape[1]
    mean = np.mean(inputs.square, axis=1)
    more = mean * (_DAMPING + _FEW * products / inputs.count) + step**2 / 12.0
    more = np.where(more > 0, more, 1.0)
    gram = inputs.gram + more[:, None, None] * np.eye(products)
    return replace(inputs, gram=gram)


def shrunk(rows: F64, grid: Grid, inputs: Inputs, least_scale: F64, *, together: bool) -> Grid:
    """The grid with each scale times the ratio that gives the least error, but no smaller than allowed."""
    rough = inputs.in_single_precision()  # enough to choose by, and twice as fast
    best = np.ones((*rows.shape[:2], 1))
    least = np.full(best.shape, np.inf)
    allowed = np.broadcast_to(least_scale / grid.scale, best.shape)
    for ratio in _RATIOS:
        error = rough.error(nearest(rows, grid.times(ratio)) - rows)[:, :, None]
        error = np.where((allowed > ratio) & (ratio < 1), np.inf, error)
        if together:
            error = np.full(best.shape, error.sum())
        best, least = np.where(error < least, ratio, best), np.minimum(error, least)
    return grid if np.all(best == 1.0) else grid.times(best)


def rescaled(one: QuantizedLayer, grid: Grid) -> QParams:
    """The parameters of a weight with the scales of a grid."""
    old = one.params
    scale = np.asarray(np.broadcast_to(grid.scale, (*one.layer.rows().shape[:2], 1)).reshape(-1))
    if isinstance(old.granularity, PerTensor):
        scale = np.asarray(scale[0])
    return QParams(scale.astype(old.scale.dtype), old.zero_point, old.qtype, old.granularity)
