"""How each kind of source becomes a model in memory: see :func:`octavo.model.files.io.load`."""

from __future__ import annotations

import contextlib
import itertools
import logging
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from octavo.core.files import similar_file
from octavo.errors import ModelError
from octavo.model.files import wire
from octavo.model.files.bounds import check_model
from octavo.model.files.building import build
from octavo.model.files.external import Bytes, DataFile, Folder, MappedTensor, own_name
from octavo.model.files.serialize import innermost
from octavo.model.graph import meta, protos, query
from octavo.model.graph.scopes import check_acyclic, in_order
from octavo.model.graph.tensors import SMALL_TENSOR_BYTES

# What onnx-ir and protobuf raise for messages that are well-formed and make no sense.
_MALFORMED = (ir.serde.SerdeError, ValueError, NotImplementedError, TypeError, KeyError, AttributeError,
              IndexError, OverflowError, RecursionError)  # fmt: skip


def from_path(path: Path, base_dir: Path | None = None, *, lift_constants: bool = False) -> ir.Model:
    """Read a model file; its large weights stay in it."""
    source, content = _opened(path)
    folder = Folder(base_dir if base_dir is not None else path.parent)
    model = _from_content(content, source, str(path), folder, lift_constants)
    meta.annotate(model, path=path, files=frozenset({source.path, *folder.paths}))
    return model


def from_bytes(content: bytes, base_dir: Path | None = None, *, lift_constants: bool = False) -> ir.Model:
    """Read a serialized model; its large weights stay in the ``bytes`` object."""
    view = np.frombuffer(content, np.uint8)
    folder = Folder(base_dir)
    model = _from_content(view, view, "This content", folder, lift_constants)
    meta.annotate(model, files=frozenset(folder.paths))
    return model


def from_proto(
    proto: onnx.ModelProto, base_dir: Path | None = None, *, lift_constants: bool = False
) -> ir.Model:
    """Take over a ``ModelProto``; its weights are shared, its structure is not."""
    folder = Folder(base_dir)
    model = _built(proto, "The ModelProto", folder, lift_constants)
    _replace_tensors(model, own_name)
    meta.annotate(model, files=frozenset(folder.paths))
    return model


def message_of(path: Path) -> onnx.ModelProto:
    """Read a model file as protobuf; references to external weights stay as they are."""
    proto = written_message(path)
    check_model(proto, str(path), {})
    return proto


def written_message(path: Path) -> onnx.ModelProto:
    """The same for a file that this run has written, or the runtime for it: it is not checked."""
    return _parsed(_opened(path)[1].data, str(path))


def files_of(path: Path) -> set[Path]:
    """Return the files that a model at a path is read from: its own, and those that its weights lie in."""
    source, content = _opened(path)
    try:
        proto = _parsed(wire.split(content.data, SMALL_TENSOR_BYTES).rest, str(path))
    except wire.WireError as error:
        raise _not_a_model(str(path), error) from error
    constants = (a.t for f in proto.functions for node in f.node for a in node.attribute)
    outside = {
        entry.value
        for tensor in itertools.chain(protos.all_tensors(proto.graph), constants)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location" and "\0" not in entry.value
    }
    return {source.path, *((path.parent / name).resolve() for name in outside)}


def _opened(path: Path) -> tuple[DataFile, Bytes]:
    """Open a model file, which must be a regular file of ONNX's own format."""
    if path.suffix.lower() == ".ort":
        raise ModelError(
            f"{path} is in ONNX Runtime's own .ort format, which is an end product; "
            "quantize the .onnx file that it was made from."
        )
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
        if stat.S_ISDIR(mode):
            inside = sorted(path.glob("*.onnx"))
            hint = f", for example {inside[0]}" if inside else ""
            raise ModelError(f"{path} is a folder; give the path of the .onnx file in it{hint}.")
        if not stat.S_ISREG(mode):
            raise ModelError(f"{path} is not a regular file; give the path of an .onnx file.")
        source = DataFile(real, keep=True)
        return source, source.view()
    except FileNotFoundError as error:
        raise ModelError(f"There is no model at {path}{similar_file(path)}") from error
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: NUL; RuntimeError: a loop of links
        raise ModelError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}.") from error


def _parsed(content: memoryview | bytes, where: str) -> onnx.ModelProto:
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(bytes(content))
    except (DecodeError, UnicodeDecodeError) as error:
        raise _not_a_model(where, error) from error
    return proto


def _not_a_model(where: str, error: Exception) -> ModelError:
    return ModelError(
        f"{where} is not an ONNX model: it can't be decoded as protobuf ({error}); "
        "check that the file is complete and not a Git LFS pointer or a web page."
    )


def own_copy(source: ir.Model, base_dir: Path | None = None) -> ir.Model:
    """Copy an ``ir.Model``; its weights are shared, its structure is not."""
    try:
        model = source.clone() if in_order(source) else _through_proto(source)
    except RuntimeError as error:  # what onnx-ir makes of all that stops it
        raise ModelError(
            f"{meta.describe(source)} is malformed: a node or an output reads a tensor that nothing makes;"
            " export the model again."
        ) from error
    for value in _all_values(model):
        if isinstance(value.type, ir.TensorType):
            # types are mutable and clones share them
            value.type = ir.TensorType(value.type.dtype, denotation=value.type.denotation)
    folders: dict[str, Folder] = {}

    def own(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor):
            return own_name(tensor)
        base = str(tensor.base_dir or base_dir or "")
        folder = folders.setdefault(base, Folder(Path(base) if base else None))
        return folder.tensor(tensor)

    _replace_tensors(model, own)
    known, used = meta.of(source), (path for folder in folders.values() for path in folder.paths)
    meta.annotate(model, path=known.path, files=known.files.union(used))
    return model


def _through_proto(source: ir.Model) -> ir.Model:
    """Copy a model whose nodes are out of order, which can't be cloned node after node."""
    folders = [t.base_dir for t in query.tensors(source) if isinstance(t, ir.ExternalTensor) and t.base_dir]
    try:
        model = ir.from_proto(ir.to_proto(source))
    except ir.serde.SerdeError as error:
        raise ModelError(f"The model is malformed: {_first_line(innermost(error))}.") from error
    for tensor in query.tensors(model):
        if isinstance(tensor, ir.ExternalTensor) and folders:
            tensor.base_dir = folders[0]
    check_acyclic(model)
    return model


def _from_content(
    content: Bytes, source: DataFile | Bytes, where: str, folder: Folder, lift_constants: bool
) -> ir.Model:
    if len(content) == 0:
        raise ModelError(f"{where} is empty: this is not an ONNX model.")
    try:
        parts = wire.split(content.data, SMALL_TENSOR_BYTES)
    except wire.WireError as error:
        raise _not_a_model(where, error) from error
    model = _built(_parsed(parts.rest, where), where, folder, lift_constants, parts.weights)
    for name, piece in parts.weights.items():
        value = model.graph.initializers[name]
        tensor = value.const_value
        if tensor is not None and not isinstance(tensor, MappedTensor):
            shape = tuple(int(dim) for dim in tensor.shape.numpy())
            value.const_value = MappedTensor(source, piece.offset, tensor.dtype, shape, name)
    return model


def _built(
    proto: onnx.ModelProto,
    where: str,
    folder: Folder,
    lift_constants: bool,
    apart: Mapping[str, wire.ByteRange] | None = None,
) -> ir.Model:
    """Return the model in memory, external weights mapped, names and sizes checked."""
    checksums = check_model(proto, where, apart or {})
    try:
        with _without_warnings():
            model = build(proto, lift_constants=lift_constants)
    except _MALFORMED as error:
        cause = innermost(error)
        if isinstance(cause, NotImplementedError):
            raise ModelError(
                f"{where} holds something that can't be read: {str(cause).partition('.')[0]}. Remove"
                " it, for example the ZipMap at the end of a classifier, and quantize the rest."
            ) from error
        raise ModelError(f"{where} is malformed: {_first_line(cause)}.") from error
    if checksums is not None:
        _replace_tensors(model, lambda t: folder.tensor(t) if isinstance(t, ir.ExternalTensor) else t)
        folder.check(checksums)
    check_acyclic(model)
    return model


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep onnx-ir from logging what is raised as an error here."""
    logger = logging.getLogger("onnx_ir.serde")
    mute = logging.Filter("octavo")  # lets nothing through that another package logs
    logger.addFilter(mute)
    try:
        yield
    finally:
        logger.removeFilter(mute)


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0].rstrip(".")


def _all_values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in query.all_graphs(model):
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs


def _replace_tensors(model: ir.Model, replace: Callable[[ir.TensorProtocol], ir.TensorProtocol]) -> None:
    """Put another tensor in place of each initializer and each tensor attribute."""
    for graph in query.all_graphs(model):
        for value in query.initializers(graph).values():
            if value.const_value is not None:
                value.const_value = replace(value.const_value)
        for node in graph:
            for attribute in tuple(query.attributes(node).values()):
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    new = replace(attribute.value)
                    if new is not attribute.value:
                        node.attributes[attribute.name] = ir.AttrTensor(attribute.name, new)
