"""Rounding by the error of the layer's output: ranges first, then every weight.

With the Gram matrix ``H`` of what the layer reads, the mean squared error that stored weights ``ŵ`` make is
``e H eᵀ``, ``e = w - ŵ``.

*Range*: of ranges from the whole down to 0.4 of it, each channel (or the tensor) takes the one with the least
error.

*Weights* (GPTQ): column by column, the columns still to come make up for each rounding error. With ``G``
upper and ``H = G Gᵀ``: ``ŵ[j] = round(w[j] + Σ e[i] G[i, j] / G[j, j])`` over ``i < j``. A channel that
rounds with less error to nearest keeps that.

``H`` is damped by the noise of the rounded input, and more where few samples were seen. ``device=gpu`` does
the same work with CuPy or PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from octavo.algorithms import noise
from octavo.algorithms.arrays import DEVICES, Arrays, arrays
from octavo.algorithms.inputs import Inputs, inputs_of
from octavo.algorithms.judging import Judge, solved
from octavo.algorithms.layers import F64
from octavo.algorithms.quantized import (
    QuantizedLayer,
    least_scale,
    quantized_layers,
    remember,
    set_weight_params,
)
from octavo.algorithms.steps import Change, Phase, Refusal, StepReport, Subject
from octavo.algorithms.wishes import Wishes, names_of
from octavo.core.granularity import PerTensor
from octavo.core.qparams import QParams
from octavo.core.stats import State
from octavo.errors import RecipeError, closest


@dataclass(frozen=True)
class Rounding:
    """Choose ranges and integers of weights by the error of the output."""

    name: ClassVar[str] = "rounding"
    phase: ClassVar[Phase] = Phase.INTEGERS
    summary: ClassVar[str] = "chooses ranges and integers of weights by the error of the layer's output"

    ranges: bool = True
    adaptive: bool = True
    device: str = "cpu"  # where: cpu, gpu, or auto for a GPU where there is one

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise RecipeError(
                f"rounding:device={self.device} is no device{closest(self.device, DEVICES) or '.'}"
                f" Known: {', '.join(DEVICES)}."
            )

    def prepare(self, subject: Subject) -> None:
        """Say so early where the device is not there."""
        arrays(self.device)

    def wishes(self, subject: Subject, wishes: Wishes) -> None:
        """The Gram matrix of what each layer reads."""
        wishes.moments_of((one.layer for one in quantized_layers(subject)[0]), gram=True)

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Round every layer again; those that read the same one after the other."""
        found, refused = quantized_layers(subject)
        changed: list[Change] = []
        xp = arrays(self.device)
        together: dict[tuple[str, float], list[QuantizedLayer]] = {}
        for one in found:
            together.setdefault((names_of(one.layer)["gram"], one.input_step), []).append(one)
        for (_, step), group in together.items():
            inputs = inputs_of(group[0].layer, stats)
            if inputs is None:
                refused += [Refusal(one.layer.name, "nothing is known of its input") for one in group]
                continue
            for done in self._rounded(group, inputs, step, subject, xp):
                (changed if isinstance(done, Change) else refused).append(done)  # type: ignore[arg-type]
        return StepReport(self.name, tuple(changed), tuple(refused))

    def _rounded(
        self, group: list[QuantizedLayer], inputs: Inputs, step: float, subject: Subject, xp: Arrays
    ) -> Iterator[Change | Refusal]:
        judge = Judge.of(inputs, step, xp, factor=self.adaptive)
        for one in group:
            yield self._round(one, inputs, judge, subject)

    def _round(self, one: QuantizedLayer, inputs: Inputs, judge: Judge, subject: Subject) -> Change | Refusal:
        content = one.layer.rows()
        given = one.grid(content)
        least = least_scale(subject, one) if self.ranges and not one.given else None
        alike = isinstance(one.params.granularity, PerTensor)
        found = solved(content, given, judge, least, together=alike)
        before, after = found.before, found.after
        if not after.sum() < before.sum():
            return Refusal(one.layer.name, "its error would not fall")
        if found.grid is not given:
            set_weight_params(subject, one, rescaled(one, found.grid.scale))
        remember(one.layer)
        one.layer.store(found.stored)
        whole = noise.power(content, inputs)
        return Change(one.layer.name, "rounded", noise.share(before, whole), noise.share(after, whole))


def rescaled(one: QuantizedLayer, scales: F64) -> QParams:
    """The parameters of a weight with other scales."""
    old = one.params
    scale = np.asarray(np.broadcast_to(scales, (*one.layer.rows().shape[:2], 1)).reshape(-1))
    if isinstance(old.granularity, PerTensor):
        scale = np.asarray(scale[0])
    return QParams(scale.astype(old.scale.dtype), old.zero_point, old.qtype, old.granularity)
