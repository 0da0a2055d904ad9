"""Giving a model in memory to the runtime, or to the ONNX checker, without serializing its large weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from octavo.core import scratch
from octavo.errors import ModelError
from octavo.model.files import external, io
from octavo.model.files.external import MappedTensor
from octavo.model.files.serialize import add_tensor, content, header, skeleton
from octavo.model.graph.tensors import tensor_bytes
from octavo.model.runtime.session import Session

_FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
_REFER_LEAST = 64 << 10  # bytes; a smaller weight is copied, which takes less time than a mapping
_INLINE_MOST = 1_900_000_000  # bytes of weights in one message, which protobuf bounds at 2 GiB
_UNKNOWN = "unknown.to.the.checker"  # a domain whose operators the checker lets pass


def _folder(initializers: Mapping[str, ir.Value]) -> Path | None:
    """Return the folder that the mapped weights lie in, or most of them."""
    sizes: dict[Path, int] = {}
    for value in initializers.values():
        tensor = value.const_value
        if type(tensor) is MappedTensor and tensor.path is not None:
            sizes[tensor.path.parent] = sizes.get(tensor.path.parent, 0) + tensor.nbytes
    if not sizes:
        return None
    common = os.path.commonpath(sizes)
    return Path(common) if common != os.path.sep else max(sizes, key=sizes.__getitem__)


def _refers(tensor: ir.TensorProtocol, folder: Path | None) -> Path | None:
    """Return the mapped file below the folder that a large tensor lies in."""
    if folder is None or type(tensor) is not MappedTensor or tensor.path is None:
        return None
    return tensor.path if tensor.nbytes >= _REFER_LEAST and tensor.path.is_relative_to(folder) else None


def _inline_bytes(initializers: Mapping[str, ir.Value], folder: Path | None) -> int:
    """Return the size of the weights whose bytes have to be in the message itself."""
    tensors = (value.const_value for value in initializers.values())
    return sum(tensor_bytes(t) for t in tensors if t is not None and _refers(t, folder) is None)


def with_mapped_weights(model: ir.Model, folder: Callable[[], str | Path]) -> ir.Model:
    """Return the model; where one message can't hold its weights, a copy that maps them from a file."""
    initializers = model.graph.initializers
    if _inline_bytes(initializers, _folder(initializers)) <= _INLINE_MOST:
        return model
    return io.load(io.save(model, Path(folder()) / "model.onnx", external_data=True)[0])


def hand_over(
    model: ir.Model, config: dict[str, str], keep: list[object], outputs: Iterable[str] | None
) -> bytes:
    """Return what to open a session with: a message with references to the files of mapped weights.

    What has to live as long as the session is added to ``keep``.
    """

    def temporary() -> str:
        keep.append(made := scratch.folder())
        return str(made.name)

    model = with_mapped_weights(model, temporary)
    proto = skeleton(model)
    fill(proto, model.graph.initializers, config)
    if outputs is not None:
        _ask_for(proto, model, list(outputs))
    return bytes(proto.SerializeToString())


def open_message(
    proto: onnx.ModelProto,
    model: ir.Model,
    used: Container[str] | None = None,
    *,
    config: Mapping[str, str] | None = None,
    **options: Any,
) -> Session:
    """Open a session for a message that reads weights of a model: those that are ``used``, or all."""
    entries, weights = dict(config or {}), model.graph.initializers
    fill(proto, {n: v for n, v in weights.items() if used is None or n in used}, entries)
    return Session.open(proto.SerializeToString(), config=entries, **options)


def fill(proto: onnx.ModelProto, initializers: Mapping[str, ir.Value], config: dict[str, str]) -> None:
    """Add initializers to a model's protobuf; ``config`` gets what a session needs to find mapped ones."""
    folder = _folder(initializers)
    if _inline_bytes(initializers, folder) > _INLINE_MOST:
        raise ModelError("More than 2 GB of weights in memory can't be given to the runtime at once.")
    if folder is not None:
        config[_FOLDER_OPTION] = str(folder)
    for name, value in initializers.items():
        tensor = content(name, value)
        path = _refers(tensor, folder)
        if path is not None and folder is not None and isinstance(tensor, MappedTensor):
            place = path.relative_to(folder).as_posix()
            reference = external.refer(header(name, tensor), place, tensor.offset, tensor.nbytes)
            proto.graph.initializer.append(reference)
        else:
            add_tensor(proto.graph, name, tensor)


def _values(model: ir.Model) -> dict[str, ir.Value]:
    found = {value.name: value for value in model.graph.inputs}
    found.update(model.graph.initializers)
    for node in model.graph:
        found.update((value.name, value) for value in node.outputs)
    return {name: value for name, value in found.items() if name}


def _ask_for(proto: onnx.ModelProto, model: ir.Model, names: list[str]) -> None:
    """Make these tensors the outputs; the runtime infers the types that are not known here."""
    values = _values(model)
    del proto.graph.output[:]
    for name in names:
        if name not in values:
            raise ModelError(f"There is no tensor {name!r} in the main graph to return.")
        proto.graph.output.add().CopyFrom(ir.serde.serialize_value(values[name]))


# What the checker says of a file that may be in order all the same.
_CHECKED_IN_MEMORY = ("Field 'shape' of 'type' is required", "No Op registered for")


def check(model: ir.Model | str | Path) -> None:
    """Run the ONNX checker: by path for a file, without large weights for a model in memory."""
    try:
        onnx.checker.check_model(_checkable(model) if isinstance(model, ir.Model) else str(model))
    except onnx.checker.ValidationError as error:
        if not isinstance(model, ir.Model) and any(text in str(error) for text in _CHECKED_IN_MEMORY):
            check(io.load(model))
            return
        raise ModelError(f"the ONNX checker refuses it: {str(error).splitlines()[0]}") from error


def _checkable(model: ir.Model) -> onnx.ModelProto:
    """Return the model as the checker wants it: large weights as inputs, and a shape on every end.

    The checker takes no value whose rank is unknown, which is allowed all the same. Operators of the default
    domain that it does not know, such as SimplifiedLayerNormalization, are left to the runtime.
    """
    proto = skeleton(model)
    for name, value in model.graph.initializers.items():
        tensor = content(name, value)
        if tensor.nbytes <= _REFER_LEAST:
            add_tensor(proto.graph, name, tensor)
        else:
            proto.graph.input.add().CopyFrom(ir.serde.serialize_value(value))
    unknown = [node for node in proto.graph.node if not node.domain and not onnx.defs.has(node.op_type)]
    for node in unknown:
        node.domain = _UNKNOWN
    if unknown:
        proto.opset_import.add(domain=_UNKNOWN, version=1)
    for info in (*proto.graph.input, *proto.graph.output):
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.shape.SetInParent()
    return proto
