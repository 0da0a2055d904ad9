"""``ONNXModel`` as the vendored package has it: it also knows its file, and maps are properties."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from octavo.model.files import io
from octavo.quantization._errors import UnsupportedError
from octavo.quantization._names import elsewhere
from octavo.quantization.neural_compressor.util import MAXIMUM_PROTOBUF, find_by_name
from octavo.quantization.onnx_model import ONNXModel as _ONNXModel

__all__ = ["MAXIMUM_PROTOBUF", "ONNXModel", "find_by_name"]


def _whole(path: Path) -> onnx.ModelProto:
    """Return a model file with its external weights."""
    proto = io.read_proto(path)
    onnx.load_external_data_for_model(proto, str(path.parent))
    return proto


class ONNXModel(_ONNXModel):
    """A model given as a path or as protobuf, with the questions and edits of the vendored class."""

    def __init__(self, model: onnx.ModelProto | str | os.PathLike[str], **kwargs: Any) -> None:
        path = None if isinstance(model, onnx.ModelProto) else os.fspath(model)
        super().__init__(model if isinstance(model, onnx.ModelProto) else _whole(Path(model)))
        self.model_path = path
        self.is_large_model = self.model.ByteSize() > MAXIMUM_PROTOBUF

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise UnsupportedError(
            f"ONNXModel.{name} of neural_compressor has no counterpart here: it serves that package's own"
            " algorithms. Use octavo.quantization.onnx_model.ONNXModel, or onnx_ir, to look at a model."
        )

    @property
    def input_name_to_nodes(self) -> dict[str, list[NodeProto]]:  # type: ignore[override]
        """Return the nodes that read each tensor."""
        return super().input_name_to_nodes()

    @property
    def output_name_to_node(self) -> dict[str, NodeProto]:  # type: ignore[override]
        """Return the node that makes each tensor."""
        return super().output_name_to_node()

    def input(self) -> list[str]:
        """Return the names of the model's inputs."""
        return [value.name for value in self.model.graph.input]

    def output(self) -> list[str]:
        """Return the names of the model's outputs."""
        return [value.name for value in self.model.graph.output]

    def get_node(self, name: str) -> NodeProto | None:
        """Return the node of this name, or None."""
        return self.find_node_by_name(name, (), self.model.graph)

    def get_siblings(self, node: NodeProto) -> list[NodeProto]:
        """Return the other nodes that read what the makers of a node's inputs make."""
        children = [child for parent in self.get_parents(node) for child in self.get_children(parent)]
        return [child for child in children if child.name != node.name]

    def add_initializers(self, tensors: Iterable[TensorProto]) -> None:
        """Append initializers, but for those whose names are taken."""
        for tensor in tensors:
            self.add_initializer(tensor)

    def set_initializer(self, tensor: str, array: Any, raw: bool = False) -> None:
        """Replace the values of an initializer; its type and name stay."""
        old = self.get_initializer(tensor)
        if old is not None:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(old.data_type)
            self.remove_initializer(old)
            self.add_initializer(numpy_helper.from_array(np.asarray(array, dtype), tensor))

    def get_initializer_share_num(self, name: str) -> int:
        """Return how many nodes read an initializer."""
        return sum(name in node.input for node in self.model.graph.node)

    def save(self, root: str | Path) -> None:
        """Write the model to a path."""
        self.save_model_to_file(root, self.is_large_model)


__getattr__ = elsewhere(__name__)
