"""A model that becomes protobuf only when it is accessed; saved before that, its weights are streamed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from octavo.model.files import io
from octavo.quantization.onnx_model import ONNXModel
from octavo.reporting.text import clean

_LOG = logging.getLogger("octavo.quantization")


class StreamedModel(ONNXModel):
    """An ``ONNXModel`` whose ``model`` is made at the first look."""

    def __init__(self, source: ir.Model) -> None:
        self._source = source
        self._proto: onnx.ModelProto | None = None

    @property
    def model(self) -> onnx.ModelProto:
        """Return the model as protobuf."""
        if self._proto is None:
            super().__init__(io.to_proto(self._source))
        if self._proto is None:
            raise AttributeError("model")
        return self._proto

    @model.setter
    def model(self, proto: onnx.ModelProto) -> None:
        self._proto = proto

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_source", "_proto") or self._proto is not None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        super().__init__(io.to_proto(self._source))
        return getattr(self, name)

    @property
    def source(self) -> ir.Model | onnx.ModelProto:
        """The model in whichever form is current."""
        return self._source if self._proto is None else self._proto

    def save_model_to_file(self, output_path: str | Path, use_external_data_format: bool = False) -> None:
        """Write the model; the weights beside it on request, or if they are too large for one file."""
        if self._proto is None:
            io.save(self._source, output_path, external_data=use_external_data_format or None)
        else:
            super().save_model_to_file(output_path, use_external_data_format)


def opened(model: Any) -> ONNXModel:
    """Return a path, a ``ModelProto`` or an ``ONNXModel`` as an ``ONNXModel``."""
    if isinstance(model, ONNXModel):
        return model
    if isinstance(model, onnx.ModelProto):
        return ONNXModel(model)
    inner = getattr(model, "model", None)
    return ONNXModel(inner) if isinstance(inner, onnx.ModelProto) else StreamedModel(io.load(model))


def as_constant_nodes(model: ir.Model, names: Iterable[str]) -> None:
    """Make these initializers Constant nodes again, as they were in the caller's model.

    A tool that stores all initializers beside the model relies on it: the runtime's inference of shapes reads
    small constants only from the file of the model.
    """
    nodes = []
    for name in names:
        value = model.graph.initializers.get(name)
        if value is None or value.const_value is None or value.is_graph_output():
            continue
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", value.const_value)], name=f"{name}_node")
        made = node.outputs[0]
        made.type, made.shape = value.type, value.shape
        value.replace_all_uses_with(made)
        del model.graph.initializers[name]
        made.name = name
        nodes.append(node)
    if nodes and len(model.graph):
        model.graph.insert_before(model.graph[0], nodes)


def source_of(model: ONNXModel) -> ir.Model | onnx.ModelProto:
    """Return what to quantize."""
    return model.source if isinstance(model, StreamedModel) else model.model


def input_names(model: ONNXModel) -> list[str]:
    """Return the names of a model's inputs."""
    source = source_of(model)
    values = source.graph.inputs if isinstance(source, ir.Model) else source.graph.input
    return [value.name or "" for value in values]


def tell(skipped: Mapping[str, str]) -> None:
    """Log what stayed float."""
    for name, reason in skipped.items():
        _LOG.info("%s stays float: %s", clean(name), clean(reason, 800))
