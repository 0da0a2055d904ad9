"""``ONNXModel``: a model as protobuf with the stock methods; questions go to indices instead of scans."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from octavo.model.files import io
from octavo.model.graph import protos
from octavo.quantization._names import elsewhere

Array = npt.NDArray[Any]
Nodes = dict[str, NodeProto]
_VALUES = ("value_info", "input", "output")


class ONNXModel:
    """Looks at a model and edits it, in place."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self._readers = protos.readers(self.graph)
        self._makers = protos.makers(self.graph)
        self._named_nodes = protos.named(self.nodes)
        self._initializers = protos.named(self.initializer)
        self._values = [protos.named(partial(self._repeated, kind)) for kind in _VALUES]

    def _repeated(self, kind: str) -> Any:
        return getattr(self.model.graph, kind)

    def forget(self) -> None:
        """Make all indices again; for a model that was changed by hand."""
        for index in (self._readers, self._makers, self._named_nodes, self._initializers, *self._values):
            index.forget()

    # What the model consists of

    def nodes(self) -> Any:
        """Return the nodes of the main graph."""
        return self.model.graph.node

    def initializer(self) -> Any:
        """Return the initializers of the main graph."""
        return self.model.graph.initializer

    def graph(self) -> GraphProto:
        """Return the main graph."""
        return self.model.graph

    def ir_version(self) -> int:
        """Return the version of the file format."""
        return int(self.model.ir_version)

    def opset_import(self) -> Any:
        """Return the domains and their versions."""
        return self.model.opset_import

    def set_opset_import(self, domain: str, version: int) -> None:
        """Import a domain at a version."""
        for entry in self.model.opset_import:
            if entry.domain == domain:
                entry.version = version
                return
        self.model.opset_import.add(domain=domain, version=version)

    # Nodes

    def remove_node(self, node: NodeProto) -> None:
        """Remove a node, if it is there."""
        self.remove_nodes([node])

    def remove_nodes(self, nodes_to_remove: Iterable[NodeProto]) -> None:
        """Remove nodes, those that are there."""
        gone = list(nodes_to_remove)
        protos.remove(self.model.graph.node, gone)
        for node in gone:
            for name in dict.fromkeys(node.input):
                self._readers.drop(name, node)
            for name in node.output:
                self._makers.drop(name, node)
            self._named_nodes.drop(node.name, node)

    def add_node(self, node: NodeProto) -> None:
        """Append one node."""
        self.add_nodes([node])

    def add_nodes(self, nodes_to_add: Iterable[NodeProto]) -> None:
        """Append several nodes."""
        before = len(self.model.graph.node)
        self.model.graph.node.extend(nodes_to_add)
        for node in self.model.graph.node[before:]:
            for name in dict.fromkeys(node.input):
                self._readers.add(name, node)
            for name in node.output:
                self._makers.add(name, node)
            self._named_nodes.add(node.name, node)

    def input_name_to_nodes(self) -> dict[str, list[NodeProto]]:
        """Return the nodes that read each tensor."""
        found: dict[str, list[NodeProto]] = {}
        for node in self.model.graph.node:
            for name in dict.fromkeys(node.input):
                if name:
                    found.setdefault(name, []).append(node)
        return found

    def output_name_to_node(self) -> Nodes:
        """Return the node that makes each tensor."""
        return {name: node for node in self.model.graph.node for name in node.output if name}

    def get_children(
        self, node: NodeProto, input_name_to_nodes: dict[str, list[NodeProto]] | None = None
    ) -> list[NodeProto]:
        """Return the nodes that read what a node makes."""
        find = self._readers.all if input_name_to_nodes is None else _in(input_name_to_nodes)
        return [child for name in node.output for child in find(name)]

    def get_parents(self, node: NodeProto, output_name_to_node: Nodes | None = None) -> list[NodeProto]:
        """Return the nodes that make what a node reads."""
        found = (self._maker(name, output_name_to_node) for name in node.input)
        return [parent for parent in found if parent is not None]

    def get_parent(
        self, node: NodeProto, idx: int, output_name_to_node: Nodes | None = None
    ) -> NodeProto | None:
        """Return the node that makes one input of a node."""
        return self._maker(node.input[idx], output_name_to_node) if idx < len(node.input) else None

    def _maker(self, name: str, given: Nodes | None) -> NodeProto | None:
        return self._makers.first(name) if given is None else given.get(name)

    def find_node_by_name(
        self, node_name: str, new_nodes_list: Iterable[NodeProto], graph: GraphProto
    ) -> NodeProto | None:
        """Return the node of this name in a graph or among nodes that are to be added."""
        own = self._named_nodes.first(node_name) if graph is self.model.graph else None
        searched = new_nodes_list if graph is self.model.graph else (*graph.node, *new_nodes_list)
        return own or next((node for node in searched if node.name == node_name), None)

    def get_largest_node_name_suffix(self, node_name_prefix: str) -> int:
        """Return the largest number that follows a prefix in the name of a node, or -1."""
        return _largest(node_name_prefix, (node.name for node in self.model.graph.node))

    def replace_gemm_with_matmul(self) -> None:
        """Write each plain Gemm as MatMul and Add, also in subgraphs."""
        protos.split_gemms(self.model.graph)
        self.forget()

    # Names

    @staticmethod
    def replace_node_input(node: NodeProto, old_input_name: str, new_input_name: str) -> None:
        """Let a node read another tensor."""
        protos.rename(node.input, old_input_name, new_input_name)

    @staticmethod
    def replace_node_output(node: NodeProto, old_output_name: str, new_output_name: str) -> None:
        """Give an output of a node another name."""
        protos.rename(node.output, old_output_name, new_output_name)

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        """Let all nodes that read a tensor read another."""
        self._rename("input", self._readers, old_input_name, new_input_name)

    def replace_input_of_nodes(
        self, old_input_name: str, new_input_name: str, node_names_set: Iterable[str]
    ) -> None:
        """Let some of the nodes that read a tensor read another."""
        self._rename("input", self._readers, old_input_name, new_input_name, set(node_names_set))

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        """Give an output another name."""
        self._rename("output", self._makers, old_output_name, new_output_name)

    def replace_output_of_nodes(
        self, old_output_name: str, new_output_name: str, node_names_set: Iterable[str]
    ) -> None:
        """Give an output of some nodes another name."""
        self._rename("output", self._makers, old_output_name, new_output_name, set(node_names_set))

    def _rename(self, end: str, index: Any, old: str, new: str, chosen: set[str] | None = None) -> None:
        for node in index.all(old):
            if chosen is None or node.name in chosen:
                protos.rename(getattr(node, end), old, new)
                index.drop(old, node)
                index.add(new, node)

    # Initializers and values

    def initializer_extend(self, inits: Iterable[TensorProto]) -> None:
        """Append several initializers."""
        self.model.graph.initializer.extend(inits)
        self._initializers.forget()

    def add_initializer(self, tensor: TensorProto) -> None:
        """Append an initializer, unless there is one of its name."""
        if self._initializers.first(tensor.name) is None:
            self.model.graph.initializer.append(tensor)
            self._initializers.add(tensor.name, self.model.graph.initializer[-1])

    def get_initializer(self, name: str) -> TensorProto | None:
        """Return the initializer of this name."""
        found: TensorProto | None = self._initializers.first(name)
        return found

    def get_initializer_name_set(self) -> set[str]:
        """Return the names of the initializers."""
        return {tensor.name for tensor in self.model.graph.initializer}

    def get_largest_initializer_name_suffix(self, initializer_name_prefix: str) -> int:
        """Return the largest number that follows a prefix in the name of an initializer, or -1."""
        return _largest(initializer_name_prefix, (t.name for t in self.model.graph.initializer))

    def remove_initializer(self, tensor: TensorProto) -> None:
        """Remove an initializer, and the graph input of its name."""
        self.remove_initializers([tensor])

    def remove_initializers(self, init_to_remove: Iterable[TensorProto]) -> None:
        """Remove initializers, and the graph inputs of their names."""
        gone = list(init_to_remove)
        names = {tensor.name for tensor in gone}
        protos.remove(self.model.graph.initializer, gone)
        protos.remove(self.model.graph.input, [v for v in self.model.graph.input if v.name in names])
        self._initializers.forget()

    def get_non_initializer_inputs(self) -> set[str]:
        """Return the names of what has to be fed."""
        return {value.name for value in self.model.graph.input} - self.get_initializer_name_set()

    def get_constant_value(self, output_name: str) -> Array | None:
        """Return the value of a Constant node's output or of an initializer; None for anything else."""
        maker = self._makers.first(output_name)
        if maker is not None and maker.op_type == "Constant":
            for attribute in maker.attribute:
                if attribute.name == "value":
                    return onnx.numpy_helper.to_array(attribute.t)
        tensor = self.get_initializer(output_name)
        return onnx.numpy_helper.to_array(tensor) if tensor is not None else None

    def get_tensor_type(self, tensor_name: str) -> Any:
        """Element type and shape of a tensor, where the model states them."""
        found = (index.first(tensor_name) for index in self._values)
        value = next((value for value in found if value is not None), None)
        return value.type.tensor_type if value is not None and value.type.HasField("tensor_type") else None

    def find_graph_input(self, input_name: str) -> ValueInfoProto | None:
        """Return the graph input of this name."""
        return next((value for value in self.model.graph.input if value.name == input_name), None)

    def find_graph_output(self, output_name: str) -> ValueInfoProto | None:
        """Return the graph output of this name."""
        return next((value for value in self.model.graph.output if value.name == output_name), None)

    def is_graph_input(self, tensor_name: str) -> bool:
        """Whether the graph has such an input."""
        return self.find_graph_input(tensor_name) is not None

    def is_graph_output(self, output_name: str) -> bool:
        """Whether the graph has such an output."""
        return self.find_graph_output(output_name) is not None

    def find_nodes_by_initializer(self, graph: GraphProto, initializer: TensorProto) -> list[NodeProto]:
        """Return the nodes of a graph that read an initializer."""
        if graph is self.model.graph:
            return self._readers.all(initializer.name)
        return [node for node in graph.node if initializer.name in node.input]

    # The whole

    def remove_unused_constant(self) -> None:
        """Remove Constant nodes that nothing reads."""
        read = {value.name for value in self.model.graph.output}
        for node in self.model.graph.node:
            read.update(protos.reads(node))
        unused = [n for n in self.model.graph.node if n.op_type == "Constant" and n.output[0] not in read]
        self.remove_nodes(unused)

    def topological_sort(self) -> None:
        """Put the nodes in an order in which they can be computed."""
        protos.sort(self.model.graph)
        self.forget()

    def clean_initializers(self) -> tuple[GraphProto, set[str]]:
        """Remove what nothing reads, also inside nodes, which stay as they are otherwise."""
        missing = protos.drop_unused_initializers(self.model.graph)
        self._initializers.forget()
        return self.model.graph, missing

    def save_model_to_file(self, output_path: str | Path, use_external_data_format: bool = False) -> None:
        """Write the model, its nodes in order; the weights beside it on request."""
        self.topological_sort()
        io.save(io.load(self.model), output_path, external_data=use_external_data_format or None)


def _in(found: dict[str, list[NodeProto]]) -> Any:
    return lambda name: found.get(name, [])


def _largest(prefix: str, names: Iterable[str]) -> int:
    numbers = (name[len(prefix) :] for name in names if name.startswith(prefix))
    return max((int(text) for text in numbers if text.isdecimal()), default=-1)


__all__ = ["ONNXModel"]
__getattr__ = elsewhere(__name__)
