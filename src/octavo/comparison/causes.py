"""From figures to words: why a tensor makes a result wrong, and what to change.

=============  ==================================================================  =====================
cause          sign                                                                change
=============  ==================================================================  =====================
mask           a constant of large magnitude shares a scale with scores            keep the sum in float
clipped        most of the lost energy is in values that were cut off              the range of the data
few levels     the values use less than half of the quantized range                the range of the data
mixed concat   a Concat joins ranges that differ 16 times and more                 keep it in float
outliers       the largest magnitude is many times the root mean square            an MSE range, or float
coarse scale   a weight's integers use a small part of their range                 a scale of its own
channels       one scale for channels of different magnitude                          a scale per channel
bias           an int32 bias is off                                                keep the layer in float
bias overflow  an int32 bias near the limit of its type: sums wrap around          keep the layer in float
overflow       a value is beyond the range of a 16-bit float                       keep it in float32
bits           nothing of the above                                                16 bits, or float
other          quantizing the tensors one by one does not explain the error        keep the node in float
=============  ==================================================================  =====================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from octavo import planning
from octavo.comparison.blame import Blame
from octavo.comparison.comparison_result import Change, combined
from octavo.comparison.constant_values import Array, is_constant, real, stored
from octavo.comparison.data_pass import PassSums, TensorSums
from octavo.comparison.lowered_operators import Unit
from octavo.comparison.match import Matching, Pair
from octavo.comparison.signals import operands
from octavo.comparison.weight_errors import WeightError
from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.plan import Key, Plan
from octavo.core.qtypes import INT8, UINT16, qtype
from octavo.core.recipe import W8, W8A8, Override, Recipe, Style
from octavo.core.scheme import MSE, MinMax, Scheme
from octavo.errors import OctavoError, RecipeError
from octavo.model.graph import query
from octavo.ops import DATA_MOVEMENT, LINEAR
from octavo.ops.patterns import MASK_SCORES
from octavo.planning.half_compute import LARGEST
from octavo.planning.hazards import MASK, RATIO
from octavo.reporting import inspection as inspect
from octavo.targets import target as find_target

_OUTLIER_CREST = 30.0  # peak over root mean square at which a range is made by outliers
_MAX_BIAS = 2**30  # a larger int32 bias leaves the sums too little room
_UNLIKE_CHANNELS = 8.0  # channels that differ by more want scales of their own
HALF_LIMITS = {kind.value: limit for kind, limit in LARGEST.items()}
_MOVES = DATA_MOVEMENT | {"Cast"}


@dataclass(frozen=True)
class Cause:
    """A cause in words; ``remedy`` says what would help, and is made a change by :mod:`.proposal`."""

    tensor: str
    kind: str
    cause: str
    text: str
    remedy: str
    reader: Unit  # the float unit that was looked at
    maker: Unit | None = None  # the float unit that makes the tensor
    axis: int | None = None  # of a weight's channels
    excess: float = 0.0  # dB that other parameters of the same kind would gain


def explain(
    blame: Blame, found: Matching, seen: PassSums, weights: dict[tuple[Pair, int], WeightError]
) -> Cause:
    """Return the cause of a unit's bad result."""
    unit = blame.pair.float_unit
    if blame.is_result:
        signal = found.float_view.signal(blame.pair.target)
        return _activation(found, seen, signal, unit, seen.pairs[blame.pair])
    if blame.place is None:
        return _unexplained(blame.pair, seen.pairs[blame.pair])
    detail = weights.get((blame.pair, blame.place))
    if detail is not None:
        return weight_finding(detail, unit)
    operand = unit.operands[blame.place]
    signal = found.float_view.signal(operand.value) if operand is not None else blame.pair.target
    return _activation(found, seen, signal, unit, _watch(found, seen, signal))


def _unexplained(pair: Pair, watch: TensorSums) -> Cause:
    """Return findings without a tensor to blame: an overflow, another kernel, or a lost step."""
    unit = pair.float_unit
    bias = unit.operands[2] if unit.kind in LINEAR and len(unit.operands) > 2 else None
    top = _stored_bias(pair)
    if bias is not None and top > _MAX_BIAS:
        text = f"its integers reach {top} of 2147483647, so that sums overflow in the integer kernel"
        return Cause(bias.value.name or "", "weight", "bias overflow", text, "exclude", unit)
    steps = ", ".join(node.op_type for node in pair.steps)
    text = f"quantization does not explain it: an operation ({steps}) is missing or computed differently"
    execution = watch.execution.errors(watch.executed)
    if execution is not None and watch.is_changed_by_runtime:
        text = (
            "the runtime's optimized kernel does not compute what the graph says:"
            f" {execution.sqnr:.1f} dB between optimized and unoptimized execution"
        )
    return Cause(pair.target.name or "", "operator", "other", text, "exclude", unit, unit)


def _stored_bias(pair: Pair) -> int:
    """Return the largest magnitude among the integers of a bias; 0 where there are none."""
    operand = pair.unit.operands[2] if len(pair.unit.operands) > 2 else None
    value = operand.value if operand is not None else None
    maker = value.producer() if value is not None else None
    if maker is not None and maker.op_type == "DequantizeLinear":
        value = maker.inputs[0]
    if value is None or not is_constant(value) or pair.unit.kind not in LINEAR:
        return 0
    held = stored(value)
    return int(np.abs(held.astype(np.int64)).max(initial=0)) if held.dtype == np.int32 else 0


def _watch(found: Matching, seen: PassSums, signal: ir.Value) -> TensorSums | None:
    f = found.float_view
    for pair, watch in seen.pairs.items():
        if f.signal(pair.target) is signal:
            return watch
    return seen.inputs.get(signal)


def weight_finding(w: WeightError, unit: Unit) -> Cause:
    """Return what is wrong with a weight."""
    cause, text, remedy = _weight_cause(w, unit)
    return Cause(w.name, "weight", cause, text, remedy, unit, axis=w.axis, excess=w.excess)


def _weight_cause(w: WeightError, unit: Unit) -> tuple[str, str, str]:
    span = f"{w.low:.3g} … {w.high:.3g}"
    if unit.kind in MASK_SCORES and max(-w.low, w.high) >= MASK:
        text = (
            f"a mask of {span} is quantized with the scores, and one scale leaves no resolution for "
            "the scores"
        )
        return "mask", text, "exclude"
    if w.qtype in HALF_LIMITS:
        return _half_cause(w.qtype, span, w.clipped)
    if unit.kind in LINEAR and w.place == 2:
        text = f"the bias of {span} does not fit its integers, whose scale follows from input and weight"
        return "bias", text, "exclude"
    if w.used is not None and w.used < 0.25:
        used = f"{100 * w.used:.0f} % of the levels of {w.qtype}"
        text = f"the scale is too coarse: its values of {span} use {used}"
        return "coarse scale", text, "per channel"
    if w.clipped is not None and w.clipped > 0.01:
        return (
            "clipped",
            f"{100 * w.clipped:.1f} % of its values, {span}, are cut off by its scale",
            "per channel",
        )
    if w.scales <= 1 and w.spread > _UNLIKE_CHANNELS:
        text = (
            f"one scale for channels of different magnitude (the largest is {w.spread:.0f} times the median)"
        )
        return "channels", text, "per channel"
    if w.crest > _OUTLIER_CREST:
        text = f"outliers of {span}, {w.crest:.0f} times the root mean square, leave the others few levels"
        return "outliers", text, "exclude"
    text = f"{w.qtype} is too coarse for its values of {span}"
    return "bits", text, "per channel" if w.scales <= 1 else "more bits"


def _half_cause(kind: str, span: str, beyond: float | None) -> tuple[str, str, str]:
    """Return the cause for 16-bit floats; ``beyond`` is the share of values that became infinite."""
    if beyond:
        text = f"values of {span} are beyond the range of {kind}, which ends at {HALF_LIMITS[kind]:.5g}"
        return "overflow", text, "exclude"
    return "bits", f"{kind} is too coarse for its values of {span}", "exclude"


def _activation(
    found: Matching, seen: PassSums, signal: ir.Value, reader: Unit, watch: TensorSums | None
) -> Cause:
    maker = found.float_view.maker.get(signal)
    name = signal.name or ""
    mask = _mask(found, signal)
    if mask is not None:
        return _masked(found, mask, name, reader)
    power = watch.power if watch is not None else None
    has_mask = power is not None and max(-power.low, power.high) >= MASK and -power.low > 4 * power.high
    if (
        has_mask
        and power is not None
        and reader.kind == "Softmax"
        and maker is not None
        and maker.kind in MASK_SCORES
    ):
        text = (
            f"scores and a mask of {power.low:.3g} share one scale, which leaves no resolution for the scores"
        )
        return Cause(name, "activation", "mask", text, "exclude", reader, maker)
    cause, text, remedy = _range_cause(found, seen, reader, maker, watch)
    return Cause(name, "activation", cause, text, remedy, reader, maker, excess=excess(watch))


def excess(watch: TensorSums | None) -> float:
    """Return by how many dB a tensor's fixed range is worse than that of its values."""
    return watch.clipping.excess(watch.power) if watch is not None and watch.clipping is not None else 0.0


def _masked(found: Matching, mask: tuple[Unit, ir.Value, Array], scores: str, reader: Unit) -> Cause:
    unit, constant, content = mask
    span = f"{float(content.min()):.3g} … {float(content.max()):.3g}"
    text = (
        f"the mask {constant.name!r} of {span} shares one scale with the scores {scores!r}, which "
        "leaves them no resolution"
    )
    named = constant.name if _is_stored(found, unit) else scores
    return Cause(named or scores, "activation", "mask", text, "exclude", reader, unit)


def _range_cause(
    found: Matching, seen: PassSums, reader: Unit, maker: Unit | None, watch: TensorSums | None
) -> tuple[str, str, str]:
    joined = next((u for u in (reader, maker) if u is not None and u.kind == "Concat"), None)
    unlike = _unlike(found, seen, joined) if joined is not None else None
    if unlike is not None:
        text = f"a Concat joins ranges of {unlike[0]:.3g} and {unlike[1]:.3g} under one scale"
        return "mixed concat", text, "exclude"
    if watch is None or not watch.power.count:
        return "bits", "one scale for its range leaves too few levels", "exclude reader"
    power, clip = watch.power, watch.clipping
    span = f"{power.low:.3g} … {power.high:.3g}"
    if watch.half is not None:
        return _half_cause(watch.half, span, float(max(-power.low, power.high) > HALF_LIMITS[watch.half]))
    if clip is not None:
        limits = f"{clip.low:.3g} … {clip.high:.3g}"
        if clip.share > 0 and clip.rounding < 0.5:
            return (
                "clipped",
                f"{100 * clip.share:.2f} % of its values, {span}, lie outside its range {limits}",
                "range",
            )
        if clip.used(power) < 0.5:
            used = f"{100 * clip.used(power):.0f} % of its range {limits}"
            text = f"its values, {span}, use {used}: too few levels"
            return "few levels", text, "range"
    rms = float(np.sqrt(power.energy / power.count)) if power.count else 0.0
    crest = max(-power.low, power.high) / max(rms, 1e-38)
    if crest > _OUTLIER_CREST:
        text = f"outliers determine its range: {span}, {crest:.0f} times its root mean square of {rms:.3g}"
        return "outliers", text, "exclude reader" if clip is None else "tighter"
    remedy = "more bits" if clip is not None else "exclude reader"
    return "bits", f"one scale for its range of {span} is too coarse (root mean square {rms:.3g})", remedy


def _mask(found: Matching, signal: ir.Value) -> tuple[Unit, ir.Value, Array] | None:
    """Return the sum that mixes a constant of large magnitude into a tensor, and that constant."""
    maker = found.float_view.maker.get(signal)
    for _ in range(4):
        if maker is None:
            return None
        if maker.kind in MASK_SCORES:
            for _, operand in operands(maker):
                content = real(operand.value) if is_constant(operand.value) else None
                if (
                    content is not None
                    and content.dtype.kind == "f"
                    and np.abs(content).max(initial=0) >= MASK
                ):
                    return maker, operand.value, content
            return None
        if maker.kind not in _MOVES or maker.operands[0] is None:
            return None
        maker = found.float_view.maker.get(found.float_view.signal(maker.operands[0].value))
    return None


def _is_stored(found: Matching, unit: Unit) -> bool:
    """Whether the constants of a float unit are quantized in the other model."""
    pair = next((p for p in found.pairs if p.float_unit is unit), None)
    if pair is None:
        return False
    constant = [o.value for _, o in operands(pair.unit) if is_constant(o.value)]
    return any(v.producer() is not None or not query.is_float(v) for v in constant)


def _unlike(found: Matching, seen: PassSums, unit: Unit) -> tuple[float, float] | None:
    """Return the smallest and the largest magnitude that a Concat joins, if they are too far apart."""
    tops = []
    for _, operand in operands(unit):
        watch = _watch(found, seen, found.float_view.signal(operand.value))
        if watch is not None and watch.power.count:
            tops.append(max(-watch.power.low, watch.power.high))
    if len(tops) < 2 or min(tops) <= 0 or max(tops) / min(tops) < RATIO:
        return None
    return min(tops), max(tops)


# ---- The changes to a recipe that may help a tensor, each of which the planner accepts
#
# Where the model does not carry the recipe that it was made by, it is read off the model: its output format,
# types and scales.


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
    """Return ``int8/channel``, ``uint4/block:32`` as a scheme."""
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

    def for_finding(self, finding: Cause) -> tuple[Change, ...]:
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

    def _choices(self, finding: Cause) -> Iterator[Change]:
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
                yield _set(tensor, "clip its outliers: method mse", method=MSE())
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
