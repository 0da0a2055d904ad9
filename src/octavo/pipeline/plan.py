"""Third stage: decide, tensor by tensor, what will be done; later stages may have it decided again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import onnx_ir as ir

from octavo import planning
from octavo.core.plan import Plan
from octavo.core.recipe import Recipe
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.targets import Target


@dataclass(frozen=True)
class Planned:
    """A plan, what it was made around, and what it is made from."""

    model: ir.Model
    recipe: Recipe
    target: Target
    plan: Plan
    avoid: planning.Avoid

    def around(self, more: planning.Avoid) -> Planned:
        """Plan again so that these nodes and tensors are avoided as well."""
        return self._again(self.recipe, self.avoid.and_also(more))

    def by(self, recipe: Recipe) -> Planned:
        """Plan again by another recipe."""
        return self._again(recipe, self.avoid)

    def noting(self, text: str) -> Planned:
        """Add a note to the plan."""
        return replace(self, plan=replace(self.plan, notes=(*self.plan.notes, text)))

    def _again(self, recipe: Recipe, avoid: planning.Avoid) -> Planned:
        plan = planning.build(self.model, planning.policy_for(recipe, self.target), avoid)
        return replace(self, recipe=recipe, plan=plan, avoid=avoid)


def planned(model: ir.Model, recipe: Recipe, target: Target) -> Planned:
    """Return the plan before calibration, made around weights that the types of the recipe would ruin."""
    plan = planning.build(model, planning.policy_for(recipe, target))
    first = Planned(model, recipe, target, plan, planning.Avoid())
    lost = planning.lost_weights(model, plan)
    return first.around(lost) if lost else first


def refuse_nothing(model: ir.Model, plan: Plan, hint: str = "") -> None:
    """Raise where nothing would be quantized: a copy of the model is not what was requested.

    ``hint`` is a sentence about what could be.
    """
    if plan.nodes or plan.compressed or plan.half is not None:
        return
    from octavo.reporting.inspection import inspect

    if quantized := inspect(model).quantized_ops:
        listed = ", ".join(f"{count} {name}" for name, count in quantized.most_common(3))
        raise ModelError(
            f"{io.describe(model)} is quantized already ({listed}); give the float model that it was made"
            " from. One that was trained with fake quantization is converted by octavo.convert_qat"
            " ('octavo qat')."
        )
    kinds: dict[str, Counter[str]] = {}
    for skipped in plan.skipped:
        kinds.setdefault(skipped.reason, Counter())[skipped.op_type] += 1
    reasons = sorted(kinds.items(), key=lambda one: -one[1].total())[:5]
    listed = "; ".join(
        f"{reason} ({', '.join(f'{count} {kind}' for kind, count in ops.most_common(5))})"
        for reason, ops in reasons
    )
    listed = listed or "no operator computes on floats"
    raise ModelError(f"{io.describe(model)} has nothing that can be quantized: {listed}.{hint}")


def gain_by_data(model: ir.Model, recipe: Recipe, target: Target) -> str:
    """Return a sentence where a model of which nothing is quantized without data would gain by data."""
    if recipe.is_static or recipe.is_weight_only or not recipe.activations:
        return ""
    static = target.static_recipe.but(
        include=recipe.include, exclude=recipe.exclude, op_types=recipe.op_types
    )
    counts = planned(model, static, target).plan.counts()
    if not counts:
        return ""
    listed = ", ".join(f"{count} {op}" for op, count in counts.most_common(3))
    return f" That is without calibration; with data=… {listed} would be quantized."
