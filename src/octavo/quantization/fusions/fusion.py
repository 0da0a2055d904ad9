"""The base of all fusions: it finds nodes of one type and lets :meth:`Fusion.fuse` replace what is around."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto

from octavo.quantization._names import elsewhere
from octavo.quantization.onnx_model import ONNXModel

Readers = dict[str, list[NodeProto]]
Makers = dict[str, NodeProto]
Path = tuple[list[str], list[int]]


class Fusion:
    """Subclasses write ``fuse``, which fills ``nodes_to_remove`` and ``nodes_to_add``."""

    def __init__(self, model: ONNXModel, fused_op_type: str, search_op_type: str) -> None:
        self.model = model
        self.fused_op_type = fused_op_type
        self.search_op_type = search_op_type
        self.nodes_to_remove: list[NodeProto] = []
        self.nodes_to_add: list[NodeProto] = []
        self._prefix = f"{fused_op_type}_fused_{search_op_type}_"
        self._number: int | None = None

    def fuse(self, node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers) -> Any:
        """Replace the composition around a node, if it is one."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to fuse; write its method fuse.")

    def apply(self) -> bool:
        """Fuse around each node of the type searched for; returns whether the model has changed."""
        readers, makers = self.model.input_name_to_nodes(), self.model.output_name_to_node()
        for node in list(self.model.nodes()):
            if node.op_type == self.search_op_type:
                self.fuse(node, readers, makers)
        changed = bool(self.nodes_to_remove or self.nodes_to_add)
        if changed:
            self.model.remove_nodes(self.nodes_to_remove)
            self.model.add_nodes(self.nodes_to_add)
            self._import_domains()
            self.model.remove_unused_constant()
            self.model.clean_initializers()
            self.model.topological_sort()
        return changed

    def _import_domains(self) -> None:
        known = {entry.domain for entry in self.model.opset_import()}
        for domain in {node.domain for node in self.nodes_to_add} - known - {""}:
            self.model.set_opset_import(domain, 1)

    def create_unique_node_name(self) -> str:
        """Return a name that no node has."""
        if self._number is None:
            self._number = self.model.get_largest_node_name_suffix(self._prefix) + 1
        name = f"{self._prefix}{self._number}"
        self._number += 1
        return name

    def is_safe_to_fuse_nodes(
        self,
        nodes_to_remove: Sequence[NodeProto],
        keep_outputs: Sequence[str],
        input_name_to_nodes: Readers,
        output_name_to_node: Makers,
    ) -> bool:
        """Whether nothing outside reads what the nodes make, apart from the outputs that are kept."""
        gone = {id(node) for node in nodes_to_remove}
        for node in nodes_to_remove:
            for name in node.output:
                if name in keep_outputs:
                    continue
                if self.model.is_graph_output(name):
                    return False
                if any(id(reader) not in gone for reader in input_name_to_nodes.get(name, ())):
                    return False
        return True

    @staticmethod
    def get_node_attribute(node: NodeProto, attribute_name: str) -> Any:
        """Return the value of an attribute, or None."""
        for attribute in node.attribute:
            if attribute.name == attribute_name:
                return onnx.helper.get_attribute_value(attribute)
        return None

    @staticmethod
    def input_index(node_output: str, child_node: NodeProto) -> int:
        """Return the place of a tensor among a node's inputs, or -1."""
        return next((at for at, name in enumerate(child_node.input) if name == node_output), -1)

    @staticmethod
    def tensor_shape_to_list(tensor_type: Any) -> list[Any]:
        """Dimensions as numbers, names, or ``"?"``."""
        kinds = ("dim_value", "dim_param")
        return [
            next((getattr(dim, kind) for kind in kinds if dim.HasField(kind)), "?")
            for dim in tensor_type.shape.dim
        ]

    def get_constant_input(self, node: NodeProto) -> tuple[int | None, npt.NDArray[Any] | None]:
        """Return the place and the value of a node's first constant input."""
        for at, name in enumerate(node.input):
            value = self.model.get_constant_value(name)
            if value is not None:
                return at, value
        return None, None

    def find_constant_input(self, node: NodeProto, expected_value: float, delta: float = 1e-06) -> int:
        """Return the place of a node's constant input, if it is this one number; else -1."""
        at, value = self.get_constant_input(node)
        fits = value is not None and value.size == 1 and abs(float(value.item()) - expected_value) < delta
        return at if fits and at is not None else -1

    def has_constant_input(self, node: NodeProto, expected_value: float, delta: float = 1e-06) -> bool:
        """Whether a constant input of a node is this one number."""
        return self.find_constant_input(node, expected_value, delta) >= 0

    def is_constant_with_specified_rank(self, output_name: str, rank: int) -> bool:
        """Whether a tensor is a constant of this rank."""
        value = self.model.get_constant_value(output_name)
        return value is not None and np.ndim(value) == rank

    def match_first_parent(
        self,
        node: NodeProto,
        parent_op_type: str,
        output_name_to_node: Makers | None = None,
        exclude: Sequence[NodeProto] = (),
    ) -> tuple[NodeProto | None, int | None]:
        """Return the first input that a node of this type makes: the node, and the input's place."""
        for at in range(len(node.input)):
            parent = self.model.get_parent(node, at, output_name_to_node)
            if parent is not None and parent.op_type == parent_op_type and _not_in(parent, exclude):
                return parent, at
        return None, None

    def match_parent(
        self,
        node: NodeProto,
        parent_op_type: str,
        input_index: int | None = None,
        output_name_to_node: Makers | None = None,
        exclude: Sequence[NodeProto] = (),
        return_indice: list[int] | None = None,
    ) -> NodeProto | None:
        """Return the node of this type that makes one input of a node, or any of them."""
        if input_index is None:
            parent, at = self.match_first_parent(node, parent_op_type, output_name_to_node, exclude)
            if return_indice is not None and at is not None:
                return_indice.append(at)
            return parent
        found = self.model.get_parent(node, input_index, output_name_to_node)
        fits = found is not None and found.op_type == parent_op_type and _not_in(found, exclude)
        return found if fits else None

    def match_parent_path(
        self,
        node: NodeProto,
        parent_op_types: Sequence[str],
        parent_input_index: Sequence[int | None] | None = None,
        output_name_to_node: Makers | None = None,
        return_indice: list[int] | None = None,
    ) -> list[NodeProto] | None:
        """Return the chain of these types that leads up from a node; None where there is none."""
        places = [None] * len(parent_op_types) if parent_input_index is None else list(parent_input_index)
        if len(places) != len(parent_op_types):
            raise ValueError(f"{len(parent_op_types)} types need as many places, not {len(places)}.")
        found: list[NodeProto] = []
        for op_type, place in zip(parent_op_types, places, strict=True):
            parent = self.match_parent(
                found[-1] if found else node, op_type, place, output_name_to_node, found, return_indice
            )
            if parent is None:
                return None
            found.append(parent)
        return found

    def match_parent_paths(
        self, node: NodeProto, paths: Sequence[Path], output_name_to_node: Makers
    ) -> tuple[int, list[NodeProto] | None, list[int] | None]:
        """The first of several chains that leads up from a node: its number, its nodes, the places found."""
        for number, (op_types, places) in enumerate(paths):
            indices: list[int] = []
            found = self.match_parent_path(node, op_types, places, output_name_to_node, indices)
            if found is not None:
                return number, found, indices
        return -1, None, None

    def find_first_child_by_type(
        self,
        node: NodeProto,
        child_type: str,
        input_name_to_nodes: Readers | None = None,
        recursive: bool = True,
    ) -> NodeProto | None:
        """Return the nearest node of a type below a node: among its readers, or further on."""
        level, seen = self.model.get_children(node, input_name_to_nodes), {id(node)}
        while level:
            for child in level:
                if child.op_type == child_type:
                    return child
            if not recursive:
                break
            seen.update(id(child) for child in level)
            below = [c for child in level for c in self.model.get_children(child, input_name_to_nodes)]
            level = [child for child in below if id(child) not in seen]
        return None


def _not_in(node: NodeProto, others: Sequence[NodeProto]) -> bool:
    return all(node is not other for other in others)


__getattr__ = elsewhere(__name__)
