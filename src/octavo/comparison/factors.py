"""Factors of channels that moved between tensors before a model was quantized, undone by redoing them.

SmoothQuant and equalization multiply the weights of one layer channel by channel, and divide what comes
before: another layer, a normalization, or a Mul that was put there. Such a model computes the same, but
beside the float model its weights look wrong and its tensors too large or too small. So the factors are read
off the weights, ``ŵ ≈ b_i · a_o · w``, and a copy of the float model gets them too::

    float model ──► with the same factors ──► does it still compute the same? ── no ──► as it was
                                                         │ yes
                                                         └──► compared tensor by tensor

A weight with a scale that is plainly wrong looks like that as well; but then the copy computes otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from octavo.comparison.constant_values import Array, is_constant, numbers
from octavo.comparison.lowered_operators import Unit, weight
from octavo.comparison.match import Matching, Pair, aligned
from octavo.comparison.signals import SignalView
from octavo.core import metrics
from octavo.errors import OctavoError
from octavo.model.graph import query
from octavo.model.graph.edit import Editor, set_constant
from octavo.model.runtime.samples import sample_inputs
from octavo.model.runtime.session import NO_SPINNING, Session
from octavo.ops import MATRIX_FOR_EACH_GROUP
from octavo.ops.patterns import NORMALIZATIONS

_BAD = 30.0  # dB; a weight that is closer than this needs no explanation
_GAIN = 6.0  # dB that factors have to explain at least
_ROUNDS = 4  # of turns between factors of inputs and outputs
_NEARLY = 0.03  # factors that differ by no more than this are all alike
_MIN_WEIGHTS = 4  # weights for each factor; fewer say nothing
_CORNER_SIZE = 256  # inputs and outputs that are looked at first
_SAME_DECIBELS = 40.0  # between the outputs of models that compute the same: factors are known no better
_NORMS = tuple(op for op, (scale, *_) in NORMALIZATIONS.items() if scale == 1)


def with_factors(found: Matching, *, threads: int | None = None) -> ir.Model | None:
    """Return a copy of the float model with the factors of the quantized one; None where there are none.

    Where a copy with all factors that were found computes something else, one with those that are known
    exactly may not: what stands in a Mul.
    """
    muls = _muls(found)
    divided = {layer: mul.content for mul in muls for layer in mul.layers}
    scaled = {pair: f for pair in found.pairs if (f := _of_weights(pair, divided.get(pair))) is not None}
    scaled = _paired(scaled, divided)
    exact = {pair: replace(f, outputs=None) for pair, f in scaled.items() if pair in divided}
    for chosen in (scaled, exact) if exact else (scaled,):
        copy = _copy(found, chosen, muls) if chosen else None
        if copy is not None and _compute_the_same(found.float_view.model, copy, threads):
            return copy
    return None


def _paired(scaled: dict[Pair, Factors], divided: Mapping[Pair, Array]) -> dict[Pair, Factors]:
    """Return factors; those of inputs become exact inverses of another layer's that they nearly are.

    Each is read off rounded weights, and what is left between two would go through the rest of the model.
    """
    given = [f.outputs.reshape(-1) for f in scaled.values() if f.outputs is not None]
    found = dict(scaled)
    for pair, factors in scaled.items():
        if factors.inputs is None or pair in divided:
            continue
        inputs = factors.inputs.reshape(-1)
        for outputs in given:
            if outputs.size != inputs.size or (outputs == 1).all():
                continue
            common = float(np.median(inputs * outputs))
            if np.median(np.abs(inputs * outputs / common - 1.0)) < _NEARLY:
                common = 1.0 if abs(common - 1.0) < _NEARLY / 10 else common
                found[pair] = replace(factors, inputs=(common / outputs).reshape(factors.inputs.shape))
    return found


def _copy(found: Matching, scaled: Mapping[Pair, Factors], muls: Sequence[_Mul]) -> ir.Model:
    copy = found.float_view.model.clone()
    copy.meta.update(found.float_view.model.meta)
    rework = _Rework(found, copy)
    for pair, factors in scaled.items():
        rework.layer(pair, factors)
    for pair in found.pairs:
        if pair.is_main and pair not in scaled:
            rework.constants(pair)
    for mul in muls:
        rework.put_in(mul)
    return copy


@dataclass(frozen=True)
class _Mul:
    """A Mul that the quantized model has in front of some layers, and the float model has not."""

    unit: Unit
    source: ir.Value  # of the float model
    content: Array
    layers: tuple[Pair, ...]


def _muls(found: Matching) -> list[_Mul]:
    matched = {pair.unit for pair in found.pairs}
    units = [unit for unit in found.view.units if unit.kind == "Mul" and unit not in matched]
    return [mul for unit in units if (mul := _mul(unit, found)) is not None]


def _mul(unit: Unit, found: Matching) -> _Mul | None:
    view = found.view
    read = [o.value for o in unit.operands if o is not None]
    sources = [found.signals.get(view.signal(value)) for value in read if not is_constant(value)]
    held = [numbers(value) for value in read if is_constant(value)]
    if len(sources) != 1 or len(held) != 1 or sources[0] is None or held[0] is None:
        return None
    if not (np.isfinite(held[0]).all() and (held[0] > 0).all()):
        return None
    readers = {reader for reader, _ in view.readers.get(view.signal(unit.outputs[0]), ())}
    layers = tuple(pair for pair in found.pairs if pair.unit in readers)
    return _Mul(unit, sources[0], held[0], layers) if layers else None


@dataclass(frozen=True)
class Factors:
    """What weights were multiplied with, laid out to broadcast; None: nothing."""

    inputs: Array | None
    outputs: Array | None
    is_shared: bool = False  # both sides have factors, and a common one may belong to either


def _of_weights(pair: Pair, divided: Array | None) -> Factors | None:
    """Return the factors of a layer's channels; None where they are not needed, or do not help.

    What the input is ``divided`` by, or rather multiplied with, is known where a Mul does it.
    """
    if not pair.is_main or pair.unit.kind not in MATRIX_FOR_EACH_GROUP:
        return None
    plain, mine = weight(pair.float_unit, 1), weight(pair.unit, 1)
    if plain is None or mine is None or not plain.any() or not np.isfinite(mine).all():
        return None
    turned, axes = aligned(plain, mine), _axes(pair.float_unit, plain)
    if turned is None or axes is None:
        return None
    before = metrics.sqnr(turned, plain)
    if not before < _BAD:
        return None
    given = None
    if divided is not None and len(axes) > 1 and divided.size == plain.shape[axes[0]]:
        given = 1.0 / divided.reshape(-1)
    if given is None and not _corner_gains(plain, turned, axes):
        return None
    fitted = _fitted(plain, turned, axes, given)
    explained = _times(plain, fitted.inputs, fitted.outputs)
    return fitted if metrics.sqnr(turned, explained) >= before + _GAIN else None


def _corner_gains(plain: Array, mine: Array, axes: tuple[int, ...]) -> bool:
    """Whether factors explain some of the weights: looking at all takes long where there are many."""
    corner = tuple(slice(0, _CORNER_SIZE) if axis in axes else slice(None) for axis in range(plain.ndim))
    w, seen = plain[corner], mine[corner]
    if w.size == plain.size or not w.any():
        return True
    fitted = _fitted(w, seen, axes, None)
    explained = _times(w, fitted.inputs, fitted.outputs)
    return metrics.sqnr(seen, explained) >= metrics.sqnr(seen, w) + _GAIN / 2


def _fitted(plain: Array, mine: Array, axes: tuple[int, ...], given: Array | None) -> Factors:
    """Return factors ``b`` of inputs, ``a`` of outputs with the least ``Σ (ŵ - b a w)²``, found in turns."""
    rest = tuple(i for i in range(plain.ndim) if i not in axes)
    order = [sorted(axes).index(axis) for axis in axes]
    power, cross = (
        np.multiply(plain, other, dtype=np.float64).sum(axis=rest).transpose(order) for other in (plain, mine)
    )  # [input, output], or of what is both
    if len(axes) == 1:
        return Factors(None, _shaped(_ratio(cross, power), plain.ndim, axes[0]))
    b, a = np.ones(power.shape[0]) if given is None else given, np.ones(power.shape[1])
    for turn in range(_ROUNDS if given is None else 2):
        if given is None:
            b = _ratio(cross @ a, power @ a**2)
        a = _ratio(b @ cross, b**2 @ power)
        if turn < _ROUNDS - 1:
            b, a = _settled(b, a, common=given is None)
    shared = given is None and not (b == 1).all() and not (a == 1).all()
    return Factors(_shaped(b, plain.ndim, axes[0]), _shaped(a, plain.ndim, axes[1]), shared)


def _ratio(cross: Array, power: Array) -> Array:
    found = cross / np.where(power > 0, power, 1.0)
    return np.where((found > 0) & (power > 0), found, 1.0)


def _settled(b: Array, a: Array, *, common: bool) -> tuple[Array, Array]:
    """Return both factors; what one side has in common moves to the other, and the rest is rounding."""
    middle = float(np.median(a)) if common else 1.0
    if np.abs(a / middle - 1.0).max() < _NEARLY:
        return b * middle, np.ones(a.shape)
    middle = float(np.median(b))
    if common and np.abs(b / middle - 1.0).max() < _NEARLY:
        return np.ones(b.shape), a * middle
    return b, a


def _shaped(factors: Array, rank: int, axis: int) -> Array:
    return factors.reshape([-1 if i == axis else 1 for i in range(rank)])


def _times(values: Array, *factors: Array | None) -> Array:
    for one in factors:
        values = values if one is None else values * one
    return values


def _axes(unit: Unit, plain: Array) -> tuple[int, ...] | None:
    """Return the axes of input channels and, last, of output channels; a depthwise layer has one for both."""
    if unit.kind == "Conv":
        groups = int(query.attribute(unit.node, "group", 1))
        axes = (1, 0) if groups == 1 else (0,) if plain.shape[1] == 1 else ()
    elif plain.ndim == 2:
        axes = (1, 0) if query.attribute(unit.node, "transB", 0) else (0, 1)
    else:
        axes = ()
    fits = axes and all(plain.size // plain.shape[axis] >= _MIN_WEIGHTS for axis in axes)
    return axes if fits else None


class _Rework:
    """A copy of the float model to which factors are applied."""

    def __init__(self, found: Matching, copy: ir.Model) -> None:
        self.found, self.editor = found, Editor(copy)
        self.units = {pair.float_unit: pair.unit for pair in found.pairs}
        self.nodes = {node.name: node for node in copy.graph}
        self.values = {value.name: value for node in copy.graph for value in node.outputs}
        self.values |= {value.name: value for value in copy.graph.inputs}
        self.weights = copy.graph.initializers

    def layer(self, pair: Pair, factors: Factors) -> None:
        """Multiply the weights of a layer, and its bias."""
        self._multiply(pair.float_unit, 1, factors.inputs, factors.outputs)
        if factors.outputs is None or (factors.outputs == 1).all():
            return
        if len(pair.float_unit.operands) > 2:
            self._bias(pair.float_unit, 2, weight(pair.unit, 2), factors)
            return
        view = self.found.float_view
        for reader, place in view.readers.get(view.signal(pair.float_unit.outputs[0]), ()):
            if reader.kind == "Add" and len(reader.operands) == 2:
                twin = self.units.get(reader)
                mine = weight(twin, 1 - place) if twin is not None else weight(pair.unit, 2)
                self._bias(reader, 1 - place, mine, factors)

    def _bias(self, unit: Unit, place: int, mine: Array | None, factors: Factors) -> None:
        """Multiply a bias, which also tells which part of a common factor belongs to the outputs."""
        plain = weight(unit, place)
        if plain is None or factors.outputs is None or plain.size != factors.outputs.size:
            return
        outputs, common = factors.outputs.reshape(plain.shape), 1.0
        if factors.is_shared and mine is not None and mine.size == plain.size:
            scaled = plain.astype(np.float64) * outputs
            power = float(np.square(scaled).sum())
            fitted = float((mine.reshape(plain.shape) * scaled).sum()) / power if power > 0 else 1.0
            common = fitted if fitted > 0 else 1.0
        self._multiply(unit, place, outputs * common)

    def _multiply(self, unit: Unit, place: int, *factors: Array | None) -> None:
        value = self._initializer(unit, place)
        if value is not None and value.const_value is not None:
            old = np.asarray(value.const_value.numpy())
            set_constant(value, _times(old.astype(np.float64), *factors).astype(old.dtype))

    def constants(self, pair: Pair) -> None:
        """Take over scale and shift of a normalization or a product from the quantized model."""
        view, unit = self.found.float_view, pair.float_unit
        if unit.kind not in (*_NORMS, "Mul", "Add") or (unit.kind == "Add" and _is_bias(view, unit)):
            return
        for place in range(min(len(unit.operands), len(pair.unit.operands))):
            value, new, old = (self._initializer(unit, place), weight(pair.unit, place), weight(unit, place))
            if value is None or new is None or old is None or new.shape != old.shape:
                continue
            if metrics.sqnr(old, new) < _BAD or (not pair.unit.is_integer and not np.allclose(new, old)):
                set_constant(value, new.astype(np.asarray(value.const_value.numpy()).dtype))  # type: ignore[union-attr]

    def put_in(self, mul: _Mul) -> None:
        """Put a Mul in front of some layers."""
        source = self.values.get(mul.source.name)
        nodes = [self.nodes.get(pair.float_unit.node.name) for pair in mul.layers]
        layers = [node for node in nodes if node is not None and source in node.inputs]
        dtype = query.element_type(source)
        if source is None or not layers or dtype is None:
            return
        unit = mul.unit
        constant = self.editor.constant(f"{unit.name}_factors", mul.content.astype(dtype.numpy()))
        name = unit.outputs[0].name or unit.name
        node = self.editor.node("Mul", [source, constant], name=unit.name, output=name, dtype=dtype)
        node.outputs[0].shape = source.shape
        min(layers, key=list(self.editor.model.graph).index).prepend(node)
        for layer in layers:
            for index, value in enumerate(layer.inputs):
                if value is source:
                    layer.replace_input_with(index, node.outputs[0])

    def _initializer(self, unit: Unit, place: int) -> ir.Value | None:
        """Return the constant of the copy that a unit alone reads at a place."""
        operand = unit.operands[place] if place < len(unit.operands) else None
        name = operand.value.name if operand is not None and operand.value.is_initializer() else None
        value = self.weights.get(name) if name is not None else None
        return value if value is not None and len(value.uses()) == 1 else None


def _is_bias(view: SignalView, unit: Unit) -> bool:
    """Whether an Add is the bias of a layer: that holds corrections too, which are none of the factors."""
    makers = [view.maker.get(view.signal(o.value)) for o in unit.operands if o is not None]
    return any(maker is not None and maker.kind in MATRIX_FOR_EACH_GROUP for maker in makers)


def _compute_the_same(one: ir.Model, other: ir.Model, threads: int | None) -> bool:
    """Whether two models compute nearly the same floats for random inputs."""
    results: list[Mapping[str, Array]] = []
    try:
        for model in (one, other):
            session = Session.open(model, threads=threads, config=NO_SPINNING)
            results.append(session.run(sample_inputs(session.inputs)))
    except OctavoError:
        return False
    pairs = [(np.asarray(a), np.asarray(results[1][name])) for name, a in results[0].items()]
    floats = [(a.astype(np.float64), b.astype(np.float64)) for a, b in pairs if a.dtype.kind in "fV"]
    if not floats or any(a.shape != b.shape for a, b in pairs):
        return False
    return all(metrics.sqnr(a, b) > _SAME_DECIBELS for a, b in floats if a.size)
