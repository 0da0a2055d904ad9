"""What makes two models the same: structure, names and weights, however they were stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import onnx_ir as ir

from octavo.model.files.serialize import content
from octavo.model.graph import query

_CHUNK = 16 << 20
_THREADS = 4  # hashing leaves the interpreter free


def fingerprint(model: ir.Model) -> str:
    """SHA-256 over structure, names and weights: equal for one model however it was loaded."""
    digest = hashlib.sha256()
    for item in _structure(model):
        digest.update(repr(item).encode("utf-8", "surrogateescape"))
    names = [(graph, name) for graph in query.all_graphs(model) for name in sorted(graph.initializers)]
    tensors = [content(name, graph.initializers[name]) for graph, name in names]
    with ThreadPoolExecutor(_THREADS) as pool:
        for (_, name), tensor, part in zip(names, tensors, pool.map(_hash, tensors), strict=True):
            digest.update(repr((name, tensor.dtype.name, tuple(tensor.shape.numpy()))).encode())
            digest.update(part)
    return digest.hexdigest()


def _structure(model: ir.Model) -> Iterator[object]:
    yield "opsets", sorted(model.opset_imports.items())
    for graph in query.all_graphs(model):
        yield "graph", [_signature(value) for value in graph.inputs], [value.name for value in graph.outputs]
        for node in graph:
            yield node.domain, node.op_type, node.overload, node.name
            yield _named(node.inputs)
            yield _named(node.outputs)
            for key in sorted(node.attributes):
                yield from _attribute(node.attributes[key])
    for identifier in sorted(model.functions):
        yield "function", identifier


def _named(values: Sequence[ir.Value | None]) -> list[str | None]:
    """Names; those left out at the end say nothing, and not every writer keeps them."""
    found = [value.name if value is not None else "" for value in values]
    while found and found[-1] == "":
        found.pop()
    return found


def _signature(value: ir.Value) -> tuple[str | None, str, str]:
    """A shape without a type says nothing, and can't be written."""
    return value.name, str(value.dtype), str(value.shape if value.dtype is not None else None)


def _attribute(attribute: ir.Attr) -> Iterator[object]:
    yield attribute.name, attribute.type.name, attribute.ref_attr_name
    if attribute.is_ref():
        return
    tensors: tuple[ir.TensorProtocol, ...]
    match attribute.type:
        case ir.AttributeType.GRAPH | ir.AttributeType.GRAPHS:
            return  # its content is visited as a graph of its own
        case ir.AttributeType.TENSOR:
            tensors = (attribute.as_tensor(),)
        case ir.AttributeType.TENSORS:
            tensors = tuple(attribute.as_tensors())
        case _:
            yield attribute.value
            return
    for tensor in tensors:
        yield tensor.dtype.name, tuple(tensor.shape.numpy()), _hash(tensor)


def _hash(tensor: ir.TensorProtocol) -> bytes:
    """Return the digest of a tensor's content, read in pieces so that mapped weights stay in their file."""
    digest = hashlib.sha256()
    if isinstance(tensor, ir.StringTensor):
        digest.update(repr(list(tensor.string_data())).encode())
    elif tensor.dtype.bitwidth < 8:
        digest.update(tensor.tobytes())
    else:
        flat = tensor.numpy().reshape(-1).view("uint8")
        for start in range(0, len(flat), _CHUNK):
            digest.update(flat[start : start + _CHUNK].data)
    return digest.digest()
