"""A model as protobuf, in pieces: the structure, and each weight in turn, so that it never exists twice."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
import onnx
import onnx_ir as ir

from octavo.errors import ModelError, OutputError
from octavo.model import external, query, wire
from octavo.model.reading import SOURCE
from octavo.model.tensors import ArrayTensor, MappedTensor, dims_of, element_type, write_tensor

_EXTERNAL_LEAST = 1024  # smaller weights stay in the model file
_ALIGNMENT = 4096

# The first IR version that knows an element type; all others are older than any version written here.
_TYPE_IR = {
    ir.DataType.FLOAT8E4M3FN: 9,
    ir.DataType.FLOAT8E4M3FNUZ: 9,
    ir.DataType.FLOAT8E5M2: 9,
    ir.DataType.FLOAT8E5M2FNUZ: 9,
    ir.DataType.UINT4: 10,
    ir.DataType.INT4: 10,
    ir.DataType.FLOAT4E2M1: 11,
    ir.DataType.FLOAT8E8M0: 12,
    ir.DataType.UINT2: 13,
    ir.DataType.INT2: 13,
    ir.DataType.FLOAT6E2M3: 14,
    ir.DataType.FLOAT6E3M2: 14,
}
_LEAST_IR = 7
_NUMBERS = frozenset({ir.Tensor, ir.TensorProtoTensor, ir.LazyTensor, MappedTensor, ArrayTensor})
_PLAIN = {  # the fields of attributes that hold numbers, and whether several
    ir.AttributeType.INT: ("i", False),
    ir.AttributeType.INTS: ("ints", True),
    ir.AttributeType.FLOAT: ("f", False),
    ir.AttributeType.FLOATS: ("floats", True),
}
TYPED = "octavo.typed"  # tensor.meta: the content goes into the field of its type, where people look for it


def describe(model: ir.Model) -> str:
    """The model's name for messages: its file if it came from one, else its graph's name."""
    source = model.meta.get(SOURCE)
    return str(source) if source is not None else f"The model {model.graph.name or '(unnamed)'!r}"


def source_path(model: ir.Model) -> Path | None:
    """The file that a model was loaded from."""
    source = model.meta.get(SOURCE)
    return source if isinstance(source, Path) else None


def tensors(model: ir.Model) -> Iterable[ir.TensorProtocol]:
    """Every initializer's tensor, all scopes."""
    for graph in query.graphs(model):
        for value in query.initializers(graph).values():
            if value.const_value is not None:
                yield value.const_value


def weight_bytes(model: ir.Model) -> int:
    """The size of all weights; nothing is read to tell it."""
    return sum(map(tensor_bytes, tensors(model)))


def held_bytes(model: ir.Model) -> int:
    """The size of all weights, also of those that ``Constant`` nodes hold."""
    return weight_bytes(model) + sum(map(tensor_bytes, query.held_tensors(model)))


def tensor_bytes(tensor: ir.TensorProtocol) -> int:
    """The size of a tensor's content, without the detours that its own ``nbytes`` takes.

    Types are compared rather than asked for by ``isinstance``, which is slow for classes with protocols.
    """
    kind = type(tensor)
    if kind is MappedTensor or kind is ArrayTensor:
        return tensor.nbytes
    dtype = element_type(tensor)
    if dtype == ir.DataType.STRING:
        return int(tensor.nbytes)
    if kind is ir.Tensor and type(tensor.raw) is np.ndarray:
        if dtype.bitwidth >= 8:
            return int(tensor.raw.nbytes)
        count = tensor.raw.size
    else:
        count = math.prod(dims_of(tensor))
    return -(-count * dtype.bitwidth // 8)


def lowest_ir_version(model: ir.Model) -> int:
    """The lowest IR version that the model's opsets and element types need."""
    from octavo.model.session import runtime_ir_limit

    lowest = max(_LEAST_IR, _ir_of_opsets(tuple(model.opset_imports.items())))
    if model.functions:
        lowest = max(lowest, 8)
    lowest = max([lowest, *(_TYPE_IR.get(dtype, 0) for dtype in _element_types(model))])
    limit = runtime_ir_limit()
    if model.opset_imports.get("", 0) > _newest_opset():
        raise ModelError(
            f"{describe(model)} needs {_opset_text(model)}; the installed onnx does not know its IR version:"
            f" it knows opsets up to {_newest_opset()}. Install a newer onnx, or use an older opset."
        )
    if lowest > limit:
        types = sorted(str(dtype) for dtype in _element_types(model) if _TYPE_IR.get(dtype, 0) > limit)
        raise ModelError(
            f"{describe(model)} needs ONNX IR version {lowest} ({', '.join(types) or _opset_text(model)}), "
            f"and the installed onnxruntime loads up to {limit}; install a newer onnxruntime, or use older "
            "types or an older opset."
        )
    return lowest


@functools.cache
def _ir_of_opsets(imports: tuple[tuple[str, int], ...]) -> int:
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in imports]
    return int(onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True))


@functools.cache
def _newest_opset() -> int:
    """The newest opset of the installed onnx, which looks through all operators to tell."""
    return int(onnx.defs.onnx_opset_version())


def _opset_text(model: ir.Model) -> str:
    return f"opset {model.opset_imports.get('', '?')}"


def _element_types(model: ir.Model) -> set[ir.DataType]:
    found: set[ir.DataType | None] = set()
    _add_types(model.graph, found)
    return {dtype for dtype in found if dtype is not None}


def _add_types(graph: ir.Graph, found: set[ir.DataType | None]) -> None:
    held = (value.const_value for value in query.initializers(graph).values())
    found.update(element_type(tensor) for tensor in held if tensor is not None)
    found.update(value.dtype for value in graph.inputs)
    for node in graph:
        for value in node.outputs:
            found.add(value.dtype)
        for inner in query.subgraphs(node):
            _add_types(inner, found)


def _bare(graph: ir.Graph, name: str | None) -> ir.GraphView:
    """A graph without its nodes and initializers."""
    return ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=(),
        name=name,
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        metadata_props=graph.metadata_props,
    )


def skeleton(model: ir.Model, ir_version: int | None = None) -> onnx.ModelProto:
    """The model without its main graph's initializers, and without annotations that no runtime reads."""
    graph = model.graph
    view = _bare(graph, graph.name or "graph")
    bare = ir.Model(
        view,  # type: ignore[arg-type]
        ir_version=ir_version if ir_version is not None else lowest_ir_version(model),
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=list(model.functions.values()),
        metadata_props=model.metadata_props,
    )
    try:
        proto = ir.serde.serialize_model(bare)
        infos = proto.graph.value_info
        for node in graph:
            _add_node(proto.graph, node)
            for value in node.outputs:
                # A type without a shape tells nothing, and such notes are a tenth of a small model.
                if value.shape is not None and value.type is not None and not value.is_graph_output():
                    add_info(infos, value)
        return proto
    except (ir.serde.SerdeError, TypeError, ValueError) as error:
        raise ModelError(f"{describe(model)} can't be serialized: {_root_cause(error)}") from error


def _add_node(graph: onnx.GraphProto, node: ir.Node) -> None:
    """Add a node; most are nothing but names and attributes and get a short way."""
    if node.metadata_props or node.doc_string or node.overload or node.device_configurations:
        ir.serde.serialize_node_into(graph.node.add(), node)
    else:
        proto = graph.node.add()
        proto.op_type = node.op_type
        if domain := node.domain:
            proto.domain = domain
        if name := node.name:
            proto.name = name
        proto.input.extend(["" if value is None else value.name for value in node.inputs])
        outputs = [value.name or "" for value in node.outputs]
        while outputs and not outputs[-1]:
            outputs.pop()
        proto.output.extend(outputs)
        for attribute in query.attributes(node).values():
            _add_attribute(proto, attribute)


def _add_attribute(node: onnx.NodeProto, attribute: ir.Attr) -> None:
    """Add an attribute; most are numbers or graphs and get a short way."""
    proto, kind = node.attribute.add(), attribute.type
    plain = _PLAIN.get(kind)
    if attribute.ref_attr_name is not None:
        ir.serde.serialize_reference_attribute_into(proto, attribute)
    elif attribute.doc_string:
        ir.serde.serialize_attribute_into(proto, attribute)
    elif plain is not None:
        proto.name, proto.type = attribute.name, kind
        if plain[1]:
            getattr(proto, plain[0]).extend(attribute.value)
        else:
            setattr(proto, plain[0], attribute.value)
    elif kind == ir.AttributeType.GRAPH and not attribute.value.initializers:
        proto.name, proto.type = attribute.name, kind
        _fill_graph(proto.g, attribute.value)
    else:
        ir.serde.serialize_attribute_into(proto, attribute)


def _fill_graph(proto: onnx.GraphProto, graph: ir.Graph) -> None:
    """A subgraph without initializers of its own, in full."""
    bare = _bare(graph, graph.name)
    ir.serde.serialize_graph_into(proto, bare)  # type: ignore[arg-type]
    for node in graph:
        _add_node(proto, node)
        for value in node.outputs:
            if value.is_graph_output() or not value.name:
                continue
            if value.shape is not None and value.type is not None:
                add_info(proto.value_info, value)
            elif value.shape is not None or value.type or value.metadata_props or value.doc_string:
                ir.serde.serialize_value_into(proto.value_info.add(), value)


def add_info(infos: Any, value: ir.Value) -> None:
    """Note a value's type and shape in a list; most are plain tensors and get a short way."""
    info, kind, shape = infos.add(), value.type, value.shape
    noted = value.doc_string or value.metadata_props
    if type(kind) is not ir.TensorType or kind.denotation or shape is None or noted:
        ir.serde.serialize_value_into(info, value)
        return
    info.name = value.name
    tensor = info.type.tensor_type
    tensor.elem_type = kind.dtype
    sizes = tensor.shape
    sizes.SetInParent()
    for index, dim in enumerate(shape.dims):
        size = sizes.dim.add()
        if isinstance(dim, int):
            size.dim_value = dim
        elif dim.value is not None:
            size.dim_param = dim.value
        if denotation := shape.get_denotation(index):
            size.denotation = denotation


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def content(name: str, value: ir.Value) -> ir.TensorProtocol:
    """An initializer's tensor."""
    if value.const_value is None:
        raise ModelError(f"The initializer {name!r} has no content; load the model again with its weights.")
    return value.const_value


def tensor_header(name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    """A tensor as protobuf, without its content unless that is text."""
    header = onnx.TensorProto()
    _head(header, name, tensor)
    if is_text(tensor):
        header.string_data.extend(tensor.string_data())
    return header


def _head(header: onnx.TensorProto, name: str, tensor: ir.TensorProtocol) -> None:
    dims = dims_of(tensor)
    if dims:
        header.dims.extend(dims)
    header.data_type = element_type(tensor)
    header.name = name
    if tensor.doc_string:
        header.doc_string = tensor.doc_string


def add_tensor(graph: onnx.GraphProto, name: str, tensor: ir.TensorProtocol) -> None:
    """Add an initializer with its content; most are plain arrays and get a short way."""
    if type(tensor) is ArrayTensor and not is_typed(tensor) and not tensor.doc_string:
        graph.initializer.add(
            dims=tensor.raw.shape, data_type=tensor.dtype, name=name, raw_data=tensor.tobytes()
        )
        return
    header = graph.initializer.add()
    _head(header, name, tensor)
    if is_text(tensor):
        header.string_data.extend(tensor.string_data())
    else:
        fill(header, tensor)


def is_text(tensor: ir.TensorProtocol) -> TypeGuard[ir.StringTensor]:
    """Whether a tensor holds text."""
    return type(tensor) not in _NUMBERS and isinstance(tensor, ir.StringTensor)


def is_typed(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor is to be written into the field of its type."""
    kind = type(tensor)
    return (kind is ArrayTensor or kind is ir.Tensor) and TYPED in tensor.meta


def fill(header: onnx.TensorProto, tensor: ir.TensorProtocol) -> None:
    """Put a small tensor's content into its protobuf."""
    dtype = element_type(tensor)
    if not is_typed(tensor):
        header.raw_data = tensor.tobytes()
    elif dtype == ir.DataType.FLOAT:
        header.float_data.extend(tensor.numpy().reshape(-1).tolist())
    elif dtype.is_integer() and dtype.bitwidth >= 8:
        header.int32_data.extend(tensor.numpy().reshape(-1).tolist())
    else:
        kind = np.uint16 if dtype.bitwidth == 16 else np.uint8
        header.int32_data.extend(np.frombuffer(tensor.tobytes(), kind).tolist())


def write_model(
    model: ir.Model, file: BinaryIO, external_name: str | None, data_file: BinaryIO | None = None
) -> None:
    """Write the model file, and the weights beside it first where there is a file for them."""
    proto = skeleton(model)
    weights: list[wire.Weight] = []
    for name, value in query.initializers(model.graph).items():
        tensor = content(name, value)
        size = tensor_bytes(tensor)
        if size < _EXTERNAL_LEAST or is_text(tensor) or is_typed(tensor):
            add_tensor(proto.graph, name, tensor)
        elif external_name is not None and data_file is not None:
            header = tensor_header(name, tensor)
            _append(header, tensor, data_file, external_name)
            proto.graph.initializer.append(header)
        else:
            header = tensor_header(name, tensor)
            weights.append(wire.Weight(header.SerializeToString(), size, _writer(tensor)))
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    try:
        wire.join(file, proto.SerializeToString(), graph, weights)
    except wire.WireError as error:
        raise OutputError(f"{describe(model)} can't be written: {error}.") from error


def _writer(tensor: ir.TensorProtocol) -> wire.Writer:
    return lambda file: write_tensor(tensor, file)


def _append(header: onnx.TensorProto, tensor: ir.TensorProtocol, data_file: BinaryIO, name: str) -> None:
    """Put a tensor's content at the end of the data file and say so in its header."""
    offset = -(-data_file.tell() // _ALIGNMENT) * _ALIGNMENT
    data_file.write(b"\0" * (offset - data_file.tell()))
    length = write_tensor(tensor, data_file)
    if length != tensor.nbytes:
        raise OutputError(
            f"The weight {header.name!r} wrote {length} bytes where {tensor.nbytes} were announced."
        )
    external.refer(header, name, offset, length)
