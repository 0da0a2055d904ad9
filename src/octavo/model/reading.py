"""How each kind of source becomes a model in memory: see :func:`octavo.model.io.load`."""

from __future__ import annotations

import contextlib
import logging
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from octavo.errors import ModelError
from octavo.model import query, wire
from octavo.model.building import build
from octavo.model.checking import check_model
from octavo.model.external import Folder
from octavo.model.scopes import check_acyclic, in_order
from octavo.model.tensors import SMALL, Bytes, DataFile, MappedTensor, own_name

SOURCE = "octavo.source"  # in model.meta: the path the model came from
FILES = "octavo.files"  # in model.meta: every file that its weights are read from
MESSAGE = "octavo.message"  # in model.meta: what a model that is normalized next was read from

# What onnx-ir and protobuf raise for messages that are well-formed and make no sense.
_MALFORMED = (ir.serde.SerdeError, ValueError, NotImplementedError, TypeError, KeyError, AttributeError,
              IndexError, OverflowError, RecursionError)  # fmt: skip


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep onnx-ir from logging what is reported as an error here."""
    logger = logging.getLogger("onnx_ir.serde")
    mute = logging.Filter("octavo")  # lets nothing through that another package logs
    logger.addFilter(mute)
    try:
        yield
    finally:
        logger.removeFilter(mute)


def from_path(path: Path, base_dir: Path | None = None, *, gather: bool = False) -> ir.Model:
    """Read a model file; its large weights stay in it."""
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
            raise ModelError(f"{path} is no regular file.")
        source = DataFile(real, keep=True)
        content = source.view()
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: NUL; RuntimeError: a loop of links
        raise ModelError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}.") from error
    folder = Folder(base_dir if base_dir is not None else path.parent)
    model = _from_content(content, source, str(path), folder, gather)
    model.meta[SOURCE] = path
    model.meta[FILES] = frozenset({real, *folder.paths})
    return model


def from_bytes(content: bytes, base_dir: Path | None = None, *, gather: bool = False) -> ir.Model:
    """Read a serialized model; its large weights stay in the ``bytes`` object."""
    view = np.frombuffer(content, np.uint8)
    folder = Folder(base_dir)
    model = _from_content(view, view, "This content", folder, gather)
    model.meta[FILES] = frozenset(folder.paths)
    return model


def from_proto(proto: onnx.ModelProto, base_dir: Path | None = None, *, gather: bool = False) -> ir.Model:
    """Take over a ``ModelProto``; its weights are shared, its structure is not."""
    folder = Folder(base_dir)
    model = _build(proto, "The ModelProto", folder, gather)
    _replace_tensors(model, lambda tensor: own_name(tensor))
    model.meta[FILES] = frozenset(folder.paths)
    return model


def own_copy(source: ir.Model, base_dir: Path | None = None) -> ir.Model:
    """Copy an ``ir.Model``; its weights are shared, its structure is not."""
    model = source.clone() if in_order(source) else _through_proto(source)
    for key in (SOURCE, FILES):
        if key in source.meta:
            model.meta[key] = source.meta[key]
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
    used = {path for folder in folders.values() for path in folder.paths}
    model.meta[FILES] = frozenset({*model.meta.get(FILES, ()), *used})
    return model


def _through_proto(source: ir.Model) -> ir.Model:
    """Copy a model whose nodes are out of order, which can't be cloned node after node."""
    folders = [t.base_dir for t in _tensors(source) if isinstance(t, ir.ExternalTensor) and t.base_dir]
    try:
        model = ir.from_proto(ir.to_proto(source))
    except ir.serde.SerdeError as error:
        raise ModelError(f"The model is malformed: {_told(_innermost(error))}.") from error
    for tensor in _tensors(model):
        if isinstance(tensor, ir.ExternalTensor) and folders:
            tensor.base_dir = folders[0]
    check_acyclic(model)
    return model


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in _graphs(model):
        yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)


def _from_content(
    content: Bytes, source: DataFile | Bytes, where: str, folder: Folder, gather: bool
) -> ir.Model:
    if len(content) == 0:
        raise ModelError(f"{where} is empty: no ONNX model.")
    weights: dict[str, wire.Stretch] = {}
    try:
        parts = wire.split(content.data, SMALL)
        weights = parts.weights
        proto = onnx.ModelProto.FromString(parts.rest)
    except (wire.WireError, DecodeError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{where} is no ONNX model: it can't be decoded as protobuf ({error}); "
            "check that the file is complete and not a Git LFS pointer or a web page."
        ) from error
    model = _build(proto, where, folder, gather, apart=weights)
    for name, stretch in weights.items():
        value = model.graph.initializers[name]
        tensor_now = value.const_value
        if tensor_now is None or isinstance(tensor_now, MappedTensor):
            continue
        shape = tuple(int(dim) for dim in tensor_now.shape.numpy())
        value.const_value = MappedTensor(source, stretch.offset, tensor_now.dtype, shape, name)
    return model


def _build(
    proto: onnx.ModelProto,
    where: str,
    folder: Folder,
    gather: bool,
    apart: dict[str, wire.Stretch] | None = None,
) -> ir.Model:
    """The model in memory: external weights mapped, names and sizes checked."""
    checksums = check_model(proto, where, apart or {})
    try:
        with _without_warnings():
            model = build(proto, gather=gather)
    except _MALFORMED as error:
        cause = _innermost(error)
        if isinstance(cause, NotImplementedError):
            raise ModelError(
                f"{where} holds something that can't be read: {str(cause).partition('.')[0]}. Take it out,"
                " such as the ZipMap at the end of a classifier that gives a map, and quantize the rest."
            ) from error
        raise ModelError(f"{where} is malformed: {_told(cause)}.") from error
    if checksums is not None:
        _replace_tensors(model, lambda t: folder.tensor(t) if isinstance(t, ir.ExternalTensor) else t)
        folder.check(checksums)
    check_acyclic(model)
    if gather and _is_plain(proto):
        model.meta[MESSAGE] = proto
    return model


def _is_plain(proto: onnx.ModelProto) -> bool:
    """Whether a message has the nodes of the model in memory, as they are, and no notes about tensors."""
    graph = proto.graph
    if proto.functions or graph.value_info or any(entry.domain == "ai.onnx" for entry in proto.opset_import):
        return False
    return all(node.op_type != "Constant" and node.domain != "ai.onnx" for node in graph.node)


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _told(error: BaseException) -> str:
    return str(error).split("\n")[0].rstrip(".")


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.subgraphs()


def _all_values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in _graphs(model):
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs


def _replace_tensors(model: ir.Model, replace: Callable[[ir.TensorProtocol], ir.TensorProtocol]) -> None:
    """Put another tensor in place of each initializer and each tensor attribute."""
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    while graphs:
        graph = graphs.pop()
        for value in query.initializers(graph).values():
            if value.const_value is not None:
                value.const_value = replace(value.const_value)
        for node in graph:
            for attribute in tuple(query.attributes(node).values()):
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    new = replace(attribute.value)
                    if new is not attribute.value:
                        node.attributes[attribute.name] = ir.AttrTensor(attribute.name, new)
                elif attribute.type == ir.AttributeType.GRAPH:
                    graphs.append(attribute.value)
                elif attribute.type == ir.AttributeType.GRAPHS:
                    graphs.extend(attribute.value)
