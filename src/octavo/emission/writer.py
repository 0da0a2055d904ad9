"""What all styles share: constants for scales and zero points, quantized weights, and where new nodes go.

Nothing is decided here. Weights are quantized when their bytes are asked for, so that a model of many
gigabytes passes through one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.core import kernels
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.plan import Constant, Fixed, Key, Plan
from octavo.core.qparams import QParams
from octavo.core.qtypes import QType
from octavo.emission import names
from octavo.errors import TableError
from octavo.model.edit import Editor
from octavo.planning.candidates import weight_of
from octavo.planning.resolve import Params, stored_granularity, weight_array

_KEEP = 64 << 20  # bytes; smaller quantized weights stay in memory once computed


class Writer:
    """Edits one model by one plan; the model is changed in place."""

    def __init__(self, model: ir.Model, plan: Plan, params: Params) -> None:
        self.model, self.plan, self.params = model, plan, params
        self.editor = Editor(model)
        self.nodes = {node.name or "": node for node in model.graph.all_nodes()}
        self._weights: dict[tuple[str, int, str], ir.Value] = {}
        self._by_params: dict[int, tuple[ir.Value, ir.Value]] = {}
        self._absorb()
        self.values = self._named()

    def _named(self) -> dict[str, ir.Value]:
        found = {v.name or "": v for graph in self.model.graphs() for v in graph.inputs}
        found.update(self.model.graph.initializers)
        for node in self.model.graph.all_nodes():
            found.update((v.name or "", v) for v in node.outputs)
        return found

    def _absorb(self) -> None:
        """Remove the clamps whose effect the quantized ranges have; what fed them takes over their output."""
        for name in self.plan.absorbed:
            clamp = self.nodes.get(name)
            if clamp is None or clamp.inputs[0] is None:
                raise TableError(f"The plan absorbs a node {name!r} that this model does not have.")
            self.editor.take_over(clamp.inputs[0], clamp.outputs[0])
            self.editor.remove([clamp])
            del self.nodes[name]

    # ---- parameters as constants

    def scale_and_zero(self, params: QParams, name: str) -> tuple[ir.Value, ir.Value]:
        """Initializers that hold scale and zero point; made once for the same parameters."""
        known = self._by_params.get(id(params))
        if known is None:
            zero = self.constant(name + names.ZERO_POINT, params.zero_point, params.qtype)
            scale = self.constant(name + names.SCALE, params.scale)
            known = self._by_params[id(params)] = (scale, zero)
        return known

    def constant(self, name: str, content: Any, qtype: QType | None = None) -> ir.Value:
        """A new initializer; of a quantized type where one is given."""
        dtype = ir.DataType(qtype.onnx) if qtype is not None else None
        return self.editor.constant(name, np.asarray(content), dtype)

    # ---- weights

    def quantized_weight(self, key: Key, *, layout: tuple[int, ...] | None = None) -> ir.Value:
        """The integer initializer of a weight or bias; one for all readers that have the same parameters.

        ``layout`` is a permutation that the integers are stored in (kernels that want another order).
        """
        value, params = self.values[key.tensor], self.params[key]
        source = weight_of(value)
        if source is None:
            raise TableError(f"The plan quantizes {key.tensor!r} as a constant, which it is not in this model.")
        origin, perm = source
        slot = (origin.name or "", self._identity(params), f"{perm}{layout}")
        same = self._weights.get(slot)
        if same is None:
            tensor = self._lazy(origin, params, perm, self._limits(key), layout)
            name = self.editor.values.claim((origin.name or "") + names.QUANTIZED)
            same = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor)
            tensor.name = name
            self.model.graph.initializers.add(same)
            self._weights[slot] = same
        if perm is None or layout is not None:
            return same
        return self._transposed(same, perm, key)

    def _identity(self, params: QParams) -> int:
        return hash((params.qtype.name, str(params.granularity), params.scale.tobytes(), params.zero_point.tobytes()))

    def _limits(self, key: Key) -> tuple[int, int] | None:
        entry = self.plan.entries[key]
        match entry:
            case Constant(scheme) | Fixed(scheme) if not scheme.qtype.is_float:
                return scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
            case _:
                return None

    def _lazy(
        self,
        origin: ir.Value,
        params: QParams,
        perm: tuple[int, ...] | None,
        limits: tuple[int, int] | None,
        layout: tuple[int, ...] | None,
    ) -> ir.TensorProtocol:
        stored = QParams(params.scale, params.zero_point, params.qtype, stored_granularity(params, perm))
        source = origin.const_value

        def compute() -> ir.TensorProtocol:
            content = np.asarray(source.numpy()) if source is not None else weight_array(origin)
            whole = kernels.quantize(content, stored, limits=limits)
            if layout is not None:
                whole = np.ascontiguousarray(whole.transpose(layout))
            return ir.Tensor(whole, dtype=ir.DataType(params.qtype.onnx))

        shape = tuple(int(d) for d in (source.shape.numpy() if source is not None else ()))
        if layout is not None:
            shape = tuple(shape[i] for i in layout)
        small = int(np.prod(shape, dtype=np.int64)) < _KEEP
        return ir.LazyTensor(compute, dtype=ir.DataType(params.qtype.onnx), shape=ir.Shape(shape), cache=small)

    def _transposed(self, stored: ir.Value, perm: tuple[int, ...], key: Key) -> ir.Value:
        """Integers of a tied weight, turned as its reader wants them; the runtime folds this when it loads."""
        slot = ("transposed " + (stored.name or ""), 0, str(perm))
        if slot not in self._weights:
            name = key.tensor + names.QUANTIZED
            node = self.editor.node("Transpose", [stored], {"perm": list(perm)}, name=name, output=name, dtype=stored.dtype)
            self.at_start([node])
            self._weights[slot] = node.outputs[0]
        return self._weights[slot]

    # ---- places

    def after(self, value: ir.Value, new: Sequence[ir.Node]) -> None:
        """Put nodes where a value has just been made."""
        producer = value.producer()
        if producer is not None and producer.graph is not None:
            producer.graph.insert_after(producer, new)
        else:
            graph = value.graph if value.graph is not None and value.is_graph_input() else self.model.graph
            _prepend(graph, new)

    def at_start(self, new: Sequence[ir.Node]) -> None:
        """Put nodes before all others."""
        _prepend(self.model.graph, new)

    # ---- single nodes

    def quantize(self, value: ir.Value, params: QParams, name: str, suffix: str = "") -> ir.Node:
        """A QuantizeLinear node behind a value; put nowhere yet."""
        scale, zero = self.scale_and_zero(params, name + suffix if suffix else name)
        return self.editor.node(
            "QuantizeLinear",
            [value, scale, zero],
            _axis(params.granularity),
            name=name + names.QUANTIZE + suffix,
            output=name + names.QUANTIZE + names.OUTPUT + suffix,
            dtype=ir.DataType(params.qtype.onnx),
        )

    def dequantize(self, value: ir.Value, params: QParams, name: str, suffix: str = "") -> ir.Node:
        """A DequantizeLinear node behind an integer value; put nowhere yet."""
        scale, zero = self.scale_and_zero(params, name + suffix if suffix else name)
        return self.editor.node(
            "DequantizeLinear",
            [value, scale, zero],
            _axis(params.granularity),
            name=name + names.DEQUANTIZE + suffix,
            output=name + names.DEQUANTIZE + names.OUTPUT + suffix,
            dtype=ir.DataType.FLOAT,
        )

    def replace_everywhere(self, old: ir.Value, new: ir.Value, *, keep: Sequence[ir.Node] = ()) -> None:
        """Let every reader but some see another value; a graph output keeps its name."""
        kept = set(keep)
        for node, index in tuple(old.uses()):
            if node not in kept:
                node.replace_input_with(index, new)
        if old.is_graph_output():
            self._output_instead(old, new)

    def _output_instead(self, old: ir.Value, new: ir.Value) -> None:
        graph = old.graph
        if graph is None:
            raise TableError(f"The output {old.name!r} belongs to no graph.")
        name = old.name or ""
        new.shape, new.type = old.shape, old.type
        for i, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[i] = new
        old.name = self.editor.values.claim(name + names.QUANTIZE + names.INPUT)
        new.name = name

    def drop_unused(self, values: Sequence[ir.Value]) -> None:
        """Remove float weights that nothing reads any more, with the nodes that only they fed."""
        todo = list(values)
        while todo:
            value = todo.pop()
            if value.uses() or value.is_graph_output():
                continue
            producer = value.producer()
            if producer is not None:
                if len(producer.outputs) == 1 and producer.graph is not None:
                    todo.extend(v for v in producer.inputs if v is not None)
                    self.editor.remove([producer])
            elif value.is_initializer() and value.name in self.model.graph.initializers:
                self.model.graph.initializers.pop(value.name)


def _axis(grain: Granularity) -> dict[str, int]:
    match grain:
        case PerTensor():
            return {}
        case PerChannel(axis):
            return {"axis": int(axis or 0)}
        case PerBlock(size, axis):
            return {"axis": int(axis or 0), "block_size": size}


def _prepend(graph: ir.Graph, new: Sequence[ir.Node]) -> None:
    if len(graph):
        graph.insert_before(graph[0], new)
    else:
        graph.extend(new)
