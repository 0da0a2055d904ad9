"""Mixed precision: layers whose local error stays high get 16-bit activations, or stay float.

Each quantized layer is replayed alone on float inputs (:mod:`.local`), which gives its error as a share of
its result::

    share = Σ (y - ŷ)² / Σ y²        sqnr = -10 log₁₀ share

Layers below ``min-sqnr`` are changed, those with the most ``share`` for their part of the model's products
first, and no more than ``layers``. Of these ways the first that is enough is taken:

- 16-bit activations, where the target has fast kernels for them;
- the layer stays float;
- the tensor that it reads stays float too, and with it the layer that makes it.

Then the plan is made again. Of all steps this is the one that can cost speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from octavo.algorithms.local import LocalError, local_error, replica_of
from octavo.algorithms.quantized import quantized_layers
from octavo.algorithms.replica import Replica
from octavo.algorithms.steps import Change, Phase, Refusal, StepReport, Subject
from octavo.algorithms.wishes import Wishes
from octavo.core.plan import Bounded, Key, Measured
from octavo.core.qtypes import UINT16
from octavo.core.recipe import Override
from octavo.core.stats import State
from octavo.errors import RecipeError
from octavo.model import query

_USUAL = 20.0  # dB
_ENOUGH = 3.0  # dB; a way that gains less is not enough
_MOST = 1 << 30  # bytes of weights that are replayed; the smallest layers are taken first


@dataclass(frozen=True)
class MixedPrecision:
    """Give the layers that 8 bits break more bits, or leave them float."""

    name: ClassVar[str] = "mixed-precision"
    phase: ClassVar[Phase] = Phase.PLAN
    summary: ClassVar[str] = "gives layers whose error stays high 16-bit activations, or leaves them float"

    min_sqnr: float | None = None  # dB that each layer has to keep; None: 20, or any where layers is given
    layers: int | None = None  # at most so many; None: as many as it takes

    def __post_init__(self) -> None:
        if self.layers is not None and self.layers < 1:
            raise RecipeError(f"mixed-precision:layers={self.layers} changes nothing; ask for one or more.")

    def prepare(self, subject: Subject) -> None:
        """Nothing has to be made ready."""

    def wishes(self, subject: Subject, wishes: Wishes) -> None:
        """Nothing of the float model: what it wants to know depends on scales."""

    @property
    def least(self) -> float:
        """The dB that a layer has to keep."""
        if self.min_sqnr is not None:
            return self.min_sqnr
        return _USUAL if self.layers is None else float("inf")

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Decide about every layer that is below."""
        found, refused = quantized_layers(subject)
        if subject.lab is None:
            return StepReport(self.name, (), (*refused, Refusal("every layer", "there is no data to replay")))
        copies, left = _affordable([replica_of(one, subject) for one in found])
        refused += [Refusal(copy.name, "it is too large to be replayed") for copy in left]
        wishes = Wishes()
        wishes.replicas_of(copies)
        wishes.replicas_of(copy.float_layer() for copy in copies)
        wishes.replicas_of(copy.wider() for copy in copies if _takes_wide(copy, subject))
        seen = subject.lab.collect(subject.model, wishes)
        errors = {copy.name: error for copy in copies if (error := local_error(copy, seen)) is not None}
        below = [copy for copy in copies if copy.name in errors and errors[copy.name].sqnr < self.least]
        below.sort(key=lambda copy: -errors[copy.name].share / max(errors[copy.name].work, 1.0))
        changed = [self._change(copy, errors[copy.name], seen, subject) for copy in below[: self.layers]]
        over = f"{self.layers} {'layer is' if self.layers == 1 else 'layers are'} changed already"
        refused += [Refusal(copy.name, over) for copy in below[len(changed) :]]
        return StepReport(self.name, tuple(changed), tuple(refused))

    def _change(
        self, copy: Replica, before: LocalError, seen: Mapping[str, State], subject: Subject
    ) -> Change:
        least = min(self.least, before.sqnr + _ENOUGH)
        wide = local_error(copy.wider(), seen) if _takes_wide(copy, subject) else None
        if wide is not None and wide.sqnr >= least:
            for wider in _keys(copy, subject):
                subject.changes.overrides[wider.tensor] = Override(wider.tensor, qtype=UINT16)
            return Change(copy.name, f"16-bit activations, {_dbs(before, wide)}", before.share, wide.share)
        reason = f"mixed precision: 8 bits leave it {before.sqnr:.1f} dB"
        subject.changes.floats[copy.name] = reason
        alone = local_error(copy.float_layer(), seen)
        key = _level_key(copy, subject)
        if key is None or alone is None:
            return Change(copy.name, f"float, {before.sqnr:.1f} dB before", before.share, 0.0)
        if alone.sqnr >= least:
            return Change(copy.name, f"float, {_dbs(before, alone)}", before.share, alone.share)
        for tensor in _before_clamp(key.tensor, subject):
            subject.changes.tensors[tensor] = reason.replace(" it ", f" {copy.name} ")
        what = f"float with its input, {before.sqnr:.1f} dB before"
        return Change(copy.name, what, before.share, 0.0)


def _dbs(before: LocalError, after: LocalError) -> str:
    return f"{before.sqnr:.1f} to {after.sqnr:.1f} dB"


def _affordable(copies: Sequence[Replica]) -> tuple[list[Replica], list[Replica]]:
    left = _MOST
    found: list[Replica] = []
    without: list[Replica] = []
    for copy in sorted(copies, key=lambda one: one.weight.nbytes if one.weight is not None else 0):
        left -= copy.weight.nbytes if copy.weight is not None else 0
        (found if left >= 0 else without).append(copy)
    return found, without


def _level_key(copy: Replica, subject: Subject) -> Key | None:
    """The tensor that the layer reads, if it is quantized for every reader, and so for a float one too."""
    key = subject.plan.lookup(copy.layer.x.name or "", copy.layer.name)
    return subject.plan.root(key) if key is not None and key.reader is None else None


def _before_clamp(tensor: str, subject: Subject) -> list[str]:
    """A tensor, and what an absorbed clamp makes it of: to round that instead would be worse still."""
    value = _value(tensor, subject.model)
    clamp = value.producer() if value is not None else None
    if clamp is None or clamp.name not in subject.plan.absorbed or clamp.inputs[0] is None:
        return [tensor]
    return [tensor, clamp.inputs[0].name or ""]


def _takes_wide(copy: Replica, subject: Subject) -> bool:
    """Whether the target has fast kernels for 16-bit activations here, and for all that touches them."""
    target = subject.target
    if target is None or not target.is_fast(copy.layer.node.op_type, UINT16.name):
        return False
    keys = _keys(copy, subject)
    return bool(keys) and all(_fits(key, subject) for key in keys)


def _fits(key: Key, subject: Subject) -> bool:
    """Whether a tensor can have 16 bits: it has a range of its own, and all who touch it take them."""
    target, entry = subject.target, subject.plan.entries.get(key)
    value = _value(key.tensor, subject.model)
    if target is None or value is None or key.reader is not None or not isinstance(entry, Measured | Bounded):
        return False
    touching = [node for node in (value.producer(), *value.consumers()) if node is not None]
    return all(not subject.is_quantized(n) or target.is_fast(n.op_type, UINT16.name) for n in touching)


def _keys(copy: Replica, subject: Subject) -> list[Key]:
    """The keys whose parameters the layer reads and gives, behind a clamp that is absorbed."""
    layer, plan = copy.layer, subject.plan
    clamp = query.only_reader(layer.y)
    result = clamp.outputs[0] if clamp is not None and clamp.name in plan.absorbed else layer.y
    reads, gives = plan.lookup(layer.x.name or "", layer.name), Key(result.name or "")
    found = [key for key in (reads, gives) if key is not None and key in plan.entries]
    return list(dict.fromkeys(plan.root(key) for key in found))


def _value(name: str, model: ir.Model) -> ir.Value | None:
    for value in model.graph.inputs:
        if value.name == name:
            return value
    return next((v for node in model.graph for v in node.outputs if v.name == name), None)
