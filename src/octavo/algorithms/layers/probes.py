"""Probes: nodes that compute, inside the runtime, the statistics that steps request.

They are appended to the graph for one pass over the data and removed again. For Gram matrices a convolution's
input is unfolded into the vectors that its outputs sum over, by a convolution with a single 1 in each kernel;
sums alone are products with matrices (:mod:`.conv_taps`). Averages over the positions of feature maps come
from some samples (:attr:`Request.some_samples <octavo.core.requests.Request>`), Gram matrices and extremes
from all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers.branch_outputs import BranchOutputs
from octavo.algorithms.layers.conv_taps import ConvTaps, conv_taps
from octavo.algorithms.layers.layer import Layer
from octavo.algorithms.layers.replica import add_replica
from octavo.algorithms.layers.statistics_requests import (
    PREFIX,
    ChannelClasses,
    StatisticsRequests,
    histogram_names,
    moment_names,
)
from octavo.calibration.observe.sampling import lattices
from octavo.core.requests import MagnitudeHistograms, Request
from octavo.model.graph import query
from octavo.model.graph.edit import Editor

_POSITIONS = 1024  # of a feature map that enter a Gram matrix; of a larger map a part is taken
_FLOAT = ir.DataType.FLOAT


@contextmanager
def probed(model: ir.Model, requested: StatisticsRequests) -> Iterator[dict[str, Request]]:
    """Add nodes to a model that compute statistics, and yield what to record; afterwards remove them."""
    probes = Probes(model)
    try:
        layers = [layer for layer, _ in requested.moments.values()]
        affordable = requested.affordable_grams()
        for layer in layers:
            if moment_names(layer)["gram"] in affordable:
                probes.gram(layer)
        for layer in layers:
            probes.moments(layer)
        for layer in requested.sampled_moments.values():
            probes.moments(layer, sampled=True)
        for value, axes in requested.extremes.values():
            probes.extremes(value, axes)
        for classes in requested.histograms.values():
            probes.histograms(classes)
        for replica in requested.replicas.values():
            add_replica(replica, probes, PREFIX)
        yield probes.requests
    finally:
        probes.remove()


class Probes:
    """Nodes at the end of the main graph or a branch, and the statistics that their results are."""

    def __init__(self, model: ir.Model) -> None:
        self.model, self.editor = model, Editor(model)
        self._lattices = lattices(model)
        self._has_fixed_sizes = all(_has_fixed_size(value) for value in model.graph.inputs)
        self._branches = BranchOutputs(self.editor)
        self._graph = model.graph  # where nodes go
        self.nodes: list[ir.Node] = []
        self.requests: dict[str, Request] = {}
        self._columns: dict[ir.Value, ir.Value] = {}
        self._squares: dict[ir.Value, ir.Value] = {}

    def remove(self) -> None:
        """Remove all nodes that were added."""
        self._branches.remove()
        self.editor.remove(reversed(self.nodes))

    def gram(self, layer: Layer) -> None:
        """Sum what a layer reads, and its products with each other."""
        names = moment_names(layer)
        if names["gram"] in self.requests:
            return
        x = self._vectors(layer)
        self._summed(x, names["sum"], (layer.groups, layer.products))
        self._counted(x, names["size"])
        product = self.node("MatMul", [x, self.node("Transpose", [x], {"perm": [0, 1, 3, 2]})])
        shape = (layer.groups, layer.products, layer.products)
        self.probe(names["gram"], "ReduceSum", [product, self._axes(0)], {"keepdims": 0}, shape=shape)
        self._graph = self.model.graph

    def moments(self, layer: Layer, *, sampled: bool = False) -> None:
        """Sum what a layer reads, and its squares, unless its Gram matrix is computed.

        ``sampled``: from some samples, whatever else is known of the layer.
        """
        names = moment_names(layer, sampled=sampled)
        if names["sum"] in self.requests:
            return
        taps = conv_taps(layer) if self._has_fixed_sizes and not layer.is_pointwise else None
        if taps is not None:
            self._summed_by_taps(layer.x, taps, names)
            return
        x, request = self._vectors(layer), Request(sums=True, some_samples=sampled or layer.is_conv)
        shape = (layer.groups, layer.products)
        self._summed(x, names["sum"], shape, request)
        self._summed(self._squared(x), names["square"], shape, request)
        self._counted(x, names["size"], request)
        self._graph = self.model.graph

    def _summed(
        self, vectors: ir.Value, name: str, shape: tuple[int, ...], request: Request | None = None
    ) -> None:
        self.probe(name, "ReduceSum", [vectors, self._axes(0, 3)], {"keepdims": 0}, request, shape=shape)

    def _counted(self, x: ir.Value, name: str, request: Request | None = None, share: float = 1.0) -> None:
        """Count the numbers that the sums are over: a share of the elements of a tensor."""
        size = self.node("Cast", [self.node("Size", [x], dtype=ir.DataType.INT64)], {"to": int(_FLOAT)})
        self.probe(name, "Mul", [size, self._matrix(np.array(share))], {}, request)

    def _summed_by_taps(self, x: ir.Value, taps: ConvTaps, names: Mapping[str, str]) -> None:
        """Sum what each tap of a kernel reads; squares are a share of the channel's, which is cheaper."""
        request = Request(sums=True, some_samples=True)
        *first, last = taps.axes
        summed = self.node("MatMul", [x, self._matrix(last.T)])
        batch = self._axes(0)  # it may be empty, which a product from the left would not take
        if first:
            summed = self.node("ReduceSum", [summed, batch], {"keepdims": 0})
            self.probe(names["sum"], "MatMul", [self._matrix(first[0]), summed], {}, request)
        else:
            self.probe(names["sum"], "ReduceSum", [summed, batch], {"keepdims": 0}, request)
        operands, attributes = self._reduction(x, [0, *(2 + axis for axis in range(len(taps.axes)))])
        squares = self.node("ReduceSumSquare", operands, attributes)
        squares = self.node("Reshape", [squares, self._shape(-1, 1)])
        self.probe(names["square"], "Mul", [squares, self._matrix(taps.shares[None])], {}, request)
        self._counted(x, names["size"], request, taps.outputs * taps.taps / taps.positions)

    def extremes(self, value: ir.Value, axes: tuple[int, ...]) -> None:
        """Find minimum and maximum of each channel, in a row."""
        rank = query.rank(value)
        if rank is None:
            return
        others = [i for i in range(rank) if i not in {axis % rank for axis in axes}]
        for part, op in (("low", "ReduceMin"), ("high", "ReduceMax")):
            name = f"{PREFIX}{value.name}/{part}"
            if name in self.requests:
                continue
            operands, attributes = self._reduction(value, others)
            if len(axes) > 1:
                operands, attributes = [self.node(op, operands, attributes), self._shape(-1)], {}
            self.probe(name, "Reshape" if len(axes) > 1 else op, operands, attributes, Request(channels=0))

    def histograms(self, classes: ChannelClasses) -> None:
        """Give each class of channels histograms, separate by the magnitude of all channels."""
        names, axis, value = histogram_names(classes), classes.axis, classes.value
        if query.element_type(value) != _FLOAT:
            value = self.node("Cast", [value], {"to": int(_FLOAT)})
        value = self._thinned(value, classes)
        channels_last = sum(map(len, classes.channels))  # after a pooling a layer may read other channels
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
            request = Request(MagnitudeHistograms(), some_samples=True)
            self.probe(name, "Concat", [power, row], {"axis": 0}, request)

    def _thinned(self, value: ir.Value, classes: ChannelClasses) -> ir.Value:
        """Take some positions of a large feature map; pooling does that in any memory layout."""
        step = self._lattices.get(classes.value.name or "", 1)
        if step == 1 or (classes.channels and classes.axis != 1):
            return value
        window: dict[str, object] = {"kernel_shape": [1, 1], "strides": [step, step]}
        return self.node("MaxPool", [value], window)

    def _every(self, value: ir.Value, axis: int, step: int) -> ir.Value:
        """Take every ``step``-th entry along an axis."""
        bounds = (0, np.iinfo(np.int64).max, axis, step)
        return self.node("Slice", [value, *(self._shape(bound) for bound in bounds)])

    def _reduction(self, value: ir.Value, axes: list[int]) -> tuple[list[ir.Value], dict[str, object]]:
        """Return operands and attributes of a reduction, whose axes are an input from opset 18 on."""
        if query.opset(self.model) >= 18:
            return [value, self._axes(*axes)], {"keepdims": 0}
        return [value], {"keepdims": 0, "axes": axes}

    def _vectors(self, layer: Layer) -> ir.Value:
        """Return the layer's input as ``[N, group, product, position]``; nodes go to the same graph."""
        self._graph = layer.x.graph or self.model.graph
        if not layer.is_conv:
            return self._in_columns(layer.x, layer.inputs)
        x = layer.x if layer.is_pointwise else self._unfolded(layer)
        found = self.node("Reshape", [x, self._shape(0, layer.groups, layer.products, -1)])
        step = _step(layer)
        return self._every(found, 3, step) if step > 1 else found

    def _in_columns(self, x: ir.Value, channels: int) -> ir.Value:
        """Return a tensor with channels last as ``[1, 1, channel, position]``, each channel contiguous."""
        if x not in self._columns:
            wide = (
                x if query.element_type(x) in (None, _FLOAT) else self.node("Cast", [x], {"to": int(_FLOAT)})
            )
            rows = self.node("Reshape", [wide, self._shape(1, 1, -1, channels)])
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

    def probe(
        self,
        name: str,
        op: str,
        operands: Sequence[ir.Value | None],
        attributes: dict[str, object],
        request: Request | None = None,
        *,
        shape: tuple[int, ...] = (),
    ) -> None:
        """Add a node whose result is a statistic: without a request, its sum over all samples.

        In a branch the result has to be a sum of this shape.
        """
        is_inner = self._graph is not self.model.graph
        made = self.node(op, operands, attributes, output=f"{name}/inner" if is_inner else name)
        if is_inner:
            made = self._branches.lead_out(made, self._graph, shape, name)
        self.requests[made.name or name] = request or Request(sums=True)

    def node(
        self,
        op: str,
        operands: Sequence[ir.Value | None],
        attributes: dict[str, object] | None = None,
        *,
        output: str | None = None,
        dtype: ir.DataType = _FLOAT,
    ) -> ir.Value:
        """Add a node and return its result."""
        output = output or f"{PREFIX}{op}"
        node = self.editor.node(op, operands, attributes, name=output, output=output, dtype=dtype)
        self._graph.append(node)
        self.nodes.append(node)
        return node.outputs[0]

    def _shape(self, *numbers: int) -> ir.Value:
        return self.editor.constant(f"{PREFIX}numbers", np.array(numbers, np.int64))

    _axes = _shape

    def _matrix(self, numbers: npt.NDArray[Any]) -> ir.Value:
        return self.editor.constant(f"{PREFIX}numbers", np.array(numbers, np.float32, order="C"))


def _has_fixed_size(value: ir.Value) -> bool:
    """Return whether an input has one size but for batches: then the sizes of feature maps are true."""
    dims = query.shape(value)
    return dims is not None and None not in dims[1:]


def _step(layer: Layer) -> int:
    """Return the stride over positions of a large feature map; odd, so that no column is preferred."""
    dims = query.static_shape(layer.node.outputs[0])
    positions = int(np.prod(dims[2:])) if dims is not None else 0
    return max(positions // _POSITIONS, 1) | 1
