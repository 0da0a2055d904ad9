"""SmoothQuant: what is hard to round moves from the inputs of linear layers into their weights.

A few channels of a transformer's activations are much larger than the others and take the whole 8-bit range.
With a factor for each input channel ``j``::

    s_j = max|x_j|^α / max|w_j|^(1-α)        (x / s) · (s w) = x · w

The division goes into what comes before (the scale of a normalization, a constant factor, a linear layer), so
that nothing is added to the model. Where nothing can take it up, as in front of layers that share their
input with a residual, a Mul may stand there if that is asked for and worth it. Layers that read the same
input share its factors. ``α`` is the one of a grid with the least expected error, unless it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms import folding, noise
from octavo.algorithms.inputs import Inputs, channels_of, inputs_of
from octavo.algorithms.layers import Layer, layer_of
from octavo.algorithms.steps import Change, Phase, Refusal, StepReport, Subject
from octavo.algorithms.wishes import Wishes
from octavo.core.plan import Key
from octavo.core.recipe import Placement
from octavo.core.stats import State
from octavo.errors import RecipeError
from octavo.model import query
from octavo.model.edit import Editor

F64 = npt.NDArray[np.float64]

_LINEAR = ("MatMul", "Gemm")
GRID = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_LEAST_GAIN = 0.02  # of the error; less is not worth a change
_MUL_OUTPUTS = 128  # of the layers behind a Mul: with fewer it takes a noticeable part of their time


@dataclass(frozen=True)
class SmoothQuant:
    """Move outliers of activations into weights."""

    name: ClassVar[str] = "smoothquant"
    phase: ClassVar[Phase] = Phase.FLOAT
    summary: ClassVar[str] = "moves outlier channels of a linear layer's input into its weights"

    alpha: float | None = None  # None: the best of a grid, for each group of layers
    fold: bool = True  # False: a Mul is put in front of the layers instead
    mul: float = 1.0  # where nothing can be folded into: a Mul, if so much of the error goes; all never does
    check: bool = True  # leave layers alone whose error does not fall

    def __post_init__(self) -> None:
        for name, share in (("alpha", self.alpha), ("mul", self.mul)):
            if share is not None and not 0 <= share <= 1:
                raise RecipeError(f"smoothquant:{name}={share:g} is no share; take a number from 0 to 1.")

    def prepare(self, subject: Subject) -> None:
        """Nothing has to be made ready."""

    def wishes(self, subject: Subject, wishes: Wishes) -> None:
        """The input of each group of layers: extremes and moments of its channels."""
        for group in groups(subject):
            if isinstance(group, Group) and isinstance(self._way(group, subject), Way):
                wishes.channels_of(group.x, -1)
                wishes.moments_of(group.layers[:1], gram=False)

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Smooth every group of layers that gains by it."""
        editor = Editor(subject.model)
        changed: list[Change] = []
        refused: list[Refusal] = []
        for group in groups(subject):
            done = group if isinstance(group, Refusal) else self._smooth(group, subject, stats, editor)
            if isinstance(done, Change):
                changed.append(done)
            else:
                refused.append(done)
        return StepReport(self.name, tuple(changed), tuple(refused))

    def _way(self, group: Group, subject: Subject) -> Way | str:
        """Where the division of a group's input goes, or why nowhere."""
        if not self.fold:
            return Way()
        places = folding.places(group.x, {layer.node for layer in group.layers}, group.layers[0].inputs)
        if not isinstance(places, str):
            return Way(tuple(places))
        outputs = sum(layer.outputs for layer in group.layers)
        if self.mul == 1 or outputs < _MUL_OUTPUTS or group.is_lone or _is_rounded(group.x, subject):
            return places
        return Way(least=self.mul)

    def _smooth(
        self, group: Group, subject: Subject, stats: Mapping[str, State], editor: Editor
    ) -> Change | Refusal:
        way = self._way(group, subject)
        if isinstance(way, str):
            return Refusal(group.name, way)
        extremes, inputs = channels_of(group.x, stats), inputs_of(group.layers[0], stats)
        if extremes is None or inputs is None:
            return Refusal(group.name, "nothing is known of its input")
        rows = [layer.rows().astype(np.float32) for layer in group.layers]
        problem = Problem(*extremes, inputs, rows, subject)
        before = problem.error(np.ones(inputs.mean.shape[1]))
        alphas = GRID if self.alpha is None else (self.alpha,)
        tried = [(problem.error(problem.factors(alpha)), alpha) for alpha in alphas]
        after, alpha = min(tried)
        if self.check and not after < before * (1 - way.least):
            fallen = after < before * (1 - _LEAST_GAIN)
            return Refusal(group.name, f"its error would {'hardly' if fallen else 'not'} fall")
        factors = problem.factors(alpha)
        for layer in group.layers:
            layer.store(layer.rows() * layer.spread(factors))
        for place in way.places:
            place.divide(factors, editor)
        if not way.places:
            folding.insert(group.x, [layer.node for layer in group.layers], 1.0 / factors, editor)
        return Change(group.name, f"alpha {alpha:g}, {way}", before, after)


@dataclass(frozen=True)
class Way:
    """Where a division goes: into these places, or into a Mul; and the least share of the error to go."""

    places: tuple[folding.Place, ...] = ()
    least: float = _LEAST_GAIN

    def __str__(self) -> str:
        names = ", ".join(place.name for place in self.places)
        return f"folded into {names}" if names else "by a Mul"


def _is_rounded(x: ir.Value, subject: Subject) -> bool:
    """Whether a tensor is rounded where it is made: a Mul behind that comes too late."""
    node = x.producer()
    if subject.recipe.placement is not Placement.TARGET:
        return Key(x.name or "") in subject.plan.entries
    return node is not None and node.op_type not in _LINEAR and subject.is_quantized(node)


@dataclass(frozen=True)
class Group:
    """The linear layers that read one tensor."""

    x: ir.Value
    layers: tuple[Layer, ...]
    is_lone: bool = False  # the end of a convolutional model, which has no other linear layers

    @property
    def name(self) -> str:
        """Its layers' names."""
        return ", ".join(layer.name for layer in self.layers)


def groups(subject: Subject) -> list[Group | Refusal]:
    """The groups of quantized linear layers of the main graph."""
    found: dict[ir.Value, list[Layer]] = {}
    refused: list[Group | Refusal] = []
    for node in subject.model.graph:
        if node.op_type not in _LINEAR or not subject.is_quantized(node):
            continue
        layer = layer_of(node)
        if isinstance(layer, str):
            refused.append(Refusal(node.name or "", layer))
        elif layer is not None and query.rank(layer.x) is None:
            refused.append(Refusal(node.name or "", "the rank of its input is not known"))
        elif layer is not None:
            found.setdefault(layer.x, []).append(layer)
    lone = len(found) == 1 and any(node.op_type == "Conv" for node in subject.plan.nodes.values())
    return [*(Group(x, tuple(layers), lone) for x, layers in found.items()), *refused]


@dataclass(frozen=True)
class Problem:
    """The numbers of one group: extremes and moments of the input, and the weights of each layer."""

    low: F64
    high: F64
    inputs: Inputs
    rows: Sequence[npt.NDArray[np.float32]]
    subject: Subject

    def factors(self, alpha: float) -> F64:
        """What weights are multiplied with, for each input channel; 1 for channels that are always zero."""
        x, w = np.maximum(np.abs(self.low), np.abs(self.high)), self.largest
        used = (x > 0) & (w > 0)
        s = np.ones(x.shape)
        s[used] = x[used] ** alpha / w[used] ** (1 - alpha)
        middle = np.exp(np.mean(np.log(s[used]))) if used.any() else 1.0
        return np.where(used, np.clip(s / middle, 1e-4, 1e4), 1.0)

    @cached_property
    def largest(self) -> F64:
        """The largest weight of each input channel."""
        return np.asarray(np.max([np.abs(rows).max(axis=(0, 1)) for rows in self.rows], axis=0))

    @cached_property
    def powers(self) -> list[F64]:
        """How much the outputs of each layer vary."""
        return [noise.power(rows, self.inputs) for rows in self.rows]

    def error(self, factors: F64) -> float:
        """The expected error of the layers' outputs as a share of their variance."""
        recipe = self.subject.recipe
        step = noise.step_of(float((self.low / factors).min()), float((self.high / factors).max()), recipe)
        seen = self.inputs.scaled(1.0 / factors[None, None, :])
        total = 0.0
        for rows, power in zip(self.rows, self.powers, strict=True):
            scaled = rows * factors.astype(np.float32)
            total += noise.share(noise.layer_error(scaled, seen, step, recipe.weights), power)
        return total / len(self.rows)
