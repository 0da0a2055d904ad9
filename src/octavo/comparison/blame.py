"""Which of the tensors of a unit causes its error: each is quantized alone, while the others stay in float.

A bad result has one cause among several: an input, a weight, the unit's own result. The float operators are
run again on a few samples, each time with one of these as the quantized model has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from octavo.comparison import distances
from octavo.comparison.constant_values import Array, is_constant, real
from octavo.comparison.data_pass import PassSums, clipping
from octavo.comparison.distances import Clipping
from octavo.comparison.lowered_operators import weight
from octavo.comparison.match import Matching, Pair, aligned
from octavo.comparison.signals import half_type, operands
from octavo.errors import ModelError
from octavo.model.files.serialize import part_of
from octavo.model.graph import query
from octavo.model.runtime.session import Session

_EXPLAINED = 0.1  # of the local noise; less, and quantization is not what makes the result wrong
BAD = 25.0  # dB; the cause of a better result is looked for only if it is the worst


@dataclass(frozen=True)
class Blame:
    """What makes a unit's result wrong: a place among its operands, its own result, or neither."""

    pair: Pair
    place: int | None = None  # an operand of the float unit
    is_result: bool = False
    noise: float = 0.0


def blames(found: Matching, seen: PassSums, excess: Mapping[Pair, float], most: int) -> dict[Pair, Blame]:
    """Return the blame for the worst units; ``excess`` are dB that other parameters would gain there."""
    local = {p: e.sqnr for p, w in seen.pairs.items() if (e := w.local.errors(w.power)) is not None}
    scores = {p: sqnr - excess.get(p, 0.0) for p, sqnr in local.items()}
    ranked = sorted(scores, key=scores.__getitem__)[:most]
    worst = [p for p in ranked if scores[p] < BAD] or ranked[:1]
    if not worst or seen.float_model is None:
        return {}
    results = [seen.float_model.run(feed) for feed in seen.kept]
    names = seen.float_model.names
    given: dict[ir.Value, list[Array]] = {
        v: [r[n] for r in results] for v, n in names.items() if n in results[0]
    }
    return {p: b for p in worst if (b := _blame(found, seen, p, given)) is not None}


def _blame(
    found: Matching, seen: PassSums, pair: Pair, given: Mapping[ir.Value, list[Array]]
) -> Blame | None:
    try:
        alone = _Alone(found, pair)
    except ModelError:
        return None
    f = found.float_view
    wanted = given.get(f.signal(pair.target))
    inputs = {place: given.get(f.signal(v)) for place, v in alone.activations.items()}
    if wanted is None or any(array is None for array in inputs.values()):
        return None
    noise: dict[int | str, float] = {}
    weights = {place: _other_weight(pair, place, w) for place, w in alone.weights.items()}
    for i, y in enumerate(wanted):
        feeds = {place: arrays[i] for place, arrays in inputs.items() if arrays is not None}
        others = {**weights, **{place: _other_input(found, pair, place, x) for place, x in feeds.items()}}
        plain = {**feeds, **alone.weights}
        for place, other in others.items():
            if other is not None:
                noise[place] = noise.get(place, 0.0) + _energy(alone.run({**plain, place: other}), y)
        noise["result"] = noise.get("result", 0.0) + _energy(_held(found, pair.twin, y), y)
    worst = max(noise, key=noise.__getitem__)
    most = noise[worst]
    total = seen.pairs[pair].local.noise / max(seen.looked, 1) * len(wanted)
    if most < _EXPLAINED * total:
        return Blame(pair, noise=total)
    return Blame(pair, worst if isinstance(worst, int) else None, worst == "result", most)


def _other_weight(pair: Pair, place: int, array: Array) -> Array | None:
    """Return a weight as the quantized model has it; None where it has the same."""
    mine = weight(pair.unit, place) if place < len(pair.unit.operands) else None
    turned = aligned(array, mine) if mine is not None else None
    return turned.astype(array.dtype) if turned is not None else None


def _other_input(found: Matching, pair: Pair, place: int, array: Array) -> Array | None:
    """Return an input as the quantized unit reads it; None where it reads floats."""
    operand = pair.unit.operands[place] if place < len(pair.unit.operands) else None
    if operand is None:
        return None
    held = _held(found, operand.value, array)
    if held is not array:
        return held
    maker = operand.value.producer()
    runtime = maker is not None and maker.op_type == "DynamicQuantizeLinear"
    return _at_runtime(array) if runtime or pair.unit.node.op_type.startswith("Dynamic") else None


def _held(found: Matching, value: ir.Value, x: Array) -> Array:
    """Return values as a tensor of the quantized model holds them: as its integers or 16-bit floats."""
    fixed, half = clipping(found.view, value), half_type(value)
    if fixed is not None:
        return _rounded(x, fixed)
    if half is None or x.dtype.kind != "f":
        return x
    with np.errstate(over="ignore"):
        return x.astype(half.numpy()).astype(x.dtype)


def _rounded(x: Array, fixed: Clipping) -> Array:
    """Return the round trip through a fixed range."""
    centre = np.rint(-fixed.low / fixed.step)
    levels = np.rint((fixed.high - fixed.low) / fixed.step)
    steps = np.clip(np.rint(x.astype(np.float64) / fixed.step) + centre, 0, levels)
    return np.asarray((steps - centre) * fixed.step).astype(x.dtype)


def _at_runtime(x: Array) -> Array:
    """Return the round trip through the range of the values themselves, zero included, in 255 steps."""
    low, high = min(float(x.min(initial=0.0)), 0.0), max(float(x.max(initial=0.0)), 0.0)
    step = (high - low) / 255 or 1.0
    centre = np.rint(-low / step)
    return _rounded(x, Clipping(-centre * step, (255 - centre) * step, step))


def _energy(y: Array | None, wanted: Array) -> float:
    if y is None or y.size != wanted.size:
        return 0.0
    gap = distances.Gap()
    gap.add(distances.row(wanted), distances.row(y))
    return gap.noise


class _Alone:
    """The float operators of a pair in a session of their own, weights among the inputs."""

    def __init__(self, found: Matching, pair: Pair) -> None:
        model = found.float_view.model
        self.weights: dict[int, Array] = {}
        self.activations: dict[int, ir.Value] = {}
        fed: dict[ir.Value, int] = {}
        for place, operand in operands(pair.float_unit):
            content = real(operand.value) if query.is_float(operand.value) else None
            if content is not None:
                self.weights[place] = content
                fed[operand.value] = place
            elif not is_constant(operand.value):
                self.activations[place] = operand.value
                fed[operand.value] = place
        self._fed = {place: f"operand{place}" for place in fed.values()}
        proto = part_of(model, "alone")
        self._fill(proto.graph, pair, fed)
        self._session = Session.open(proto.SerializeToString(), optimize=False)

    def _fill(self, graph: onnx.GraphProto, pair: Pair, fed: dict[ir.Value, int]) -> None:
        made = {v for node in pair.steps for v in node.outputs}
        for node in pair.steps:
            proto = ir.serde.serialize_node(node)
            proto.input[:] = [
                self._fed[fed[v]] if v in fed else (v.name or "") if v is not None else ""
                for v in node.inputs
            ]
            for value in node.inputs:
                if value is not None and value not in fed and value not in made:
                    _add_constant(graph, value)
            graph.node.append(proto)
        for value, place in fed.items():
            kind = query.element_type(value) or ir.DataType.FLOAT
            graph.input.append(
                onnx.helper.make_tensor_value_info(self._fed[place], int(kind), query.shape(value))
            )
        graph.output.add(name=pair.target.name or "")

    def run(self, values: Mapping[int, Array]) -> Array | None:
        """Return the result for these operands."""
        feeds = {
            spec.name: np.asarray(values[place]).astype(spec.dtype, copy=False)
            for spec in self._session.inputs
            for place in (int(spec.name.removeprefix("operand")),)
        }
        return next(iter(self._session.run(feeds).values()), None)


def _add_constant(graph: onnx.GraphProto, value: ir.Value) -> None:
    if not value.is_initializer() or value.const_value is None:
        raise ModelError(f"The tensor {value.name!r} is not known.")
    if all(tensor.name != value.name for tensor in graph.initializer):
        graph.initializer.append(
            onnx.numpy_helper.from_array(np.asarray(value.const_value.numpy()), value.name)
        )
