"""Factors of channels that moved between tensors before a model was quantized, undone by redoing them.

SmoothQuant and equalization multiply the weights of one layer channel by channel, and divide what comes
before: another layer, a normalization, or a Mul that was put there. Such a model computes the same, but
beside the float model its weights look ruined and its tensors too large or too small. So the factors are read
off the weights, ``ŵ ≈ b_i · a_o · w``, and a copy of the float model gets them too::

    float model ──► with the same factors ──► does it still compute the same? ── no ──► as it was
                                                         │ yes
                                                         └──► compared tensor by tensor

A weight with a scale that is plainly wrong looks like that as well; but then the copy computes otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.comparison.constants import Array, is_constant, numbers
from octavo.comparison.match import Matching, Pair, aligned
from octavo.comparison.spelling import Unit, weight
from octavo.comparison.view import View
from octavo.core import metrics
from octavo.errors import OctavoError
from octavo.model import query
from octavo.model.edit import Editor, set_constant
from octavo.model.session import NO_SPINNING, Session, sample_inputs

_BAD = 30.0  # dB; a weight that is closer than this needs no explanation
_GAIN = 6.0  # dB that factors have to explain at least
_ROUNDS = 4  # of turns between factors of inputs and outputs
_NEARLY = 0.03  # factors that differ by no more than this are all alike
_LEAST = 4  # weights for each factor; fewer say nothing
_SAME = 40.0  # dB between the outputs of two models that compute the same, up to how well factors are known
_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")


def with_factors(found: Matching) -> ir.Model | None:
    """A copy of the float model with the factors of the quantized one; None where there are none."""
    muls = [mul for unit in found.unmatched if (mul := _mul(unit, found)) is not None]
    divided = {layer: mul.content for mul in muls for layer in mul.layers}
    scaled = {pair: f for pair in found.pairs if (f := _of_weights(pair, divided.get(pair))) is not None}
    if not scaled:
        return None
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
    return copy if _compute_the_same(found.float_view.model, copy) else None


@dataclass(frozen=True)
class _Mul:
    """A Mul that the quantized model has in front of some layers, and the float model has not."""

    unit: Unit
    source: ir.Value  # of the float model
    content: Array
    layers: tuple[Pair, ...]


def _mul(unit: Unit, found: Matching) -> _Mul | None:
    view = found.view
    read = [o.value for o in unit.operands if o is not None]
    sources = [found.signals.get(view.signal(value)) for value in read if not is_constant(value)]
    held = [numbers(value) for value in read if is_constant(value)]
    if unit.kind != "Mul" or len(sources) != 1 or len(held) != 1 or sources[0] is None or held[0] is None:
        return None
    readers = {reader for reader, _ in view.readers.get(view.signal(unit.outputs[0]), ())}
    layers = tuple(pair for pair in found.pairs if pair.unit in readers)
    return _Mul(unit, sources[0], held[0], layers) if layers else None


@dataclass(frozen=True)
class _Factors:
    """What weights were multiplied with, laid out to broadcast: all of it, and the outputs' part alone."""

    whole: Array
    outputs: Array
    is_shared: bool  # inputs and outputs both have factors, and a common one may belong to either


def _of_weights(pair: Pair, divided: Array | None) -> _Factors | None:
    """The factors of a layer's channels; None where the weights are close as they are, or nothing helps.

    What the input is ``divided`` by, or rather multiplied with, is known where a Mul does it.
    """
    if not pair.is_main or pair.unit.kind not in ("MatMul", "Conv"):
        return None
    plain, mine = weight(pair.float_unit, 1), weight(pair.unit, 1)
    turned = aligned(plain, mine) if plain is not None and mine is not None else None
    axes = _axes(pair.float_unit, plain) if plain is not None else None
    if plain is None or turned is None or axes is None or not plain.any():
        return None
    before = metrics.sqnr(turned, plain)
    if before >= _BAD:
        return None
    w, seen = plain.astype(np.float64), turned.astype(np.float64)
    sizes = {axis: [n if i == axis else 1 for i, n in enumerate(w.shape)] for axis in axes}
    factors = {axis: np.ones(size) for axis, size in sizes.items()}
    open_ = list(axes)
    if divided is not None and divided.size == w.shape[axes[0]] and len(axes) > 1:
        factors[axes[0]] = (1.0 / divided).reshape(sizes[axes[0]])
        open_.remove(axes[0])
    for turn in range(_ROUNDS if len(open_) > 1 else 1):
        for axis in open_:
            others = w * np.prod([factors[other] for other in axes if other != axis], axis=0)
            rest = tuple(i for i in range(w.ndim) if i != axis)
            power = np.square(others).sum(axis=rest, keepdims=True)
            fitted = (seen * others).sum(axis=rest, keepdims=True) / np.where(power > 0, power, 1.0)
            factors[axis] = np.where(fitted > 0, fitted, 1.0)
        if turn < _ROUNDS - 1:
            _settle(factors, open_)
    whole = np.prod(np.broadcast_arrays(*factors.values()), axis=0)
    if metrics.sqnr(seen, w * whole) < before + _GAIN:
        return None
    outputs = factors[axes[-1]].reshape(-1)
    return _Factors(whole, outputs, len(open_) > 1 and not any((f == 1).all() for f in factors.values()))


def _settle(factors: dict[int, Array], axes: Sequence[int]) -> None:
    """Factors of one side that are all alike are those of the other side, and what is left is rounding."""
    for axis in reversed(axes):
        middle = float(np.median(factors[axis])) if len(axes) > 1 else 1.0
        if np.abs(factors[axis] / middle - 1.0).max() < _NEARLY:
            factors[axis] = np.ones(factors[axis].shape)
            for other in axes:
                factors[other] = factors[other] * (middle if other != axis else 1.0)
            return


def _axes(unit: Unit, plain: Array) -> tuple[int, ...] | None:
    """The axes of input channels and, last, of output channels; a depthwise layer has one for both."""
    if unit.kind == "Conv":
        groups = int(query.attribute(unit.node, "group", 1))
        axes = (1, 0) if groups == 1 else (0,) if plain.shape[1] == 1 else ()
    elif plain.ndim == 2:
        axes = (1, 0) if query.attribute(unit.node, "transB", 0) else (0, 1)
    else:
        axes = ()
    fits = axes and all(plain.size // plain.shape[axis] >= _LEAST for axis in axes)
    return axes if fits else None


class _Rework:
    """A copy of the float model that takes up factors."""

    def __init__(self, found: Matching, copy: ir.Model) -> None:
        self.found, self.editor = found, Editor(copy)
        self.units = {pair.float_unit: pair.unit for pair in found.pairs}
        self.nodes = {node.name: node for node in copy.graph}
        self.values = {value.name: value for node in copy.graph for value in node.outputs}
        self.values |= {value.name: value for value in copy.graph.inputs}
        self.weights = copy.graph.initializers

    def layer(self, pair: Pair, factors: _Factors) -> None:
        """The weights of a layer, and its bias."""
        self._multiply(pair.float_unit, 1, factors.whole)
        if (factors.outputs == 1).all():
            return
        if len(pair.float_unit.operands) > 2:
            self._bias(pair.float_unit, pair.unit, 2, factors)
            return
        view = self.found.float_view
        for reader, place in view.readers.get(view.signal(pair.float_unit.outputs[0]), ()):
            twin = self.units.get(reader) if reader.kind == "Add" and len(reader.operands) == 2 else None
            if twin is not None:
                self._bias(reader, twin, 1 - place, factors)

    def _bias(self, unit: Unit, twin: Unit, place: int, factors: _Factors) -> None:
        """A bias; it also tells which part of a common factor of inputs and outputs is the outputs'."""
        plain, mine, outputs = weight(unit, place), weight(twin, place), factors.outputs
        if plain is None or mine is None or plain.size != outputs.size or mine.size != outputs.size:
            return
        scaled = plain.astype(np.float64).reshape(-1) * outputs
        power = float(np.square(scaled).sum())
        common = float((mine.reshape(-1) * scaled).sum()) / power if power > 0 and factors.is_shared else 1.0
        self._multiply(unit, place, outputs * common if common > 0 else outputs)

    def _multiply(self, unit: Unit, place: int, factors: Array) -> None:
        value = self._initializer(unit, place)
        if value is not None and value.const_value is not None:
            old = np.asarray(value.const_value.numpy())
            set_constant(value, (old * factors).astype(old.dtype))

    def constants(self, pair: Pair) -> None:
        """Scale and shift of a normalization or a product, as the quantized model has them."""
        view, unit = self.found.float_view, pair.float_unit
        if unit.kind not in (*_NORMS, "Mul", "Add") or (unit.kind == "Add" and _is_bias(view, unit)):
            return
        for place, (its, mine) in enumerate(zip(unit.operands, pair.unit.operands, strict=False)):
            value = self._initializer(unit, place)
            if value is None or its is None or mine is None or not is_constant(mine.value):
                continue
            new, old = numbers(mine.value), numbers(its.value)
            if new is not None and old is not None and new.shape == old.shape and not np.allclose(new, old):
                set_constant(value, new.astype(np.float32))

    def put_in(self, mul: _Mul) -> None:
        """A Mul in front of some layers."""
        source = self.values.get(mul.source.name)
        nodes = [self.nodes.get(pair.float_unit.node.name) for pair in mul.layers]
        layers = [node for node in nodes if node is not None and source in node.inputs]
        if source is None or not layers:
            return
        unit, dtype = mul.unit, query.element_type(source)
        constant = self.editor.constant(f"{unit.name}_factors", mul.content.astype(np.float32))
        name = unit.outputs[0].name or unit.name
        node = self.editor.node("Mul", [source, constant], name=unit.name, output=name, dtype=dtype)
        node.outputs[0].shape = source.shape
        min(layers, key=list(self.editor.model.graph).index).prepend(node)
        for layer in layers:
            for index, value in enumerate(layer.inputs):
                if value is source:
                    layer.replace_input_with(index, node.outputs[0])

    def _initializer(self, unit: Unit, place: int) -> ir.Value | None:
        """The constant of the copy that a unit alone reads at a place."""
        operand = unit.operands[place] if place < len(unit.operands) else None
        name = operand.value.name if operand is not None and operand.value.is_initializer() else None
        value = self.weights.get(name) if name is not None else None
        return value if value is not None and len(value.uses()) == 1 else None


def _is_bias(view: View, unit: Unit) -> bool:
    """Whether an Add is the bias of a layer: that holds corrections too, which are none of the factors."""
    makers = [view.maker.get(view.signal(o.value)) for o in unit.operands if o is not None]
    return any(maker is not None and maker.kind in ("MatMul", "Conv") for maker in makers)


def _compute_the_same(one: ir.Model, other: ir.Model) -> bool:
    """Whether two models give nearly the same for an input that is made up."""
    try:
        sessions = [Session.open(model, config=NO_SPINNING) for model in (one, other)]
        feed = sample_inputs(sessions[0])
        results: list[dict[str, Any]] = [dict(session.run(feed)) for session in sessions]
    except OctavoError:
        return False
    floats = [name for name, values in results[0].items() if values.dtype.kind == "f" and values.size]
    return all(metrics.sqnr(results[0][name], results[1][name]) > _SAME for name in floats)
