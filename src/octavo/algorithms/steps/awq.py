"""AWQ: scales input channels so that weights in blocks keep more of what large inputs meet.

Rounding a weight costs in proportion to the mean square of the input it is multiplied by. With a factor for
each input channel ``k`` the weights of important channels grow, and their rounding errors shrink in turn::

    s_k = E[x_k²]^(α/2) / mean(|w_k|)^β        (x / s) · (s w) = x · w

The division is folded into what comes before (the scale of a normalization, a constant factor, a linear
layer), so that no node is added to the model; layers where that is not possible stay as they are. Layers that
read the same input share its factors. ``α`` and ``β`` are those of a grid with the least error
``Σ_k E[x_k²] / s_k² · (Q(s w) - s w)_k²`` on some rows of each layer. Rounding to nearest orders the grid;
for the first few, ``Q`` is the weight algorithm of the layer in the plan, with a coarser search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from octavo.algorithms.layers import scale_folding
from octavo.algorithms.layers.input_moments import input_moments, scaled_moments
from octavo.algorithms.layers.layer import F64, Layer
from octavo.algorithms.layers.scale_folding import Group, channel_factors, groups
from octavo.algorithms.layers.statistics_requests import StatisticsRequests
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.algorithms.steps.step import Change, Phase, Step, StepReport
from octavo.algorithms.weights.blocks import Algorithm
from octavo.algorithms.weights.gptq import Gptq
from octavo.algorithms.weights.importance import Importance
from octavo.algorithms.weights.registry import algorithm
from octavo.algorithms.weights.rtn import Furthest, Rtn
from octavo.core.blocks import BlockScheme
from octavo.core.granularity import PerBlock
from octavo.core.plan import Constant, Key, Shared
from octavo.core.stats import State
from octavo.errors import RecipeError
from octavo.model.graph.edit import Editor

_LEAST_GAIN = 0.01  # share of the error; less is within what a sample of rows is wrong by
# A search this short leaves 8 % more error than the full one, whatever the factors, in a quarter of the time.
_COARSE: dict[str, Any] = {"narrowest": 0.75, "candidates": 3, "neighbours": 0, "fits": 1}
_FINALISTS = 4  # of the grid, tried with that search; rounding to nearest takes a sixth of its time


@dataclass(frozen=True)
class Awq(Step):
    """Scale input channels by how much their inputs weigh."""

    name: ClassVar[str] = "awq"
    phase: ClassVar[Phase] = Phase.WEIGHTS
    summary: ClassVar[str] = "scales input channels of weights in blocks by the size of their inputs"

    alpha: float | None = None  # None: the best of a grid, for each group of layers
    grid: int = 10  # steps between 0 and 1
    rows: int = 128  # of each layer that the error is measured on

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise RecipeError(f"awq:alpha must be between 0 and 1, not {self.alpha:g}.")
        if self.grid < 1 or self.rows < 1:
            raise RecipeError("awq:grid and awq:rows are counts, 1 or more.")

    def request(self, subject: Subject, requests: StatisticsRequests) -> None:
        """Request the mean squares of the channels that each group of layers reads."""
        for group in groups(subject):
            if isinstance(group, Group) and not isinstance(_folded(group, subject), str):
                requests.add_moments(group.layers[:1], gram=False)

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Scale every group of layers whose error falls."""
        editor = Editor(subject.model)
        done = [
            group if isinstance(group, Refusal) else self._scale(group, subject, stats, editor)
            for group in subject.each(self.name, groups(subject))
        ]
        return StepReport.of(self.name, done, "scaled", "groups of linear layers")

    def _scale(
        self, group: Group, subject: Subject, stats: Mapping[str, State], editor: Editor
    ) -> Change | Refusal:
        folded = _folded(group, subject)
        if isinstance(folded, str):
            return Refusal(group.name, folded)
        inputs = input_moments(group.layers[0], stats)
        if inputs is None:
            return Refusal(group.name, "its input was not observed")
        found = [_Rounded.of(layer, subject, self.rows) for layer in group.layers]
        problem = _Problem(inputs.square.reshape(-1), found)
        before = problem.error(np.ones(inputs.square.size))
        if not before > 0:
            return Refusal(group.name, "its weights are rounded without error")
        after, exponents = min(
            (problem.error(problem.factors(*p)), p) for p in problem.finalists(self._grid())
        )
        if not after < before * (1 - _LEAST_GAIN):
            return Refusal(group.name, "its error would not fall")
        factors = problem.factors(*exponents)
        group.multiply(factors)
        for constants in folded:
            constants.divide(factors, editor)
        if subject.moments is not None:
            subject.moments.update(scaled_moments(group.layers[0], subject.moments, 1 / factors))
        names = ", ".join(constants.name for constants in folded)
        return Change(group.name, f"alpha {exponents[0]:g}, folded into {names}", before, after)

    def _grid(self) -> list[tuple[float, float]]:
        """Return the exponents of inputs and weights that are tried."""
        alphas = [i / self.grid for i in range(self.grid + 1)] if self.alpha is None else [self.alpha]
        return [(alpha, beta) for alpha in alphas for beta in {0.0, 1 - alpha}]


def _folded(group: Group, subject: Subject) -> list[scale_folding.Divisible] | str:
    """Return the constants that take the division, or why there are none."""
    entries = [_entry(layer, subject) for layer in group.layers]
    if None in entries:
        return "its weights are not quantized in blocks with float activations"
    if all(one and one.scheme.qtype.bits == 8 > subject.recipe.weights.qtype.bits for one in entries):
        return "its 8 bits lose little beside fewer"
    shared = {entry.key for entry in subject.plan.entries.values() if isinstance(entry, Shared)}
    if any(Key(layer.weight.name or "", layer.name) in shared for layer in group.layers):
        return "its weight is stored once with a table that is looked up"
    consumers = {layer.node for layer in group.layers}
    return scale_folding.divisible(group.x, consumers, group.layers[0].inputs)


def _entry(layer: Layer, subject: Subject) -> Constant | None:
    """Return the plan's entry of a layer's weight where an algorithm quantizes it in blocks."""
    if not subject.recipe.is_weight_only:
        return None
    entry = subject.plan.entries.get(Key(layer.weight.name or "", layer.name))
    blocks = isinstance(entry, Constant) and isinstance(entry.scheme.granularity, PerBlock)
    return entry if isinstance(entry, Constant) and blocks and entry.algorithm is not None else None


@dataclass(frozen=True)
class _Rounded:
    """Some rows of a layer's weight, and how they are rounded; ``share`` of all rows."""

    rows: npt.NDArray[np.float32]
    scheme: BlockScheme
    chosen: Algorithm
    share: float

    @classmethod
    def of(cls, layer: Layer, subject: Subject, most: int) -> _Rounded:
        entry = _entry(layer, subject)
        grain = entry.scheme.granularity if entry is not None else None
        if entry is None or not isinstance(grain, PerBlock):
            raise RecipeError(f"{layer.name}: its weight is not quantized in blocks; leave awq out.")
        rows = layer.rows()[0]
        picked = np.unique(np.linspace(0, len(rows) - 1, most).astype(int))
        chosen = algorithm(entry.algorithm or "")
        if isinstance(chosen, Gptq):
            chosen = Importance(**_COARSE) if chosen.weighted else Rtn()
        elif isinstance(chosen, Importance):
            chosen = replace(chosen, **_COARSE)
        scheme = BlockScheme(entry.scheme.qtype.bits, grain.size, entry.scheme.symmetric)
        return cls(rows[picked].astype(np.float32), scheme, chosen, len(picked) / len(rows))

    def error(self, factors: F64, squares: F64, how: Algorithm | None = None) -> float:
        """Return the error of the outputs of all rows, with factors for the input channels."""
        scaled = self.rows * factors.astype(np.float32)
        seen = squares / factors**2
        delta = (how or self.chosen).blocks(scaled, self.scheme, seen).real() - scaled
        return float((delta**2 @ seen).sum()) / self.share


@dataclass(frozen=True)
class _Problem:
    """The search for the factors of one group: mean squares of the inputs, and all weights."""

    squares: F64
    layers: Sequence[_Rounded]

    def factors(self, alpha: float, beta: float) -> F64:
        """Return the factor of each input channel; 1 for channels that are always zero."""
        return channel_factors(self.squares, alpha / 2, self.sizes, beta)

    @cached_property
    def sizes(self) -> F64:
        """Return the mean size of the weights of each input channel."""
        every = np.concatenate([layer.rows for layer in self.layers])
        return np.asarray(np.abs(every).mean(axis=0), np.float64)

    def error(self, factors: F64, how: Algorithm | None = None) -> float:
        """Return the error of the outputs of all layers, each rounded by its own algorithm or by this one."""
        return sum(layer.error(factors, self.squares, how) for layer in self.layers)

    def finalists(self, grid: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Return the pairs of exponents that are best for rounding to nearest."""
        nearest = Furthest()
        return sorted(grid, key=lambda pair: self.error(self.factors(*pair), nearest))[:_FINALISTS]
