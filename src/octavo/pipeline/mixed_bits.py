"""Bits by sensitivity: within a budget of bytes, layers get 2, 4 or 8 bits and blocks of two sizes.

A layer's sensitivity is measured: with its weight alone rounded, how far do the model's predictions move (the
KL divergence from float's on a few samples)? Divergences of small errors add up over layers, and grow with
the square of a layer's error, so that of every other width follows from the error of the weight itself::

    KL(layer, width) = KL(layer, base) · error(layer, width) / error(layer, base)

The widths with the least sum within the budget are taken, unless all of them at once turn out to be no better
than the base width everywhere. The model is loaded once, with its weights as inputs.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.weights.registry import algorithm
from octavo.core.blocks import BlockScheme
from octavo.core.budget import Priced, choose
from octavo.core.granularity import PerBlock
from octavo.core.plan import Constant, Key, Shared
from octavo.core.qtypes import qtype
from octavo.core.recipe import LayerWeights
from octavo.core.scheme import Scheme
from octavo.errors import DataError, RecipeError
from octavo.model.graph import query
from octavo.model.runtime.session import Session
from octavo.ops import GATHER_BLOCKS, QMOE
from octavo.pipeline.plan import Planned
from octavo.planning.resolve import weight_array
from octavo.planning.weights import weight_of

Array = npt.NDArray[Any]
_POSITIONS = 256  # predictions that sensitivities are measured on
_ROWS = 256  # of a weight, from all over, that its error is measured on
_LARGEST_BLOCK = 256  # of the sizes that MatMulNBits takes
_OTHERS = (GATHER_BLOCKS.op_type, QMOE.op_type)  # that keep the bits of the recipe


@dataclass(frozen=True)
class _Width:
    bits: int
    block: int


@dataclass(frozen=True)
class _Layer:
    """A weight whose width is open."""

    key: Key
    entry: Constant
    origin: ir.Value  # the initializer
    value: ir.Value  # the same as the layer reads it
    inputs: Array | None
    readers: tuple[str, ...] = ()  # the nodes that read the weight in this way

    def rows(self) -> Array:
        """Return the weight as rows of what one output is computed from."""
        whole = np.moveaxis(weight_array(self.value), self.axis, -1)
        return whole.reshape(-1, whole.shape[-1])

    @property
    def axis(self) -> int:
        grain = self.entry.scheme.granularity
        return grain.axis if isinstance(grain, PerBlock) and grain.axis is not None else 0

    def stored(self, rows: Array) -> Array:
        """Return rows as the initializer holds them."""
        read = np.moveaxis(rows, -1, self.axis)
        source = weight_of(self.value)
        perm = source[1] if source is not None else None
        placed = read if perm is None else read.transpose(np.argsort(perm))
        return np.ascontiguousarray(placed, weight_array(self.value).dtype)

    def rounded(self, rows: Array, width: _Width) -> Array:
        """Return rows after rounding; 8 bits are rounded to nearest, as the plan does it."""
        how = algorithm("rtn" if width.bits == 8 else self.entry.algorithm or "rtn")
        scheme = BlockScheme(width.bits, width.block, self.entry.scheme.symmetric)
        return how.blocks(rows, scheme, self.inputs).real()

    def error(self, rows: Array, real: Array) -> float:
        """Return the squared error of the outputs, up to correlations of inputs."""
        squares = 1.0 if self.inputs is None else self.inputs
        return float(((real - rows) ** 2 * squares).sum())


def with_widths(
    planned: Planned,
    inputs: Mapping[Key, Array],
    samples: Any,
    float_bytes: int,
    progress: Callable[[str, int, int | None], None],
) -> Planned:
    """Plan again with a width for each layer; the plan's notes say what came of it."""
    recipe = planned.recipe
    if samples is None:
        raise DataError(
            "Bits by sensitivity are measured on calibration data; give some: data=…, or leave bits out."
        )
    if not samples.can_repeat:
        raise DataError(
            "Bits by sensitivity read the data after calibration does, and this data can be read only once;"
            " give a list or a path."
        )
    layers = list(_layers(planned, inputs))
    grain = recipe.weights.granularity
    base = _Width(recipe.weights.qtype.bits, grain.size if isinstance(grain, PerBlock) else 32)
    widths = sorted({_Width(2, base.block), base, _Width(8, base.block), *_wider(base)}, key=_order)
    meter = _Meter(planned.model, layers, samples)
    prices = []
    for number, layer in enumerate(layers):
        progress("sensitivity", number, len(layers))
        prices.append(_priced(layer, base, widths, meter))
    budget = _budget(planned, layers, prices, base, float_bytes)
    chosen = [widths[index] for index in choose(prices, budget)]
    fitting = [i for i in range(len(widths)) if sum(sizes[i].bytes for sizes in prices) <= budget]
    even = widths[fitting[-1]] if fitting else base
    uniform = meter.apart({layer.key: even for layer in layers})
    mixed = meter.apart(dict(zip((layer.key for layer in layers), chosen, strict=True)))
    if mixed >= uniform and fitting:
        chosen, mixed = [even] * len(layers), uniform
    return _by(planned, layers, chosen, base, f"{mixed:.4f}, with {even.bits} bits everywhere {uniform:.4f}")


def _budget(
    planned: Planned,
    layers: Sequence[_Layer],
    prices: Sequence[Sequence[Priced]],
    base: _Width,
    float_bytes: int,
) -> float:
    """Return the bytes that the layers may take together."""
    options = planned.recipe.weight_only
    if options.size is None:
        average = options.average_bits or base.bits
        return sum(_bytes(layer, replace(base, bits=1), average, base.bits) for layer in layers)
    others = _bytes_of_others(planned, {reader for layer in layers for reader in layer.readers})
    least = sum(min(size.bytes for size in sizes) for sizes in prices)
    if others + least > options.size * float_bytes:
        raise RecipeError(
            f"size: {options.size:g} × float can't be reached: with 2 bits in every layer the weights take"
            f" {(others + least) / float_bytes:.2f} ×; give a larger size, or fewer bits of head and"
            " embeddings."
        )
    return options.size * float_bytes - others


def _bytes_of_others(planned: Planned, own: set[str]) -> float:
    """Return the bytes of all weights but those that these nodes read, as they are going to be written."""
    tensors = [value for graph in query.graphs(planned.model) for value in query.initializers(graph).values()]
    values = {value.name: value for node in query.nodes(planned.model) for value in node.inputs if value}
    readers: Counter[str] = Counter()
    total, known = 0.0, set()
    for key, entry in planned.plan.entries.items():
        source = weight_of(values.get(key.tensor))
        if source is None or not isinstance(entry, Constant | Shared):
            continue
        readers[source[0].name or ""] += 1
        if isinstance(entry, Constant) and key.consumer not in own and (source, entry) not in known:
            known.add((source, entry))
            total += _stored(_Layer(key, entry, source[0], values[key.tensor], None))
    for value in tensors:
        behind = [node for node, _ in value.uses() if query.is_op(node, "Transpose")]
        uses = len(value.uses()) - len(behind) + sum(len(node.outputs[0].uses()) for node in behind)
        if value.const_value is not None and uses > readers[value.name or ""]:
            total += value.const_value.nbytes
    return total


def _stored(layer: _Layer) -> float:
    """Return the bytes of a weight as its entry of the plan says."""
    grain, bits = layer.entry.scheme.granularity, layer.entry.scheme.qtype.bits
    if isinstance(grain, PerBlock):
        return _bytes(layer, _Width(bits, grain.size), bits, bits)
    return weight_array(layer.value).size * bits / 8


def _order(width: _Width) -> tuple[int, int]:
    return width.bits, -width.block


def _wider(base: _Width) -> Iterator[_Width]:
    """Yield the base bits in larger blocks, which cost fewer scales."""
    if base.block * 2 <= _LARGEST_BLOCK:
        yield replace(base, block=base.block * 2)


def _layers(planned: Planned, inputs: Mapping[Key, Array]) -> Iterator[_Layer]:
    """Yield the layers that have the recipe's own width; those with settings of their own keep them.

    Layers that read one weight alike are one.
    """
    found: dict[object, _Layer] = {}
    scheme = planned.recipe.weights
    values = {value.name: value for node in query.nodes(planned.model) for value in node.inputs if value}
    size = scheme.granularity.size if isinstance(scheme.granularity, PerBlock) else 0
    for key, entry in planned.plan.entries.items():
        node = planned.plan.nodes.get(key.consumer or "")
        if (
            not isinstance(entry, Constant)
            or node is None
            or node.lowering in _OTHERS
            or node.op_type == "Gather"
        ):
            continue
        grain = entry.scheme.granularity
        same = entry.scheme.qtype.bits == scheme.qtype.bits and isinstance(grain, PerBlock)
        value = values[key.tensor]
        source = weight_of(value)
        if same and isinstance(grain, PerBlock) and grain.size == size and source is not None:
            layer = _Layer(key, entry, source[0], value, inputs.get(key))
            first = found.setdefault((source, entry), layer)
            found[source, entry] = replace(first, readers=(*first.readers, key.consumer or ""))
    yield from found.values()


def _priced(layer: _Layer, base: _Width, widths: Sequence[_Width], meter: _Meter) -> list[Priced]:
    """Return the bytes of a layer at each width, and how far predictions move with it."""
    rows = layer.rows()
    some = np.unique(np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int))
    part = np.ascontiguousarray(rows[some])
    errors = {width: layer.error(part, layer.rounded(part, width)) for width in widths}
    moved = max(meter.apart({layer.key: base}), 0.0)
    return [
        Priced(
            _bytes(layer, width, width.bits, width.bits),
            moved * errors[width] / errors[base] if errors[base] > 0 else 0.0,
        )
        for width in widths
    ]


def _bytes(layer: _Layer, width: _Width, bits: float, zero_bits: int) -> float:
    """Return the bytes of a weight: integers of so many bits, scales, and zero points where there are any."""
    rows, columns = layer.rows().shape
    blocks = math.ceil(columns / width.block)
    zero = 0 if layer.entry.scheme.symmetric else math.ceil(blocks * zero_bits / 8)
    scale = blocks * weight_array(layer.value).dtype.itemsize
    return float(rows * (math.ceil(columns / width.block) * width.block * bits / 8 + scale + zero))


def _by(
    planned: Planned,
    layers: Sequence[_Layer],
    chosen: Sequence[_Width],
    base: _Width,
    divergence: str,
) -> Planned:
    """Plan again with these widths, and note them."""
    options = planned.recipe.weight_only
    own = tuple(
        LayerWeights(reader, _kind(layer.entry.scheme, width.bits), width.block)
        for layer, width in zip(layers, chosen, strict=True)
        for reader in layer.readers
        if width != base
    )
    options = replace(options, layers=(*options.layers, *own), average_bits=None, size=None)
    counts = Counter(f"{width.bits} bits in blocks of {width.block}" for width in chosen)
    listed = ", ".join(f"{count} × {text}" for text, count in sorted(counts.items()))
    note = f"bits by sensitivity: {listed}; KL divergence on the samples {divergence}"
    return planned.by(planned.recipe.but(weight_only=options)).noting(note)


def _kind(scheme: Scheme, bits: int) -> Any:
    return qtype(f"{'int' if scheme.symmetric else 'uint'}{bits}")


class _Meter:
    """Runs a model with some of its weights rounded, and says how far its predictions have moved."""

    def __init__(self, model: ir.Model, layers: Sequence[_Layer], samples: Any) -> None:
        self.layers = {layer.key: layer for layer in layers}
        names = {layer.origin.name or "" for layer in layers}
        copy = model.clone()
        for name in names:
            value = copy.graph.initializers.pop(name)
            value.const_value = None
            copy.graph.inputs.append(value)
        self.output = _predictions(model)
        self.session = Session.open(copy)
        self.weights = {
            layer.origin.name or "": np.asarray(layer.origin.const_value.numpy())
            for layer in layers
            if layer.origin.const_value is not None
        }
        self.feeds: list[dict[str, Array]] = []
        self.expected: list[Array] = []
        seen = 0
        for feed in itertools.islice(iter(samples), _POSITIONS):
            answer = self._run(dict(feed), {})
            self.feeds.append(dict(feed))
            self.expected.append(answer)
            seen += len(answer)
            if seen >= _POSITIONS:
                break
        self.count = max(seen, 1)

    def _run(self, feed: Mapping[str, Array], changed: Mapping[str, Array]) -> Array:
        answer = self.session.run({**feed, **self.weights, **changed}, [self.output])[self.output]
        if not answer.ndim or not answer.size:
            raise RecipeError(
                f"Bits by sensitivity compare predictions, and the output {self.output!r} has the shape"
                f" {list(answer.shape)}; leave the bits out."
            )
        z = answer.reshape(-1, answer.shape[-1]).astype(np.float32)
        z = z - z.max(axis=1, keepdims=True)
        return np.asarray(z - np.log(np.exp(z).sum(axis=1, keepdims=True)))

    def apart(self, widths: Mapping[Key, _Width]) -> float:
        """Return the mean KL divergence of predictions with these layers rounded."""
        changed = {}
        for key, width in widths.items():
            layer = self.layers[key]
            changed[layer.origin.name or ""] = layer.stored(layer.rounded(layer.rows(), width))
        total = 0.0
        for feed, expected in zip(self.feeds, self.expected, strict=True):
            own = self._run(feed, changed)
            total += float((np.exp(expected) * (expected - own)).sum(dtype=np.float64))
        return total / self.count


def _predictions(model: ir.Model) -> str:
    """Return the output that holds predictions: logits by name, or the one with most classes."""
    outputs = [value for value in model.graph.outputs if query.is_float(value) and value.name]
    if not outputs:
        raise RecipeError("Bits by sensitivity compare predictions, and the model has no float output.")

    def classes(value: ir.Value) -> int:
        dims = query.shape(value) or ()
        return int(dims[-1] or 0) if dims else 0

    named = [value for value in outputs if "logits" in (value.name or "").lower()]
    return (named or [max(outputs, key=classes)])[0].name or ""
