"""16-bit floats for what a plan does not quantize: computed in where the target does that, else stored."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from octavo import calibration
from octavo.core.plan import Plan
from octavo.core.qtypes import INT8
from octavo.core.recipe import Placement, Recipe
from octavo.core.scheme import MinMax, Scheme
from octavo.core.stats import Range
from octavo.errors import RecipeError
from octavo.pipeline.calibrate import Calibrated, observe, samples_of
from octavo.pipeline.options import Run
from octavo.planning.half_precision import with_exact_storage, with_half_storage
from octavo.targets import Target


def with_half(
    plan: Plan, model: ir.Model, recipe: Recipe, target: Target, data: Any, run: Run
) -> tuple[Plan, Calibrated | None]:
    """Return the plan with 16-bit floats as a recipe requests them, and where weights alone lose nothing.

    With it goes what was measured for that.
    """
    half = recipe.half
    if half is None:
        is_open = recipe.is_weight_only and recipe.placement is not Placement.LISTED
        return (with_exact_storage(plan, model) if is_open and target.accepts.contrib_ops else plan), None
    from octavo.planning.half_compute import with_half_compute

    kind = half.type_for(target.kernels.half_types)
    name = kind.value
    computes = half.compute if half.compute is not None else name in target.kernels.half_types
    if computes:
        seen = _measured(model, data, run)
        ranges = seen.ranges if seen is not None else None
        return with_half_compute(plan, model, kind, ranges, exclude=recipe.exclude, io=half.io), seen
    if half.io:
        raise RecipeError(
            f"{target.name} stores weights in {name} and computes in float32, so inputs and outputs stay"
            f" float32; leave --io out, or request computing with --float {name}:compute."
        )
    return with_half_storage(plan, model, kind), None


def _measured(model: ir.Model, data: Any, run: Run) -> Calibrated | None:
    """Return the ranges of all float results on the calibration data, or None without data."""
    if data is None:
        return None
    from octavo.planning.half_compute import measured_tensors

    schemes = dict.fromkeys(measured_tensors(model), Scheme(INT8, method=MinMax()))
    needs = {name: scheme.method for name, scheme in schemes.items()}
    samples = samples_of(model, data, run.observation.samples)
    stats = observe(model, needs, samples, run)
    beyond = dict.fromkeys(calibration.unusable(stats, schemes), Range(-math.inf, math.inf))
    usable = {name: scheme for name, scheme in schemes.items() if name in stats and name not in beyond}
    return Calibrated(stats, {**calibration.ranges(stats, usable), **beyond}, samples)
