"""Mixed precision: gives layers with a large local error 16-bit activations, or keeps them in float.

Each quantized layer is run by itself on float inputs (:mod:`octavo.algorithms.layers.replica`), which gives
its error relative to its result::

    share = Σ (y - ŷ)² / Σ y²        sqnr = -10 log₁₀ share

Layers below ``min-sqnr`` are changed, those with the most ``share`` for their part of the model's products
first, and no more than ``layers``. The first of these that is enough is taken:

- 16-bit activations, where the target has fast kernels for them;
- the layer stays in float;
- the tensor that it reads stays in float too, and with it the layer that computes it.

Then the plan is made again. This is the only step that can cost speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from octavo.algorithms.layers.error_feedback import nearest
from octavo.algorithms.layers.input_moments import probe_sum
from octavo.algorithms.layers.quantized_layers import QuantizedLayer, quantized_layers
from octavo.algorithms.layers.replica import Replica, Rounding
from octavo.algorithms.layers.statistics_requests import PREFIX, StatisticsRequests
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.algorithms.steps.step import Change, Phase, Step, StepReport
from octavo.core.plan import Bounded, Key, Measured
from octavo.core.qtypes import UINT16
from octavo.core.recipe import Override
from octavo.core.stats import State
from octavo.errors import RecipeError
from octavo.model.graph import query

_USUAL_SQNR = 20.0  # dB that each layer has to keep by default
_LEAST_GAIN = 3.0  # dB; a change that gains less is not enough
_REPLICA_BYTES = 1 << 30  # of weights in replicas; the smallest layers are taken first


@dataclass(frozen=True)
class LocalError:
    """The measured error of a replica."""

    share: float  # Σ (y - ŷ)² / Σ y²
    work: float  # products that the layer computes

    @property
    def sqnr(self) -> float:
        """Return the signal-to-noise ratio in dB."""
        return float(-10.0 * np.log10(max(self.share, 1e-30)))


@dataclass(frozen=True)
class MixedPrecision(Step):
    """Give the layers with a large local error more bits, or keep them in float.

    It requests no statistics of the float model: replicas depend on scales, which are not known then.
    """

    name: ClassVar[str] = "mixed-precision"
    phase: ClassVar[Phase] = Phase.PLAN
    summary: ClassVar[str] = "gives layers with a large error 16-bit activations, or keeps them in float"

    min_sqnr: float | None = None  # dB that each layer has to keep; None: 20, or any where layers is given
    layers: int | None = None  # the most layers to change; None: as many as it takes

    def __post_init__(self) -> None:
        if self.layers is not None and self.layers < 1:
            raise RecipeError(f"mixed-precision:layers must be 1 or more, not {self.layers}.")

    @property
    def least(self) -> float:
        """Return the signal-to-noise ratio in dB that a layer has to keep."""
        if self.min_sqnr is not None:
            return self.min_sqnr
        return _USUAL_SQNR if self.layers is None else float("inf")

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Change the layers with too large an error."""
        found, refused = quantized_layers(subject)
        if subject.trial is None:
            return StepReport(
                self.name, (), (*refused, Refusal("every layer", "there is no data to run it on"))
            )
        total = len(found) + len(refused)
        copies, left = _affordable([replica_of(one, subject) for one in found])
        refused += [Refusal(copy.name, "it is too large to be run by itself") for copy in left]
        requests = StatisticsRequests()
        requests.add_replicas(copies)
        requests.add_replicas(copy.float_layer() for copy in copies)
        requests.add_replicas(copy.in_16_bits() for copy in copies if _takes_16_bits(copy, subject))
        seen = subject.trial.statistics(subject.model, requests)
        errors = {copy.name: error for copy in copies if (error := local_error(copy, seen)) is not None}
        below = [copy for copy in copies if copy.name in errors and errors[copy.name].sqnr < self.least]
        below.sort(key=lambda copy: -errors[copy.name].share / max(errors[copy.name].work, 1.0))
        changed = [self._change(copy, errors[copy.name], seen, subject) for copy in below[: self.layers]]
        over = f"layers={self.layers} changes no more"
        refused += [Refusal(copy.name, over) for copy in below[len(changed) :]]
        return StepReport(self.name, tuple(changed), tuple(refused), total=total)

    def _change(
        self, copy: Replica, before: LocalError, seen: Mapping[str, State], subject: Subject
    ) -> Change:
        least = min(self.least, before.sqnr + _LEAST_GAIN)
        wide = local_error(copy.in_16_bits(), seen) if _takes_16_bits(copy, subject) else None
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


def replica_of(one: QuantizedLayer, subject: Subject) -> Replica:
    """Return the replica of a quantized layer with its current parameters."""
    layer, rows = one.layer, one.layer.rows()
    key = subject.plan.lookup(layer.x.name or "", layer.name)
    params = subject.params.get(key) if subject.params is not None and key is not None else None
    return Replica(layer.name, layer, layer.laid_out(nearest(rows, one.grid(rows))), Rounding.of(params))


def local_error(replica: Replica, stats: Mapping[str, object]) -> LocalError | None:
    """Return the measured error of a replica; None where it was not observed."""
    names = (replica.noise, replica.signal, replica.size)
    noise, signal, size = (probe_sum(stats, PREFIX + name) for name in names)
    if noise is None or signal is None or size is None or not float(signal) > 0:
        return None
    return LocalError(float(noise) / float(signal), float(size) * replica.layer.products)


def _dbs(before: LocalError, after: LocalError) -> str:
    return f"{before.sqnr:.1f} to {after.sqnr:.1f} dB"


def _affordable(copies: Sequence[Replica]) -> tuple[list[Replica], list[Replica]]:
    left = _REPLICA_BYTES
    found: list[Replica] = []
    without: list[Replica] = []
    for copy in sorted(copies, key=lambda one: one.weight.nbytes if one.weight is not None else 0):
        left -= copy.weight.nbytes if copy.weight is not None else 0
        (found if left >= 0 else without).append(copy)
    return found, without


def _level_key(copy: Replica, subject: Subject) -> Key | None:
    """Return the tensor that the layer reads, if it is quantized for every consumer, float ones included."""
    key = subject.plan.lookup(copy.layer.x.name or "", copy.layer.name)
    return subject.plan.root(key) if key is not None and key.consumer is None else None


def _before_clamp(tensor: str, subject: Subject) -> list[str]:
    """Return a tensor and the input of its fused clamp, which would be rounded instead and be worse still."""
    value = query.values(subject.model).get(tensor)
    clamp = value.producer() if value is not None else None
    if clamp is None or clamp.name not in subject.plan.fused or clamp.inputs[0] is None:
        return [tensor]
    return [tensor, clamp.inputs[0].name or ""]


def _takes_16_bits(copy: Replica, subject: Subject) -> bool:
    """Return whether the target has fast 16-bit kernels for the layer and for all that share its tensors."""
    target = subject.target
    if target is None or not target.is_fast(copy.layer.node.op_type, UINT16.name):
        return False
    keys = _keys(copy, subject)
    return bool(keys) and all(_fits(key, subject) for key in keys)


def _fits(key: Key, subject: Subject) -> bool:
    """Return whether a tensor can have 16 bits: it has a range of its own, and all its nodes take them."""
    target, entry = subject.target, subject.plan.entries.get(key)
    value = query.values(subject.model).get(key.tensor)
    if (
        target is None
        or value is None
        or key.consumer is not None
        or not isinstance(entry, Measured | Bounded)
    ):
        return False
    touching = [node for node in (value.producer(), *value.consumers()) if node is not None]
    return all(not subject.is_quantized(n) or target.is_fast(n.op_type, UINT16.name) for n in touching)


def _keys(copy: Replica, subject: Subject) -> list[Key]:
    """Return the keys of the layer's input and of its result, after a fused clamp."""
    layer, plan = copy.layer, subject.plan
    clamp = query.only_reader(layer.y)
    result = clamp.outputs[0] if clamp is not None and clamp.name in plan.fused else layer.y
    reads, gives = plan.lookup(layer.x.name or "", layer.name), Key(result.name or "")
    found = [key for key in (reads, gives) if key is not None and key in plan.entries]
    return list(dict.fromkeys(plan.root(key) for key in found))
