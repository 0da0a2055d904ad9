"""The changes to a recipe that may help a tensor, each of which the planner accepts.

Where the model does not carry the recipe that it was made by, it is read off the model: its output format,
types and scales.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import onnx_ir as ir

from octavo import planning
from octavo.comparison.causes import Finding
from octavo.comparison.result import Change, combined
from octavo.comparison.weights import WeightError
from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.plan import Key, Plan
from octavo.core.qtypes import INT8, UINT16, qtype
from octavo.core.recipe import W8, W8A8, Override, Recipe, Style
from octavo.core.scheme import MSE, MinMax, Scheme
from octavo.errors import OctavoError, RecipeError
from octavo.model.graph import query
from octavo.reporting import inspection as inspect
from octavo.targets import target as find_target


def base_recipe(model: ir.Model, weights: Iterable[WeightError]) -> Recipe:
    """Return the recipe that a quantized model seems to have been made by."""
    found = inspect.inspect(model)
    stored = found.weights.most_common(1)
    kinds = [name for name, _ in found.activations.most_common() if name != "int32"]
    dynamic = any(name.startswith("dynamic") for name in kinds) or "DynamicQuantizeMatMul" in found.op_types
    style = Style(found.style) if found.style in {s.value for s in Style} else W8A8.style
    base = W8 if dynamic else W8A8
    recipe = replace(base, style=style, weights=_weights(stored[0][0]) if stored else base.weights)
    scales = [w.scales for w in weights if w.place == 1]
    if scales and recipe.weights.granularity == PerTensor() and 2 * sum(n > 1 for n in scales) > len(scales):
        recipe = replace(recipe, weights=recipe.weights.but(granularity=PerChannel()))
    if dynamic:
        return recipe
    if not kinds:
        return replace(recipe, activations=None if found.style == "weight-only" else recipe.activations)
    activations = qtype(kinds[0])
    return replace(recipe, activations=Scheme(activations, symmetric=activations.is_float))


def _weights(text: str) -> Scheme:
    """``int8/channel``, ``uint4/block:32`` as a scheme."""
    name, _, grain = text.partition("/")
    kind = qtype(name)
    if grain.startswith("block:"):
        return Scheme(kind, PerBlock(int(grain.removeprefix("block:"))), symmetric=kind.signed)
    return Scheme(kind, PerChannel() if grain else PerTensor(), symmetric=kind.signed)


class Changes:
    """Lists changes to the base recipe for one float model, as ``quantize`` prepares it."""

    def __init__(self, model: ir.Model, base: Recipe) -> None:
        self._model, self._base = model, base
        self._target = find_target(base.target)
        self._nodes = {node.name for node in query.nodes(model)}
        self._avoid = planning.Avoid()
        self._plan = self._accepted(base)
        if self._plan is not None:
            self._avoid = planning.lost_weights(model, self._plan)

    def for_finding(self, finding: Finding) -> tuple[Change, ...]:
        """Return the changes that concern a finding and that the planner accepts, the likeliest first."""
        found: list[Change] = []
        for change in self._choices(finding):
            wanted = combined(self._base, [change])
            if wanted != self._base and change not in found and self._accepted(wanted) is not None:
                found.append(change)
        return tuple(found)

    def _accepted(self, recipe: Recipe) -> Plan | None:
        try:
            return planning.build(self._model, planning.policy_for(recipe, self._target), self._avoid)
        except OctavoError:
            return None

    def _choices(self, finding: Finding) -> Iterator[Change]:
        tensor = self._root(finding.tensor)
        static = isinstance(self._base.activations, Scheme)
        if finding.kind == "weight":
            if finding.remedy == "per channel":
                text = "give it a scale per channel, from its own values"
                yield _set(tensor, text, granularity=PerChannel(finding.axis))
                yield _set(tensor, "give it a scale from its own values", granularity=PerTensor())
            elif finding.remedy == "more bits" and self._base.weights.qtype.bits < 8:
                yield _set(tensor, "store it in 8 bits", qtype=INT8)
        elif finding.kind == "activation" and static:
            if finding.remedy == "range":
                yield _set(tensor, "take its range from the data: method minmax", method=MinMax())
            elif finding.remedy == "tighter":
                yield _set(tensor, "cut its outliers off: method mse", method=MSE())
            if finding.remedy != "exclude" and self._base.style is Style.QDQ:
                yield _set(tensor, "quantize it to 16 bits", qtype=UINT16)
        makers = (finding.maker, finding.reader)
        for unit in makers[::-1] if finding.remedy == "exclude reader" else makers:
            if unit is not None and unit.name in self._nodes:
                yield Change(f"keep {unit.name!r} ({unit.node.op_type}) in float", exclude=(unit.name,))

    def _root(self, tensor: str) -> str:
        """Return the tensor whose parameters this one has."""
        if self._plan is None:
            return tensor
        key = Key(tensor)
        return self._plan.root(key).tensor if key in self._plan.entries else tensor


def _set(tensor: str, text: str, **settings: object) -> Change:
    try:
        return Change(text, overrides=(Override(_literal(tensor), **settings),))  # type: ignore[arg-type]
    except RecipeError:
        return Change(text)


def _literal(name: str) -> str:
    """Return a tensor's name as a pattern that means only itself."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
