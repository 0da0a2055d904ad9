"""Probes: nodes behind the inputs of layers that find out, inside the runtime, what steps want to know.

They stand at the end of the graph for one pass over the data and are taken away again. For products with each
other a convolution's input is unfolded into the vectors that its outputs sum over, by a convolution with one
1 in each kernel; sums alone are products with matrices (:mod:`.reach`). Averages over the places of maps come
from some samples (:attr:`Need.some <octavo.core.stats.Need>`), Gram matrices and extremes from all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers import Layer
from octavo.algorithms.reach import Reach, reach_of
from octavo.algorithms.replica import placed
from octavo.algorithms.wishes import PREFIX, Classes, Wishes, class_names, grams, names_of
from octavo.calibration.sampling import lattices
from octavo.core.stats import Need
from octavo.model import query
from octavo.model.edit import Editor

_PIXELS = 1024  # of a map; of a larger one some are taken
_FLOAT = ir.DataType.FLOAT


@contextmanager
def probed(model: ir.Model, wishes: Wishes) -> Iterator[dict[str, Need]]:
    """The model with nodes that find out what is wished for, and the needs; afterwards it is as before."""
    probes = _Probes(model)
    try:
        layers = [layer for layer, _ in wishes.moments.values()]
        affordable = grams(wishes)
        for layer in layers:
            if names_of(layer)["gram"] in affordable:
                probes.gram(layer)
        for layer in layers:
            probes.moments(layer)
        for layer in wishes.apart.values():
            probes.moments(layer, apart=True)
        for value, axis in wishes.channels.values():
            probes.channels(value, axis)
        for classes in wishes.classes.values():
            probes.classes(classes)
        for replica in wishes.replicas.values():
            placed(replica, probes, PREFIX)
        yield probes.needs
    finally:
        probes.remove()


class _Probes:
    """Nodes at the end of the main graph that are taken away again."""

    def __init__(self, model: ir.Model) -> None:
        self.model, self.editor = model, Editor(model)
        self._lattices = lattices(model)
        self._is_sized = all(_is_sized(value) for value in model.graph.inputs)
        self.nodes: list[ir.Node] = []
        self.needs: dict[str, Need] = {}
        self._columns: dict[ir.Value, ir.Value] = {}
        self._squares: dict[ir.Value, ir.Value] = {}

    def remove(self) -> None:
        """Take all of it away."""
        self.editor.remove(reversed(self.nodes))

    def gram(self, layer: Layer) -> None:
        """Sums over what a layer reads, and over its products with each other."""
        names = names_of(layer)
        if names["gram"] in self.needs:
            return
        x = self._vectors(layer)
        self._summed(x, names["sum"])
        self._counted(x, names["size"])
        product = self.node("MatMul", [x, self.node("Transpose", [x], {"perm": [0, 1, 3, 2]})])
        self.note(names["gram"], "ReduceSum", [product, self._axes(0)], {"keepdims": 0})

    def moments(self, layer: Layer, *, apart: bool = False) -> None:
        """Sums over what a layer reads, and over its squares, where they are not known from its products.

        ``apart``: from some samples and by themselves, whatever else is known of the layer.
        """
        names = names_of(layer, apart=apart)
        if names["sum"] in self.needs:
            return
        reach = reach_of(layer) if self._is_sized and not _is_plain(layer) else None
        if reach is not None:
            self._swept(layer.x, reach, names)
            return
        x, need = self._vectors(layer), Need(totals=True, some=apart or layer.is_conv)
        self._summed(x, names["sum"], need)
        self._summed(self._squared(x), names["square"], need)
        self._counted(x, names["size"], need)

    def _summed(self, vectors: ir.Value, name: str, need: Need | None = None) -> None:
        self.note(name, "ReduceSum", [vectors, self._axes(0, 3)], {"keepdims": 0}, need)

    def _counted(self, x: ir.Value, name: str, need: Need | None = None, share: float = 1.0) -> None:
        """How many numbers the sums are over, all together: a share of those of a tensor."""
        size = self.node("Cast", [self.node("Size", [x], dtype=ir.DataType.INT64)], {"to": int(_FLOAT)})
        self.note(name, "Mul", [size, self._matrix(np.array(share))], {}, need)

    def _swept(self, x: ir.Value, reach: Reach, names: Mapping[str, str]) -> None:
        """Sums over what each tap of a kernel reads of a map; of squares, a share of those of the channel."""
        need = Need(totals=True, some=True)
        *first, last = reach.axes
        swept = self.node("MatMul", [x, self._matrix(last.T)])
        pictures = self._axes(0)  # there may be none at all, which a product from the left would not take
        if first:
            swept = self.node("ReduceSum", [swept, pictures], {"keepdims": 0})
            self.note(names["sum"], "MatMul", [self._matrix(first[0]), swept], {}, need)
        else:
            self.note(names["sum"], "ReduceSum", [swept, pictures], {"keepdims": 0}, need)
        operands, attributes = self._reduction(x, [0, *(2 + axis for axis in range(len(reach.axes)))])
        squares = self.node("ReduceSumSquare", operands, attributes)
        squares = self.node("Reshape", [squares, self._shape(-1, 1)])
        self.note(names["square"], "Mul", [squares, self._matrix(reach.shares[None])], {}, need)
        self._counted(x, names["size"], need, reach.outputs * reach.taps / reach.places)

    def channels(self, value: ir.Value, axis: int) -> None:
        """The extremes of each channel."""
        rank = query.rank(value)
        if rank is None:
            return
        others = [i for i in range(rank) if i != axis % rank]
        for part, op in (("low", "ReduceMin"), ("high", "ReduceMax")):
            name = f"{PREFIX}{value.name}/{part}"
            if name in self.needs:
                continue
            operands, attributes = self._reduction(value, others)
            self.note(name, op, operands, attributes, Need(channels=0))

    def classes(self, classes: Classes) -> None:
        """Histograms of each class of channels, apart by the loudness of all channels."""
        names, axis, value = class_names(classes), classes.axis, classes.value
        if query.element_type(value) != _FLOAT:
            value = self.node("Cast", [value], {"to": int(_FLOAT)})
        value = self._thinned(value, classes)
        channels_last = sum(map(len, classes.channels))  # of a layer behind a pooling there may be others
        dims = query.shape(classes.value) or (None,)
        if len(names) > 1 and axis in (-1, len(dims) - 1) and dims[-1] == channels_last:
            value, axis = self._in_columns(value, channels_last), 2
        power = self.node("ReduceMean", [self._squared(value)], {"keepdims": 0})
        power = self.node("Reshape", [power, self._shape(1)])
        for name, channels in zip(names, classes.channels or ((),), strict=True):
            part = value
            if len(names) > 1:
                part = self.node("Gather", [value, self._shape(*channels)], {"axis": axis})
            row = self.node("Reshape", [part, self._shape(-1)])
            self.note(name, "Concat", [power, row], {"axis": 0}, Need(loudness=True, some=True))

    def _thinned(self, value: ir.Value, classes: Classes) -> ir.Value:
        """Some places of a large map, which has its channels on axis 1; pooling takes any layout as it is."""
        step = self._lattices.get(classes.value.name or "", 1)
        if step == 1 or (classes.channels and classes.axis != 1):
            return value
        window: dict[str, object] = {"kernel_shape": [1, 1], "strides": [step, step]}
        return self.node("MaxPool", [value], window)

    def _every(self, value: ir.Value, axis: int, step: int) -> ir.Value:
        """Every so many-th entry along an axis."""
        bounds = (0, np.iinfo(np.int64).max, axis, step)
        return self.node("Slice", [value, *(self._shape(bound) for bound in bounds)])

    def _reduction(self, value: ir.Value, axes: list[int]) -> tuple[list[ir.Value], dict[str, object]]:
        """From opset 18 on the axes of a minimum are an input."""
        if query.opset(self.model) >= 18:
            return [value, self._axes(*axes)], {"keepdims": 0}
        return [value], {"keepdims": 0, "axes": axes}

    def _vectors(self, layer: Layer) -> ir.Value:
        """The layer's input as ``[N, group, product, place]``."""
        if not layer.is_conv:
            return self._in_columns(layer.x, layer.inputs)
        x = layer.x if _is_plain(layer) else self._unfolded(layer)
        found = self.node("Reshape", [x, self._shape(0, layer.groups, layer.products, -1)])
        step = _step(layer)
        return self._every(found, 3, step) if step > 1 else found

    def _in_columns(self, x: ir.Value, channels: int) -> ir.Value:
        """A tensor with its channels last as ``[1, 1, channel, place]``: those of a channel lie together."""
        if x not in self._columns:
            rows = self.node("Reshape", [x, self._shape(1, 1, -1, channels)])
            self._columns[x] = self.node("Transpose", [rows], {"perm": [0, 1, 3, 2]})
        return self._columns[x]

    def _squared(self, x: ir.Value) -> ir.Value:
        if x not in self._squares:
            self._squares[x] = self.node("Mul", [x, x])
        return self._squares[x]

    def _unfolded(self, layer: Layer) -> ir.Value:
        taps = int(np.prod(layer.kernel))
        one_hot = np.eye(taps, dtype=np.float32).reshape(taps, 1, *layer.kernel)
        kernel = self.editor.constant(
            f"{PREFIX}kernel", np.tile(one_hot, (layer.inputs,) + (1,) * (one_hot.ndim - 1))
        )
        keep = {
            key: layer.node.attributes[key].value
            for key in ("strides", "pads", "dilations", "auto_pad", "kernel_shape")
            if key in layer.node.attributes
        }
        return self.node("Conv", [layer.x, kernel], {**keep, "group": layer.inputs})

    def note(
        self,
        name: str,
        op: str,
        operands: Sequence[ir.Value | None],
        attributes: dict[str, object],
        need: Need | None = None,
    ) -> None:
        """Add a node whose result is wanted; without a need its sum over all samples is."""
        made = self.node(op, operands, attributes, output=name)
        self.needs[made.name or name] = need or Need(totals=True)

    def node(
        self,
        op: str,
        operands: Sequence[ir.Value | None],
        attributes: dict[str, object] | None = None,
        *,
        output: str | None = None,
        dtype: ir.DataType = _FLOAT,
    ) -> ir.Value:
        """Add a node, and give its result."""
        output = output or f"{PREFIX}{op}"
        node = self.editor.node(op, operands, attributes, name=output, output=output, dtype=dtype)
        self.model.graph.append(node)
        self.nodes.append(node)
        return node.outputs[0]

    def _shape(self, *numbers: int) -> ir.Value:
        return self.editor.constant(f"{PREFIX}numbers", np.array(numbers, np.int64))

    _axes = _shape

    def _matrix(self, numbers: npt.NDArray[Any]) -> ir.Value:
        return self.editor.constant(f"{PREFIX}numbers", np.array(numbers, np.float32, order="C"))


def _is_sized(value: ir.Value) -> bool:
    """Whether an input has one size only, batches aside: then what is said of the sizes of maps is true."""
    dims = query.shape(value)
    return dims is not None and None not in dims[1:]


def _is_plain(layer: Layer) -> bool:
    """Whether a convolution's outputs each read one place."""
    strides = query.attribute(layer.node, "strides", ()) or ()
    return not layer.padded and all(k == 1 for k in layer.kernel) and all(s == 1 for s in strides)


def _step(layer: Layer) -> int:
    """Every so many-th place of a large map; odd, so that no column is preferred."""
    dims = query.static_shape(layer.node.outputs[0])
    places = int(np.prod(dims[2:])) if dims is not None else 0
    return max(places // _PIXELS, 1) | 1
