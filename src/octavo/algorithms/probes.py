"""Probes: nodes behind the inputs of layers that find out, inside the runtime, what steps want to know.

They stand at the end of the graph for one pass over the data and are taken away again. A convolution's input
is unfolded into the vectors that its outputs sum over by a convolution with one 1 in each kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.algorithms.layers import Layer
from octavo.algorithms.replica import Replica, placed
from octavo.core.stats import Need
from octavo.model import query
from octavo.model.edit import Editor

PREFIX = "octavo/probe/"
WIDEST = 2400  # products; the Gram matrix of more is not computed
MOST = 1 << 29  # bytes of all Gram matrices together; the smallest are taken first
_PIXELS = 1024  # of a map; of a larger one some are taken
_PLACES = 4096  # likewise, for histograms


@dataclass(frozen=True)
class Classes:
    """A tensor, and channels of it that share a histogram; without channels all of it does."""

    value: ir.Value
    axis: int = 0
    channels: tuple[tuple[int, ...], ...] = ()


@dataclass
class Wishes:
    """What steps want to know; equal wishes are one."""

    moments: dict[str, tuple[Layer, bool]] = field(default_factory=dict)  # by layer; True: with Gram matrix
    channels: dict[str, tuple[ir.Value, int]] = field(default_factory=dict)  # by tensor; the channel axis
    classes: dict[str, Classes] = field(default_factory=dict)  # by tensor
    replicas: dict[str, Replica] = field(default_factory=dict)  # by name

    def moments_of(self, layers: Iterable[Layer], *, gram: bool) -> None:
        """Ask for what layers read."""
        for layer in layers:
            before = self.moments.get(layer.name)
            self.moments[layer.name] = (layer, gram or (before is not None and before[1]))

    def channels_of(self, value: ir.Value, axis: int) -> None:
        """Ask for the extremes of each channel of a tensor."""
        self.channels[value.name or ""] = (value, axis)

    def classes_of(self, classes: Classes) -> None:
        """Ask for histograms of a tensor."""
        self.classes[classes.value.name or ""] = classes

    def replicas_of(self, replicas: Iterable[Replica]) -> None:
        """Ask for the errors of copies of layers."""
        self.replicas.update((replica.name, replica) for replica in replicas)

    def __bool__(self) -> bool:
        return bool(self.moments or self.channels or self.classes or self.replicas)


@contextmanager
def probed(model: ir.Model, wishes: Wishes) -> Iterator[dict[str, Need]]:
    """The model with nodes that find out what is wished for, and the needs; afterwards it is as before."""
    probes = _Probes(model)
    try:
        affordable = _affordable(wishes)
        for layer, _ in wishes.moments.values():
            probes.moments(layer, names_of(layer)["gram"] in affordable)
        for value, axis in wishes.channels.values():
            probes.channels(value, axis)
        for classes in wishes.classes.values():
            probes.classes(classes)
        for replica in wishes.replicas.values():
            placed(replica, probes, PREFIX)
        yield probes.needs
    finally:
        probes.remove()


def names_of(layer: Layer) -> dict[str, str]:
    """What the probes of a layer are called; layers that read the same in the same way share them."""
    node, source = layer.node, layer.x.name
    how = ""
    if layer.is_conv:
        shape = [layer.groups, *layer.kernel]
        for key in ("strides", "pads", "dilations", "auto_pad"):
            shape.append(query.attribute(node, key, ""))
        how = "/" + "_".join(str(part).replace(" ", "") for part in shape)
    return {part: f"{PREFIX}{source}{how}/{part}" for part in ("size", "sum", "square", "gram")}


def class_names(classes: Classes) -> list[str]:
    """What the histograms of a tensor are called."""
    return [f"{PREFIX}{classes.value.name}/class{i}" for i in range(max(len(classes.channels), 1))]


def _affordable(wishes: Wishes) -> set[str]:
    """The Gram matrices that are wished for and neither too large by themselves nor together."""
    sizes = {
        names_of(layer)["gram"]: 8 * layer.groups * layer.products**2
        for layer, gram in wishes.moments.values()
        if gram and layer.products <= WIDEST
    }
    found: set[str] = set()
    left = MOST
    for name in sorted(sizes, key=sizes.__getitem__):
        left -= sizes[name]
        if left < 0:
            break
        found.add(name)
    return found


class _Probes:
    """Nodes at the end of the main graph that are taken away again."""

    def __init__(self, model: ir.Model) -> None:
        self.model, self.editor = model, Editor(model)
        self.nodes: list[ir.Node] = []
        self.needs: dict[str, Need] = {}
        self._known: dict[str, ir.Value] = {}

    def remove(self) -> None:
        """Take all of it away."""
        self.editor.remove(reversed(self.nodes))

    def moments(self, layer: Layer, gram: bool) -> None:
        """Sums over what a layer reads."""
        names = names_of(layer)
        if names["sum"] not in self.needs:
            x = self._vectors(layer, names["sum"])
            self.note(names["sum"], "ReduceSum", [x, self._axes(0, 3)], {"keepdims": 0})
            size = self.node("Size", [x], dtype=ir.DataType.INT64)
            self.note(names["size"], "Cast", [size], {"to": int(ir.DataType.FLOAT)})
        x = self._known[names["sum"]]
        if gram and names["gram"] not in self.needs:
            turned = self.node("Transpose", [x], {"perm": [0, 1, 3, 2]})
            product = self.node("MatMul", [x, turned])
            self.note(names["gram"], "ReduceSum", [product, self._axes(0)], {"keepdims": 0})
        elif not gram and names["square"] not in self.needs and names["gram"] not in self.needs:
            squares = self.node("Mul", [x, x])
            self.note(names["square"], "ReduceSum", [squares, self._axes(0, 3)], {"keepdims": 0})

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
        names, value = class_names(classes), self._thinned(classes.value)
        if query.element_type(classes.value) != ir.DataType.FLOAT:
            value = self.node("Cast", [value], {"to": int(ir.DataType.FLOAT)})
        power = self.node("ReduceMean", [self.node("Mul", [value, value])], {"keepdims": 0})
        power = self.node("Reshape", [power, self._shape(1)])
        for name, channels in zip(names, classes.channels or ((),), strict=True):
            part = value
            if len(names) > 1:
                part = self.node("Gather", [value, self._shape(*channels)], {"axis": classes.axis})
            row = self.node("Reshape", [part, self._shape(-1)])
            self.note(name, "Concat", [power, row], {"axis": 0}, Need(loudness=True))

    def _thinned(self, value: ir.Value) -> ir.Value:
        """Some places of a large map ``[N, C, H, W]``, as ``[N, C, place]``."""
        dims = query.shape(value)
        if dims is None or len(dims) < 4 or not all(isinstance(d, int) for d in dims[2:]):
            return value
        step = int(np.prod([d for d in dims[2:] if d is not None])) // _PLACES
        if step < 2:
            return value
        return self._every(self.node("Reshape", [value, self._shape(0, 0, -1)]), 2, step | 1)

    def _every(self, value: ir.Value, axis: int, step: int) -> ir.Value:
        """Every so many-th entry along an axis."""
        bounds = (0, np.iinfo(np.int64).max, axis, step)
        return self.node("Slice", [value, *(self._shape(bound) for bound in bounds)])

    def _reduction(self, value: ir.Value, axes: list[int]) -> tuple[list[ir.Value], dict[str, object]]:
        """From opset 18 on the axes of a minimum are an input."""
        if query.opset(self.model) >= 18:
            return [value, self._axes(*axes)], {"keepdims": 0}
        return [value], {"keepdims": 0, "axes": axes}

    def _vectors(self, layer: Layer, slot: str) -> ir.Value:
        """The layer's input as ``[N, group, product, place]``."""
        if not layer.is_conv:
            rows = self.node("Reshape", [layer.x, self._shape(1, 1, -1, layer.inputs)])
            found = self.node("Transpose", [rows], {"perm": [0, 1, 3, 2]})
        else:
            x = layer.x if _is_plain(layer) else self._unfolded(layer)
            found = self.node("Reshape", [x, self._shape(0, layer.groups, layer.products, -1)])
            step = _step(layer)
            if step > 1:
                found = self._every(found, 3, step)
        self._known[slot] = found
        return found

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
        dtype: ir.DataType = ir.DataType.FLOAT,
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


def _is_plain(layer: Layer) -> bool:
    """Whether a convolution's outputs each read one place."""
    strides = query.attribute(layer.node, "strides", ()) or ()
    return not layer.padded and all(k == 1 for k in layer.kernel) and all(s == 1 for s in strides)


def _step(layer: Layer) -> int:
    """Every so many-th place of a large map; odd, so that no column is preferred."""
    dims = query.static_shape(layer.node.outputs[0])
    places = int(np.prod(dims[2:])) if dims is not None else 0
    return max(places // _PIXELS, 1) | 1
