"""When a Relu or Clip is fused into the quantized range of its result.

With ``Q`` for rounding to a grid of integers, ``Q(clamp(x)) = Q(x)`` for every ``x`` exactly where no point
of the grid lies further than half a step outside of the bounds: then saturation does what the clamp does. The
planner asks whether that will hold for all parameters that an entry can get (:func:`fits`), and
:mod:`octavo.planning.resolve` makes it hold for those that it got (:func:`cut` and :func:`settled`).
"""

from __future__ import annotations

import math

import onnx_ir as ir

from octavo.core import affine
from octavo.core.plan import Bounded, Entry, Fixed, Measured
from octavo.core.qparams import QParams
from octavo.core.qtypes import QType
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.core.stats import Range
from octavo.model.graph import query
from octavo.ops import Kind, rule_of
from octavo.ops.hooks import clamp_bounds
from octavo.planning import overrides
from octavo.planning.state import State, name_of

Bounds = tuple[float, float]
_HALF = 0.501  # of a step, with what a scale loses by rounding to float32


def behind(value: ir.Value, entry: Entry, state: State, recipe: Recipe) -> ir.Node | None:
    """Return the Relu or Clip behind a value that can be fused, if ``entry`` quantizes what it makes."""
    clamp = query.only_reader(value)
    if clamp is None or clamp.name in state.reasons or not clamp.inputs or clamp.inputs[0] is not value:
        return None
    return clamp if can_fuse(clamp, entry, state, recipe) else None


def can_fuse(clamp: ir.Node, entry: Entry, state: State, recipe: Recipe) -> bool:
    """Whether a Relu or Clip can go, if ``entry`` quantizes what it makes."""
    rule, value, output = rule_of(clamp), clamp.inputs[0], clamp.outputs[0]
    if (
        not recipe.fuse_clamps
        or recipe.style is Style.INTEGER  # results are float there, and nothing saturates
        or rule is None
        or rule.kind is not Kind.CLAMP
        or value is None
        or value.producer() is None
        or value.graph is not output.graph
        or query.only_reader(value) is not clamp
        or state.avoided(output)
    ):
        return False
    if any(o.tensor == value.name and o.consumers is not None for o in recipe.overrides):
        return False  # a conversion of what the clamp reads
    bounds = clamp_bounds(clamp)
    return bounds is not None and fits(overrides.preview(entry, name_of(output), recipe), bounds)


def fuse(clamp: ir.Node, state: State) -> ir.Value:
    """Record a clamp as fused, and return what it makes."""
    output = clamp.outputs[0]
    state.fused[clamp.name or ""] = f"the quantized range of {name_of(output)} saturates where it clamps"
    return output


def fits(entry: Entry, bounds: Bounds) -> bool:
    """Whether an entry can only get parameters whose grid ends within half a step of the bounds."""
    low, high = bounds
    if not low <= 0.0 <= high or low == high:
        return False  # zero is on every grid
    match entry:
        case Measured(scheme):
            return _ends_with_range(scheme, bounds)
        case Bounded(scheme, bottom, top):
            return low <= bottom and top <= high and _ends_with_range(scheme, bounds)
        case Fixed(scheme, (scale,), (zero,)) if not scheme.qtype.is_float:
            return _is_within(scale, zero, scheme.qtype, bounds)
        case _:
            return False


def _ends_with_range(scheme: Scheme, bounds: Bounds) -> bool:
    """Whether integers saturate at the ends of a range inside the bounds."""
    low, high = bounds
    if scheme.symmetric or scheme.qtype.is_float or scheme.qtype.bits < 8:
        return False
    if scheme.restricted and low < 0.0:
        return False  # the zero point is moved, and the range with it
    if scheme.reduce_range and (scheme.qtype.signed or low < 0.0 or high < math.inf):
        return False  # kernels saturate at the limits of the type, not at the reduced ones
    return (scheme.min_range or 0.0) <= high - low


def _is_within(scale: float, zero: int, kind: QType, bounds: Bounds) -> bool:
    low, high = bounds
    return low / scale - _HALF <= kind.qmin - zero and kind.qmax - zero <= high / scale + _HALF


def cut(found: Range, bounds: Bounds) -> Range:
    """Return the part of a range that a clamp lets through; ranges may come from another model's table."""
    low, high = bounds
    if low <= found.low and found.high <= high:
        return found
    return found._replace(low=min(max(found.low, low), high), high=min(max(found.high, low), high))


def settled(params: QParams, bounds: Bounds) -> QParams | None:
    """Return parameters that do the work of a clamp, or None where these do not.

    A tensor that calibration saw as zero throughout has the scale 1, and gets the range that the bounds give.
    """
    kind, scale, zero = params.qtype, float(params.scale), int(params.zero_point.astype(int))
    if _is_within(scale, zero, kind, bounds):
        return params
    if (scale, zero) != (1.0, 0):
        return None
    low, high = bounds
    if math.isinf(high):
        high = -low or float(kind.qmax - kind.qmin)
    elif math.isinf(low):
        low = -high or float(kind.qmin - kind.qmax)
    return affine.from_range(low, high, Scheme(kind))
