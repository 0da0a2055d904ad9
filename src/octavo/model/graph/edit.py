"""Edits that keep a model in its canonical form: names unique, output names kept, nothing left dangling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.scopes import detach
from octavo.model.graph.tensors import ArrayTensor, dims_of, of_array

_SCALAR = ir.Shape((), frozen=True)

# ---- Names that are not taken yet, in one scope for the whole model; linear however many clash


class Names:
    """A set of taken names that hands out free ones."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self._next: dict[str, int] = {}

    def claim(self, name: str) -> str:
        """Return the name itself if it is free, else the name with the first free number."""
        free = name
        while free in self.taken:
            number = self._next.get(name, 1)
            self._next[name] = number + 1
            free = f"{name}_{number}"
        self.taken.add(free)
        return free


def taken_names(model: ir.Model) -> tuple[Names, Names]:
    """Return all names of values and of nodes of a model, taken."""
    values, nodes = Names(), Names()
    value_names, node_names = values.taken, nodes.taken
    for graph in query.graphs(model):
        value_names.update(value.name for value in graph.inputs if value.name)
        value_names.update(query.initializers(graph))
        for node in graph:
            node_names.add(node.name or "")
            for value in node.outputs:
                value_names.add(value.name or "")
    value_names.discard("")
    node_names.discard("")
    return values, nodes


class Editor:
    """Adds and removes nodes and constants of one model; knows all its names."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model

    @cached_property
    def _taken(self) -> tuple[Names, Names]:
        """Return the names of all values and nodes; looked up when the first edit needs them."""
        return taken_names(self.model)

    @cached_property
    def values(self) -> Names:
        """Return the names of all values."""
        return self._taken[0]

    @cached_property
    def nodes(self) -> Names:
        """Return the names of all nodes."""
        return self._taken[1]

    def constant(
        self, name: str, content: npt.NDArray[Any] | ir.TensorProtocol, dtype: ir.DataType | None = None
    ) -> ir.Value:
        """Return a new initializer of the main graph, under this name or the next free one."""
        name = self.values.claim(name)
        if isinstance(content, np.ndarray):
            shape = ir.Shape(content.shape) if content.shape else _SCALAR
            tensor = of_array(np.asarray(content, order="C"), dtype, shape, name)
        else:
            tensor = content
            shape = content.shape if type(content) is ArrayTensor else ir.Shape(dims_of(content))
            tensor.name = name
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        self.model.graph.initializers.add(value)
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        name: str,
        output: str | None = None,
        dtype: ir.DataType | None = None,
        shape: ir.Shape | None = None,
        domain: str = "",
    ) -> ir.Node:
        """Return a new node of one output, which has the node's name by default; it is put nowhere yet."""
        kind = ir.TensorType(dtype) if dtype is not None else None
        made = ir.Value(name=self.values.claim(output or name), type=kind, shape=shape)
        return ir.Node(
            domain,
            op_type,
            inputs,
            [_attribute(key, value) for key, value in attributes.items()] if attributes else (),
            outputs=[made],
            name=self.nodes.claim(name),
        )

    def take_over(self, new: ir.Value, old: ir.Value) -> None:
        """Let ``new`` stand where ``old`` stood, under its name; the node of ``old`` is to be removed."""
        name = old.name
        if new.type is None:
            new.type = old.type
        if new.shape is None or (old.shape is not None and old.is_graph_output()):
            new.shape = old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        self.values.taken.discard(new.name or "")
        old.name = f"{name}__gone"
        new.name = name

    def remove(self, nodes: Iterable[ir.Node]) -> None:
        """Remove nodes whose outputs nothing reads any more, and the constants that only they read."""
        for node in nodes:
            read = detach(node)
            if node.graph is not None:
                node.graph.remove(node)
            self.nodes.taken.discard(node.name or "")
            for value in read:
                if value.is_initializer() and value.name and not value.uses() and not value.is_graph_output():
                    del self.model.graph.initializers[value.name]
                    self.values.taken.discard(value.name)


def prepend(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    """Insert nodes before all others of a graph."""
    if len(graph):
        graph.insert_before(graph[0], nodes)
    else:
        graph.extend(nodes)


def return_instead(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Let a graph return another value wherever it returned this one."""
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = new


def share_attributes(new: ir.Node, old: ir.Node) -> None:
    """Give a node all attributes of another; attributes never change, so both may share them."""
    query.attributes(new).update(query.attributes(old))


def _attribute(name: str, value: Any) -> ir.Attr:
    """Return an attribute; most are a number, and telling what else it may be takes its time."""
    if type(value) is int:
        return ir.AttrInt64(name, value)
    return ir.convenience.convert_attribute(name, value)


def set_constant(value: ir.Value, content: npt.NDArray[Any] | ir.TensorProtocol) -> None:
    """Give an initializer new content; its type and shape follow."""
    if isinstance(content, np.ndarray):
        tensor: ir.TensorProtocol = ir.Tensor(np.asarray(content, order="C"), name=value.name)
    else:
        tensor = content
        tensor.name = value.name
    value.const_value = tensor
    value.type = ir.TensorType(tensor.dtype)
    value.shape = ir.Shape(tensor.shape.numpy())
