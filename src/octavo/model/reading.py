"""How each kind of source becomes a model in memory: see :func:`octavo.model.io.load`."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from octavo.errors import ModelError
from octavo.model import wire
from octavo.model.external import Folder
from octavo.model.scopes import in_order
from octavo.model.tensors import Bytes, DataFile, MappedTensor, byte_size, own_name

SOURCE = "octavo.source"  # in model.meta: the path the model came from
FILES = "octavo.files"  # in model.meta: every file that its weights are read from

_MAP_LEAST = 16 << 10  # smaller weights are read at once
_LARGEST_TENSOR = 1 << 44
_TYPED_FIELDS: dict[str, frozenset[int]] = {
    "float_data": frozenset({TensorProto.FLOAT, TensorProto.COMPLEX64}),
    "double_data": frozenset({TensorProto.DOUBLE, TensorProto.COMPLEX128}),
    "int64_data": frozenset({TensorProto.INT64}),
    "uint64_data": frozenset({TensorProto.UINT64, TensorProto.UINT32}),
    "string_data": frozenset({TensorProto.STRING}),
}
_OTHER_FIELD = "int32_data"  # every narrower type


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


def from_path(path: Path, base_dir: Path | None = None) -> ir.Model:
    """Read a model file; its large weights stay in it."""
    if path.suffix.lower() == ".ort":
        raise ModelError(
            f"{path} is in ONNX Runtime's own .ort format, which is an end product; "
            "quantize the .onnx file that it was made from."
        )
    if path.is_dir():
        inside = sorted(path.glob("*.onnx"))
        hint = f", for example {inside[0]}" if inside else ""
        raise ModelError(f"{path} is a folder; give the path of the .onnx file in it{hint}.")
    try:
        real = path.resolve(strict=True)
        if not real.is_file():
            raise ModelError(f"{path} is no regular file.")
        source = DataFile(real)
        content = source.view()
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror or error}.") from error
    folder = Folder(base_dir if base_dir is not None else path.parent)
    model = _from_content(content, source, str(path), folder)
    model.meta[SOURCE] = path
    model.meta[FILES] = frozenset({real, *folder.paths})
    return model


def from_bytes(content: bytes, base_dir: Path | None = None) -> ir.Model:
    """Read a serialized model; its large weights stay in the ``bytes`` object."""
    view = np.frombuffer(content, np.uint8)
    folder = Folder(base_dir)
    model = _from_content(view, view, "These bytes", folder)
    model.meta[FILES] = frozenset(folder.paths)
    return model


def from_proto(proto: onnx.ModelProto, base_dir: Path | None = None) -> ir.Model:
    """Take over a ``ModelProto``; its weights are shared, its structure is not."""
    folder = Folder(base_dir)
    model = _build(proto, "The ModelProto", folder)
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
        raise ModelError(f"The model is malformed: {_innermost(error)}") from error
    for tensor in _tensors(model):
        if isinstance(tensor, ir.ExternalTensor) and folders:
            tensor.base_dir = folders[0]
    return model


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in _graphs(model):
        yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)


def _from_content(content: Bytes, source: DataFile | Bytes, where: str, folder: Folder) -> ir.Model:
    if len(content) == 0:
        raise ModelError(f"{where} is empty: no ONNX model.")
    weights: dict[str, wire.Stretch] = {}
    try:
        parts = wire.split(content.data, _MAP_LEAST)
        weights = parts.weights
        proto = onnx.ModelProto.FromString(parts.rest)
    except (wire.WireError, DecodeError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{where} is no ONNX model: it can't be decoded as protobuf ({error}); "
            "check that the file is complete and not a Git LFS pointer or a web page."
        ) from error
    for tensor in proto.graph.initializer:
        stretch = weights.get(tensor.name)
        if stretch is not None and tensor.data_location != onnx.TensorProto.EXTERNAL:
            _check_size(tensor, stretch.length)
    model = _build(proto, where, folder, skip=weights)
    for name, stretch in weights.items():
        value = model.graph.initializers[name]
        tensor_now = value.const_value
        if tensor_now is None or isinstance(tensor_now, MappedTensor):
            continue
        shape = tuple(int(dim) for dim in tensor_now.shape.numpy())
        value.const_value = MappedTensor(source, stretch.offset, tensor_now.dtype, shape, name)
    return model


def _build(
    proto: onnx.ModelProto, where: str, folder: Folder, skip: dict[str, wire.Stretch] | None = None
) -> ir.Model:
    """The model in memory: external weights mapped, names and sizes checked."""
    if not proto.HasField("graph") or (not proto.ir_version and not proto.opset_import):
        raise ModelError(f"{where} is no ONNX model: it holds no graph; check that this is the right file.")
    for entry in proto.opset_import:
        if not 0 < entry.version < 1 << 31:
            raise ModelError(f"{where} imports the impossible opset version {entry.version}.")
    _check_graph(proto.graph, where, skip or {})
    try:
        with _without_warnings():
            model = ir.from_proto(proto)
    except (ir.serde.SerdeError, ValueError, NotImplementedError, TypeError) as error:
        raise ModelError(f"{where} is malformed: {_innermost(error)}") from error
    _replace_tensors(model, lambda t: folder.tensor(t) if isinstance(t, ir.ExternalTensor) else t)
    return model


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).split("\n")[0]


def _check_graph(graph: onnx.GraphProto, where: str, skip: dict[str, wire.Stretch]) -> None:
    """Refuse names defined twice and tensors whose bytes do not fit their shape, here and in subgraphs."""
    if graph.sparse_initializer:
        raise ModelError(
            f"{where} holds sparse weights ({graph.sparse_initializer[0].values.name!r}), which are not "
            "supported; store them dense."
        )
    _check_text(graph, where)
    names = Counter(tensor.name for tensor in graph.initializer)
    _refuse_twice(names, f"{where}: the initializer")
    _refuse_twice(Counter(value.name for value in graph.input), f"{where}: the graph input")
    outputs = Counter(name for node in graph.node for name in node.output if name)
    _refuse_twice(outputs, f"{where}: the tensor")
    defined = [name for name in outputs if name in names]
    if defined:
        raise ModelError(f"{where}: the tensor {defined[0]!r} is an initializer and a node's output at once.")
    if "" in names:
        raise ModelError(f"{where} has an initializer without a name.")
    for tensor in graph.initializer:
        if tensor.name not in skip:
            _check_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") or attribute.type == onnx.AttributeProto.TENSOR:
                _check_tensor(attribute.t, f"of node {node.name or node.op_type!r}")
            if attribute.HasField("g"):
                _check_graph(attribute.g, where, {})
            for inner in attribute.graphs:
                _check_graph(inner, where, {})


def _check_text(graph: onnx.GraphProto, where: str) -> None:
    """Refuse names that are no text: protobuf hands over as bytes what it can't decode."""
    for node in graph.node:
        for text in (node.op_type, node.domain, node.name, *node.input, *node.output):
            if not isinstance(text, str):
                raise ModelError(f"{where} is damaged: a {node.op_type!r} node has the name {text!r}.")
    for named in (*graph.initializer, *graph.input, *graph.output):
        if not isinstance(named.name, str):
            raise ModelError(f"{where} is damaged: a tensor has the name {named.name!r}.")


def _refuse_twice(names: Counter[str], what: str) -> None:
    if names and len(names) != names.total():
        name = next(name for name, count in names.items() if count > 1)
        raise ModelError(f"{what} {name!r} is defined twice; give each definition a name of its own.")


def _check_tensor(tensor: onnx.TensorProto, where: str = "") -> None:
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.data_type == onnx.TensorProto.STRING:
        return
    if tensor.HasField("segment"):
        raise ModelError(f"The tensor {tensor.name!r} {where} is stored in segments, which is not supported.")
    if tensor.HasField("raw_data"):
        _check_size(tensor, len(tensor.raw_data), where)
        return
    filled = [name for name in (*_TYPED_FIELDS, _OTHER_FIELD) if len(getattr(tensor, name))]
    due = next((name for name, types in _TYPED_FIELDS.items() if tensor.data_type in types), _OTHER_FIELD)
    if filled and filled != [due]:
        raise ModelError(
            f"The tensor {tensor.name!r} {where} holds {' and '.join(filled)} where {due} is due; "
            "the model is damaged."
        )
    _check_count(tensor, len(getattr(tensor, filled[0])) if filled else 0, where)


def _dims(tensor: onnx.TensorProto, where: str) -> tuple[ir.DataType, tuple[int, ...]]:
    name = f"The tensor {tensor.name!r} {where}".rstrip()
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError as error:
        raise ModelError(f"{name} has the unknown element type {tensor.data_type}.") from error
    shape = tuple(tensor.dims)
    if dtype == ir.DataType.UNDEFINED or any(dim < 0 for dim in shape) or len(shape) > 64:
        raise ModelError(f"{name} has an impossible type or shape: {dtype}, {list(shape)}.")
    if byte_size(dtype, tuple(max(dim, 1) for dim in shape)) > _LARGEST_TENSOR:
        raise ModelError(f"{name} has the impossible size {list(shape)}.")
    return dtype, shape


def _check_size(tensor: onnx.TensorProto, length: int, where: str = "") -> None:
    dtype, shape = _dims(tensor, where)
    if dtype == ir.DataType.STRING or byte_size(dtype, shape) != length:
        raise ModelError(
            f"The tensor {tensor.name!r} {where} of type {dtype} and shape {list(shape)} holds {length} "
            f"bytes where {byte_size(dtype, shape)} are due; the model is damaged."
        )


def _check_count(tensor: onnx.TensorProto, count: int, where: str) -> None:
    """Typed fields hold one entry per element, two for complex numbers, packed bytes for sub-byte types."""
    dtype, shape = _dims(tensor, where)
    elements = byte_size(ir.DataType.UINT8, shape)
    due = {elements}
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        due = {2 * elements}
    elif dtype.bitwidth < 8:
        due = {byte_size(dtype, shape), elements}
    if count not in due:
        raise ModelError(
            f"The tensor {tensor.name!r} {where} of shape {list(shape)} holds {count} elements where "
            f"{max(due)} are due; the model is damaged."
        )


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
    for graph in _graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = replace(value.const_value)
        for node in graph:
            for key, attribute in list(node.attributes.items()):
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    new = replace(attribute.as_tensor())
                    if new is not attribute.value:
                        node.attributes[key] = ir.AttrTensor(key, new)
