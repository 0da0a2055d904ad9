"""Rounding by the error of the layer's output: first the ranges, then every weight.

With the Gram matrix ``H`` of what the layer reads, stored weights ``ŵ`` cause the mean squared error
``e H eᵀ``, ``e = w - ŵ``.

*Range*: of ranges from the whole down to 0.4 of it, each channel (or the tensor) takes the one with the least
error.

*Weights* (GPTQ): column by column, later columns compensate for each rounding error. With ``G`` upper
triangular and ``H = G Gᵀ``: ``ŵ[j] = round(w[j] + Σ e[i] G[i, j] / G[j, j])`` over ``i < j``. A channel that
has less error when rounded to nearest keeps that.

``H`` is damped by the noise of the rounded input, and more where few samples were seen. ``device=gpu`` does
the same work with CuPy or PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from octavo.algorithms.layers import quantization_noise
from octavo.algorithms.layers.input_moments import InputMoments, input_moments
from octavo.algorithms.layers.layer import F64
from octavo.algorithms.layers.quantized_layers import (
    QuantizedLayer,
    least_scale,
    quantized_layers,
    remember,
    set_weight_params,
)
from octavo.algorithms.layers.statistics_requests import StatisticsRequests, moment_names
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.algorithms.layers.weight_error import WeightError, rounded_rows
from octavo.algorithms.steps.step import Change, Phase, Step, StepReport
from octavo.core.arrays import arrays, checked_device
from octavo.core.granularity import PerTensor
from octavo.core.qparams import QParams
from octavo.core.stats import State

LEAST_COST = 1e6  # multiplications that take as long as what each group of layers takes beside them


@dataclass(frozen=True)
class Rounding(Step):
    """Choose ranges and integers of weights by the error of the output."""

    name: ClassVar[str] = "rounding"
    phase: ClassVar[Phase] = Phase.INTEGERS
    summary: ClassVar[str] = "chooses ranges and integers of weights by the error of the layer's output"

    ranges: bool = True
    adaptive: bool = True
    device: str = "cpu"  # cpu, gpu, or auto for a GPU where there is one

    def __post_init__(self) -> None:
        checked_device("rounding", self.device)

    def prepare(self, subject: Subject) -> None:
        """Raise before any work is done where the device can't be used."""
        arrays(self.device)

    def request(self, subject: Subject, requests: StatisticsRequests) -> None:
        """Request the Gram matrix of what each layer reads."""
        requests.add_moments((one.layer for one in quantized_layers(subject)[0]), gram=True)

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Round every layer again; layers that read the same input share its factorization."""
        found, refused = quantized_layers(subject)
        done: list[Change | Refusal] = list(refused)
        xp = arrays(self.device)
        together: dict[tuple[str, float], list[QuantizedLayer]] = {}
        for one in found:
            together.setdefault((moment_names(one.layer)["gram"], one.input_scale), []).append(one)
        groups = list(together.items())
        for (_, step), group in subject.each(self.name, groups, lambda item: _cost(item[1])):
            inputs = input_moments(group[0].layer, stats)
            if inputs is None:
                done += [Refusal(one.layer.name, "its input was not observed") for one in group]
                continue
            errors = WeightError.of(inputs, step, xp, factor=self.adaptive)
            done += [self._round(one, inputs, errors, subject) for one in group]
        return StepReport.of(self.name, done, "rounded", "weights")

    def _round(
        self, one: QuantizedLayer, inputs: InputMoments, errors: WeightError, subject: Subject
    ) -> Change | Refusal:
        content = one.layer.rows()
        given = one.grid(content)
        least = least_scale(subject, one) if self.ranges and not one.has_given_range else None
        one_scale = isinstance(one.params.granularity, PerTensor)
        found = rounded_rows(content, given, errors, least, together=one_scale)
        before, after = found.before, found.after
        if not after.sum() < before.sum():
            return Refusal(one.layer.name, "its error would not fall")
        if found.grid is not given:
            set_weight_params(subject, one, rescaled(one, found.grid.scale))
        remember(one.layer)
        one.layer.store(found.stored)
        variance = quantization_noise.output_variance(content, inputs)
        shares = (quantization_noise.relative(error, variance) for error in (before, after))
        return Change(one.layer.name, "rounded", *shares)


def rescaled(one: QuantizedLayer, scales: F64) -> QParams:
    """Return the parameters of a weight with other scales."""
    old = one.params
    scale = np.asarray(np.broadcast_to(scales, (*one.layer.rows().shape[:2], 1)).reshape(-1))
    if isinstance(old.granularity, PerTensor):
        scale = np.asarray(scale[0])
    return QParams(scale.astype(old.scale.dtype), old.zero_point, old.qtype, old.granularity)


def _cost(group: Sequence[QuantizedLayer]) -> float:
    """Return the multiplications that layers of one input take: N · K² each, and K³ to factorize ``H``."""
    layers = [one.layer for one in group]
    kernel = max(layer.products for layer in layers)
    return (
        sum(layer.outputs * layer.products**2 for layer in layers) + layers[0].groups * kernel**3 + LEAST_COST
    )
