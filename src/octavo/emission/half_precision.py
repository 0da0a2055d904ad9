"""Writes 16-bit floats into a graph: weights that are stored in them, or nodes that compute in them.

A value that one side computes in 16 bits and the other reads in 32 gets one Cast, whoever reads it. Inputs
and outputs of the model keep their names, and their types unless the plan changes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from octavo.core.plan import HalfCompute, HalfStorage, Plan
from octavo.core.recipe import FloatType
from octavo.errors import TableError
from octavo.model.graph import query
from octavo.model.graph.edit import Editor, prepend
from octavo.model.graph.scopes import remove_unused
from octavo.ops.half_precision import half_slots
from octavo.planning.half_compute import MASK_VALUE
from octavo.planning.half_precision import DATA_TYPES, FLOAT, NUMPY_TYPES

_CAST = "_float16_cast"
_HALF = "_float16"


def write(model: ir.Model, plan: Plan) -> None:
    """Write the 16-bit floats of a plan, in place, after the style has written its nodes."""
    match plan.half:
        case HalfStorage() as half:
            _store(model, half)
        case HalfCompute() as half:
            _Computing(model, half).write()


def _store(model: ir.Model, half: HalfStorage) -> None:
    edit, casts = Editor(model), []
    for name in half.weights:
        value = model.graph.initializers.get(name)
        content = value.const_value if value is not None else None
        if value is None or content is None:
            raise TableError(
                f"The plan stores a weight {name!r} in {half.float_type.value} that this model does not have;"
                " make it again with 'octavo plan'."
            )
        cast = edit.node(
            "Cast", [value], {"to": int(FLOAT)}, name=name + _CAST, output=name + _CAST, dtype=FLOAT
        )
        cast.outputs[0].shape = value.shape
        for node, index in tuple(value.uses()):
            if node is not cast:
                node.replace_input_with(index, cast.outputs[0])
        value.const_value = _narrowed(content, name, half.float_type)
        value.type = ir.TensorType(DATA_TYPES[half.float_type])
        casts.append(cast)
    prepend(model.graph, casts)


def _narrowed(
    source: ir.TensorProtocol, name: str | None, float_type: FloatType, floor: float | None = None
) -> ir.TensorProtocol:
    """The content of a constant in the 16-bit type, converted when it is written."""

    def convert() -> ir.TensorProtocol:
        content = np.asarray(source.numpy())
        if floor is not None:
            content = np.maximum(content, np.float32(floor))
        return ir.Tensor(content.astype(NUMPY_TYPES[float_type]), dtype=DATA_TYPES[float_type])

    return ir.LazyTensor(
        convert, dtype=DATA_TYPES[float_type], shape=ir.Shape(source.shape.numpy()), name=name
    )


class _Computing:
    """Changes the types of nodes, and puts Casts where the types on both sides differ."""

    def __init__(self, model: ir.Model, half: HalfCompute) -> None:
        self.model, self.half, self.edit = model, half, Editor(model)
        self.dtype, self.opset = DATA_TYPES[half.float_type], query.opset(model)
        self.masks = frozenset(half.masks)
        self._down: dict[ir.Value, ir.Value] = {}

    def write(self) -> None:
        """Convert the nodes of the plan; those whose names are gone have become something else."""
        chosen = set(self.half.nodes)
        nodes = [node for node in query.nodes(self.model) if node.name in chosen]
        half_values = {value for node in nodes for value in self._given(node)}
        readings = [(node, index) for node in nodes for index in self._taken(node)]
        for value in half_values:
            value.type = ir.TensorType(self.dtype)
        for node in nodes:
            self._set_attributes(node)
        wanted = set(readings)
        for value in half_values:
            self._read_in_float(value, wanted)
        for node, index in readings:
            read = node.inputs[index]
            if read is not None and read not in half_values and query.element_type(read) is FLOAT:
                node.replace_input_with(index, self._in_half(read))
        if self.half.io:
            self._convert_ends()
        remove_unused(self.model)

    def _given(self, node: ir.Node) -> list[ir.Value]:
        slots = half_slots(node, self.opset, self.dtype)
        floats = [i for i, value in enumerate(node.outputs) if query.element_type(value) is FLOAT]
        return [node.outputs[i] for i in floats if slots is not None and slots.gives(i)]

    def _taken(self, node: ir.Node) -> list[int]:
        slots = half_slots(node, self.opset, self.dtype)
        floats = [i for i, value in enumerate(node.inputs) if query.element_type(value) is FLOAT]
        return [i for i in floats if slots is not None and slots.takes(i)]

    def _set_attributes(self, node: ir.Node) -> None:
        """Let attributes that name the type of the result follow it."""
        if query.is_op(node, "Cast") and node.outputs[0].dtype == self.dtype:
            node.attributes["to"] = ir.AttrInt64("to", int(self.dtype))
        tensor = query.attribute(node, "value")
        if query.is_op(node, "ConstantOfShape") and node.outputs[0].dtype == self.dtype:
            kind = NUMPY_TYPES[self.half.float_type]
            content = np.asarray(tensor.numpy() if tensor is not None else np.zeros(1, np.float32))
            node.attributes["value"] = ir.AttrTensor(
                "value", ir.Tensor(content.astype(kind), dtype=self.dtype)
            )

    def _read_in_float(self, value: ir.Value, in_half: set[tuple[ir.Node, int]]) -> None:
        """Put a Cast to float32 between a 16-bit value and those that read it in 32 bits."""
        others = [use for use in value.uses() if (use.node, use.idx) not in in_half]
        if not others and not value.is_graph_output():
            return
        if value.is_graph_output():
            self._behind_output(value, FLOAT, [use for use in value.uses() if (use.node, use.idx) in in_half])
            return
        name = f"{value.name}{_CAST}"
        cast = self._cast(value, FLOAT, name)
        for node, index in others:
            node.replace_input_with(index, cast.outputs[0])
        self._insert_behind(value, cast)

    def _behind_output(
        self, value: ir.Value, to: ir.DataType, readers: Sequence[tuple[ir.Node, int]]
    ) -> None:
        """Give the output's name to a Cast; these readers stay with the value itself."""
        name, producer = value.name or "", value.producer()
        outer, inner = (_CAST, _HALF) if to is FLOAT else (_HALF, _CAST)
        cast = self._cast(value, to, f"{name}{outer}")
        value.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
        for node, index in (*readers, (cast, 0)):
            node.replace_input_with(index, value)
        value.name = self.edit.values.claim(f"{name}{inner}")
        cast.outputs[0].name = name
        if producer is not None and producer.graph is not None:
            producer.graph.insert_after(producer, [cast])

    def _in_half(self, value: ir.Value) -> ir.Value:
        """Return the 16-bit copy of a float32 value; one for all its readers."""
        if value not in self._down:
            content = value.const_value if value.is_initializer() else None
            self._down[value] = (
                self._constant(value, content) if content is not None else self._cast_down(value)
            )
        return self._down[value]

    def _constant(self, value: ir.Value, content: ir.TensorProtocol) -> ir.Value:
        floor = MASK_VALUE if value.name in self.masks else None
        graph = value.graph if isinstance(value.graph, ir.Graph) else self.model.graph
        name = self.edit.values.claim(f"{value.name}{_HALF}")
        tensor = _narrowed(content, name, self.half.float_type, floor)
        copy = ir.Value(name=name, type=ir.TensorType(self.dtype), shape=value.shape, const_value=tensor)
        graph.initializers.add(copy)
        return copy

    def _cast_down(self, value: ir.Value) -> ir.Value:
        cast = self._cast(value, self.dtype, f"{value.name}{_HALF}")
        self._insert_behind(value, cast)
        return cast.outputs[0]

    def _cast(self, value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
        cast = self.edit.node("Cast", [value], {"to": int(to)}, name=name, output=name, dtype=to)
        cast.outputs[0].shape = value.shape
        return cast

    def _insert_behind(self, value: ir.Value, node: ir.Node) -> None:
        producer = value.producer()
        if producer is not None and producer.graph is not None:
            producer.graph.insert_after(producer, [node])
            return
        graph = value.graph if isinstance(value.graph, ir.Graph) else self.model.graph
        prepend(graph, [node])

    def _convert_ends(self) -> None:
        """Give the model's inputs and outputs the 16-bit type; idle Casts are removed later."""
        for value in list(self.model.graph.inputs):
            if query.element_type(value) is not FLOAT:
                continue
            down = self._down.get(value)
            value.type = ir.TensorType(self.dtype)
            others = [use for use in value.uses() if down is None or use.node is not down.producer()]
            if down is not None:
                down.replace_all_uses_with(value)
            if others:
                cast = self._cast(value, FLOAT, f"{value.name}{_CAST}")
                for node, index in others:
                    node.replace_input_with(index, cast.outputs[0])
                prepend(self.model.graph, [cast])
        for value in list(self.model.graph.outputs):
            if query.element_type(value) is FLOAT and value.producer() is not None:
                self._behind_output(value, self.dtype, list(value.uses()))
