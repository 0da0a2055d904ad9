"""A model as protobuf, in pieces: the structure, and each weight in turn, so that it never exists twice."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from octavo.errors import ModelError, OutputError
from octavo.model.files import external, wire
from octavo.model.files.external import write_tensor
from octavo.model.graph import meta, query
from octavo.model.graph.meta import describe
from octavo.model.graph.tensors import dims_of, element_type, tensor_bytes

INLINE_MOST = 1024  # bytes; smaller weights stay in the message of their model
_CHUNK = 16 << 20  # bytes that are hashed at a time
_ALIGNMENT = 4096  # bytes: weights beside a model start at pages, where they can be mapped

# The first IR version that knows an element type; all others are older than any version written here.
_TYPE_IR = {
    ir.DataType.FLOAT8E4M3FN: 9, ir.DataType.FLOAT8E4M3FNUZ: 9, ir.DataType.FLOAT8E5M2: 9,
    ir.DataType.FLOAT8E5M2FNUZ: 9, ir.DataType.UINT4: 10, ir.DataType.INT4: 10, ir.DataType.FLOAT4E2M1: 11,
    ir.DataType.FLOAT8E8M0: 12, ir.DataType.UINT2: 13, ir.DataType.INT2: 13, ir.DataType.FLOAT6E2M3: 14,
    ir.DataType.FLOAT6E3M2: 14,
}  # fmt: skip
_FIELDS = {  # of attributes that hold numbers
    ir.AttributeType.INT: "i",
    ir.AttributeType.INTS: "ints",
    ir.AttributeType.FLOAT: "f",
    ir.AttributeType.FLOATS: "floats",
}
_LOWEST_IR = 7  # the lowest version that is written
_FUNCTIONS_IR = 8  # the first version that knows model-local functions
_FUNCTION_INFOS_IR = 10  # the first version that knows the types of their values


def lowest_ir_version(model: ir.Model, made: Collection[ir.DataType | None] | None = None) -> int:
    """Return the lowest IR version that the model's opsets and element types need.

    ``made`` are the types that the nodes of the main graph make, where these have been looked at.
    """
    from octavo.model.runtime.session import runtime_ir_limit

    types = _element_types(model, made)
    functions = _FUNCTIONS_IR if model.functions else 0
    opsets = _ir_of_opsets(tuple(model.opset_imports.items()))
    lowest = max(_LOWEST_IR, opsets, functions, *(_TYPE_IR.get(dtype, 0) for dtype in types))
    limit = runtime_ir_limit()
    opset = f"opset {model.opset_imports.get('', '?')}"
    if model.opset_imports.get("", 0) > _newest_opset():
        raise ModelError(
            f"{describe(model)} needs {opset}; the installed onnx does not know its IR version: it knows "
            f"opsets up to {_newest_opset()}. Install a newer onnx, or use an older opset."
        )
    if lowest > limit:
        newer = sorted(str(dtype) for dtype in types if _TYPE_IR.get(dtype, 0) > limit)
        raise ModelError(
            f"{describe(model)} needs ONNX IR version {lowest} ({', '.join(newer) or opset}), and the "
            f"installed onnxruntime loads up to {limit}; install a newer onnxruntime, or use older types or "
            "an older opset."
        )
    return lowest


@functools.cache
def _ir_of_opsets(imports: tuple[tuple[str, int], ...]) -> int:
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in imports]
    return int(onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True))


@functools.cache
def _newest_opset() -> int:
    """Return the newest opset of the installed onnx, which looks through all operators to tell."""
    return int(onnx.defs.onnx_opset_version())


def _element_types(model: ir.Model, made: Collection[ir.DataType | None] | None) -> set[ir.DataType]:
    found: set[ir.DataType | None] = set(made or ())
    for graph in query.graphs(model):
        tensors = (value.const_value for value in query.initializers(graph).values())
        found.update([element_type(tensor) for tensor in tensors if tensor is not None])
        found.update([value.dtype for value in graph.inputs])
        if made is None or graph is not model.graph:
            found.update([value.dtype for node in graph for value in node.outputs])
    return {dtype for dtype in found if dtype is not None}


def part_of(model: ir.Model, name: str) -> onnx.ModelProto:
    """Return a message with an empty graph that parts of a model can be put into, for the runtime."""
    from octavo.model.runtime.session import runtime_ir_limit

    proto = onnx.ModelProto(ir_version=min(runtime_ir_limit(), max(lowest_ir_version(model), 8)))
    proto.graph.name = name
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    return proto


def skeleton(model: ir.Model, ir_version: int | None = None) -> onnx.ModelProto:
    """Return the model without its main graph's initializers, and without what no runtime reads."""
    types: set[ir.DataType | None] = set()
    try:
        proto = _shell(model)
        graph = proto.graph
        infos = graph.value_info
        for node in model.graph:
            _add_node(graph, node)
            for value in node.outputs:
                kind = value.type
                if kind is None:
                    continue
                types.add(kind.dtype)
                # A type without a shape tells nothing, and such entries are a tenth of a small model.
                if value.shape is not None and not value.is_graph_output():
                    add_info(infos, value)
        proto.ir_version = ir_version if ir_version is not None else lowest_ir_version(model, types)
        for function in model.functions.values():
            inside = proto.ir_version >= _FUNCTION_INFOS_IR
            ir.serde.serialize_function_into(proto.functions.add(), function, create_value_info=inside)
    except (ir.serde.SerdeError, TypeError, ValueError) as error:
        raise ModelError(f"{describe(model)} can't be serialized: {innermost(error)}") from error
    return proto


def _shell(model: ir.Model) -> onnx.ModelProto:
    """Return the model without nodes, initializers and functions."""
    graph, proto = model.graph, onnx.ModelProto()
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        if known := getattr(model, name):
            setattr(proto, name, known)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    _add_metadata(proto, model.metadata_props)
    proto.graph.name = graph.name or "graph"
    if graph.doc_string:
        proto.graph.doc_string = graph.doc_string
    _add_metadata(proto.graph, graph.metadata_props)
    for infos, values in ((proto.graph.input, graph.inputs), (proto.graph.output, graph.outputs)):
        for value in values:
            add_info(infos, value)
    return proto


def _add_metadata(proto: Any, entries: Mapping[str, str]) -> None:
    for key in sorted(entries):
        proto.metadata_props.add(key=key, value=entries[key])


def _bare(graph: ir.Graph, name: str | None) -> ir.GraphView:
    """Return a graph without its nodes and initializers."""
    return ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=(),
        name=name,
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        metadata_props=graph.metadata_props,
    )


# The next three write what nearly all nodes and values are made of; onnx-ir writes the rest. It looks at each
# field in turn: with it alone quantize_dynamic takes 5 % longer on silero_vad and mobilenet_v2.
def _add_node(graph: onnx.GraphProto, node: ir.Node) -> None:
    if node.metadata_props or node.doc_string or node.overload or node.device_configurations:
        ir.serde.serialize_node_into(graph.node.add(), node)
        return
    outputs = [value.name or "" for value in node.outputs]
    while outputs and not outputs[-1]:
        outputs.pop()
    inputs = ["" if value is None else value.name for value in node.inputs]
    proto = graph.node.add(op_type=node.op_type, input=inputs, output=outputs)
    if node.domain:
        proto.domain = node.domain
    if node.name:
        proto.name = node.name
    for attribute in query.attributes(node).values():
        kind, value = attribute.type, attribute.value
        field = _FIELDS.get(kind)
        if value is None and attribute.is_ref():
            ir.serde.serialize_reference_attribute_into(proto.attribute.add(), attribute)
        elif attribute.doc_string:
            ir.serde.serialize_attribute_into(proto.attribute.add(), attribute)
        elif field is not None:
            proto.attribute.add(name=attribute.name, type=kind, **{field: value})
        elif kind == ir.AttributeType.GRAPH and not value.initializers:
            _add_body(proto.attribute.add(name=attribute.name, type=kind).g, value)
        else:
            ir.serde.serialize_attribute_into(proto.attribute.add(), attribute)


def _add_body(proto: onnx.GraphProto, graph: ir.Graph) -> None:
    """Write a subgraph that has no initializers of its own."""
    ir.serde.serialize_graph_into(proto, _bare(graph, graph.name))  # type: ignore[arg-type]
    for node in graph:
        _add_node(proto, node)
        for value in node.outputs:
            if not value.is_graph_output() and value.name and (value.shape or value.type):
                add_info(proto.value_info, value)


def add_info(infos: Any, value: ir.Value) -> None:
    """Add a value's name, type and shape to a list of such entries."""
    info, kind, shape = infos.add(), value.type, value.shape
    described = value.doc_string or value.metadata_props
    if type(kind) is not ir.TensorType or kind.denotation or shape is None or described:
        ir.serde.serialize_value_into(info, value)
        return
    info.name = value.name
    tensor = info.type.tensor_type
    tensor.elem_type = kind.dtype
    tensor.shape.SetInParent()
    for index, dim in enumerate(shape.dims):
        size = tensor.shape.dim.add()
        if isinstance(dim, int):
            size.dim_value = dim
        elif dim.value is not None:
            size.dim_param = dim.value
        if denotation := shape.get_denotation(index):
            size.denotation = denotation


def innermost(error: BaseException) -> BaseException:
    """Return the first cause in a chain of errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def content(name: str, value: ir.Value) -> ir.TensorProtocol:
    """Return an initializer's tensor."""
    if value.const_value is None:
        raise ModelError(f"The initializer {name!r} has no content; load the model again with its weights.")
    return value.const_value


def header(name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    """Return a tensor's protobuf without its content."""
    made = onnx.TensorProto(dims=dims_of(tensor), data_type=element_type(tensor), name=name)
    if tensor.doc_string:
        made.doc_string = tensor.doc_string
    return made


def add_tensor(graph: onnx.GraphProto, name: str, tensor: ir.TensorProtocol) -> None:
    """Add an initializer with its content."""
    dtype = element_type(tensor)
    proto = graph.initializer.add(dims=dims_of(tensor), data_type=dtype, name=name)
    if tensor.doc_string:
        proto.doc_string = tensor.doc_string
    if has_plain_bytes(tensor):
        proto.raw_data = tensor.tobytes()
    elif dtype == ir.DataType.STRING:
        proto.string_data.extend(tensor.string_data())  # type: ignore[attr-defined]
    elif dtype == ir.DataType.FLOAT:
        proto.float_data.extend(tensor.numpy().reshape(-1))
    elif dtype.is_integer() and dtype.bitwidth >= 8:
        proto.int32_data.extend(tensor.numpy().reshape(-1))
    else:
        kind = np.uint16 if dtype.bitwidth == 16 else np.uint8
        proto.int32_data.extend(np.frombuffer(tensor.tobytes(), kind))


@dataclass(frozen=True)
class DataFiles:
    """Files for weights beside a model: their names, the open files, and which weight goes into which.

    ``held``: where in the one file there is which content, for models that share it.
    """

    names: Sequence[str]
    files: Sequence[BinaryIO]
    place: Mapping[str, int]
    held: dict[bytes, tuple[int, int]] | None = None

    def put(self, name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
        """Put a tensor's content at the end of its file and return the protobuf that says so."""
        number = self.place[name]
        if self.held is None:
            return external.refer(
                header(name, tensor), self.names[number], *self._append(number, name, tensor)
            )
        key = tensor_digest(tensor)
        if key not in self.held:
            self.held[key] = self._append(number, name, tensor)
        return external.refer(header(name, tensor), self.names[number], *self.held[key])

    def _append(self, number: int, name: str, tensor: ir.TensorProtocol) -> tuple[int, int]:
        file = self.files[number]
        offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
        file.write(b"\0" * (offset - file.tell()))
        length = write_tensor(tensor, file)
        if length != tensor.nbytes:
            raise OutputError(
                f"The weight {name!r} wrote {length} bytes where {tensor.nbytes} were announced."
            )
        return offset, length


def write_model(model: ir.Model, file: BinaryIO, beside: DataFiles | None = None) -> None:
    """Write the model file, and the weights that go beside it first."""
    proto = skeleton(model)
    weights: list[wire.WireWeight] = []
    for name, value in query.initializers(model.graph).items():
        tensor = content(name, value)
        if beside is not None and name in beside.place:
            proto.graph.initializer.append(beside.put(name, tensor))
        elif (size := tensor_bytes(tensor)) < INLINE_MOST or not has_plain_bytes(tensor):
            add_tensor(proto.graph, name, tensor)
        else:
            write = functools.partial(write_tensor, tensor)
            weights.append(wire.WireWeight(header(name, tensor).SerializeToString(), size, write))
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    try:
        wire.join(file, proto.SerializeToString(), graph, weights)
    except wire.WireError as error:
        raise OutputError(f"{describe(model)} can't be written: {error}.") from error


def has_plain_bytes(tensor: ir.TensorProtocol) -> bool:
    """Whether protobuf holds a tensor's content as bytes: it is not text and has no field of its own."""
    return element_type(tensor) != ir.DataType.STRING and not meta.is_typed(tensor)


def tensor_digest(tensor: ir.TensorProtocol) -> bytes:
    """Return the SHA-256 of a tensor's content, read in pieces so that mapped weights stay in their file."""
    found = hashlib.sha256()
    if isinstance(tensor, ir.StringTensor):
        found.update(repr(list(tensor.string_data())).encode())
    elif tensor.dtype.bitwidth < 8:
        found.update(tensor.tobytes())
    else:
        flat = tensor.numpy().reshape(-1).view("uint8")
        for start in range(0, len(flat), _CHUNK):
            found.update(flat[start : start + _CHUNK].data)
    return found.digest()
