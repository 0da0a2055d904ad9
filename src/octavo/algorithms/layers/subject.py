"""The model that steps work on, and what they can ask of it and change about its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers.statistics_requests import StatisticsRequests
from octavo.core.plan import Key, Plan
from octavo.core.qparams import QParams
from octavo.core.recipe import Override, Recipe
from octavo.core.stats import Range, State
from octavo.targets import Target

Item = TypeVar("Item")


@dataclass(frozen=True)
class Refusal:
    """A layer or tensor that a step leaves as it is, and why."""

    layer: str
    reason: str


@dataclass(frozen=True)
class Trial:
    """Runs that a step can make: of the model as quantized so far, and of any model for its statistics."""

    quantized_model: Callable[[], ir.Model]
    statistics: Callable[[ir.Model, StatisticsRequests], Mapping[str, State]]
    outputs: Callable[[ir.Model, Sequence[str]], Iterator[Mapping[str, npt.NDArray[Any]]]]  # of tensors
    can_repeat: bool = True  # the data can be read again
    float_model: ir.Model | None = None  # as it was before steps changed integers, if one reads it


@dataclass
class PlanChanges:
    """What steps want to be planned differently."""

    floats: dict[str, str] = field(default_factory=dict)  # nodes that stay in float, and why
    tensors: dict[str, str] = field(default_factory=dict)  # tensors float for every consumer, and why
    overrides: dict[str, Override] = field(default_factory=dict)  # by tensor

    def __bool__(self) -> bool:
        return bool(self.floats or self.tensors or self.overrides)


@dataclass(frozen=True)
class Subject:
    """The model that steps change in place, its recipe and plan, and what is known in each phase."""

    model: ir.Model
    recipe: Recipe
    plan: Plan
    params: dict[Key, QParams] | None = None  # phase integers; steps may replace entries
    ranges: dict[str, Range] | None = None  # phase ranges: those of activations; steps may replace them
    moments: dict[str, State] | None = None  # phase weights: those of inputs; steps may replace entries
    trial: Trial | None = None
    target: Target | None = None  # phase plan
    changes: PlanChanges = field(default_factory=PlanChanges)  # phase plan
    progress: Callable[[str, int, int | None], None] | None = None  # phase, parts done, parts in all

    def each(
        self, name: str, items: Sequence[Item], cost: Callable[[Item], float] = lambda item: 1.0
    ) -> Iterator[Item]:
        """Give the items that a step goes through, and report how far it is: items of the mean cost."""
        costs = [cost(item) for item in items]
        mean, done = sum(costs) / max(len(costs), 1), 0.0
        for item, own in zip(items, costs, strict=True):
            if self.progress is not None:
                self.progress(name, round(done / mean) if mean else 0, len(items))
            yield item
            done += own

    def is_quantized(self, node: ir.Node | None) -> bool:
        """Return whether the plan quantizes a node."""
        return node is not None and (node.name or "") in self.plan.nodes
