"""What :mod:`same_models` sets aside when it compares two models: one function for each known difference.

A function brings a model, in place, to a form in which one difference between two versions of Octavo does not
show. Two models that are the same bytes in that form differ in nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

_BARRIER = "_guard"  # in the names of nodes that change no value


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (
                *([attribute.g] if attribute.type == AttributeProto.GRAPH else []),
                *attribute.graphs,
            ):
                yield from _graphs(inner)


def node_order(model: ModelProto) -> None:
    """Sort nodes, initializers and descriptions of values by name."""
    for graph in _graphs(model.graph):
        for field, key in (
            (graph.node, lambda node: (node.name, list(node.output))),
            (graph.initializer, lambda tensor: tensor.name),
            (graph.value_info, lambda value: value.name),
        ):
            items = sorted(field, key=key)  # type: ignore[arg-type]
            copies = [type(item).FromString(item.SerializeToString()) for item in items]
            del field[:]
            field.extend(copies)  # type: ignore[arg-type]


def bias_shape(model: ModelProto) -> None:
    """Give scales and zero points of one number the shape []."""
    for graph in _graphs(model.graph):
        stored = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            for name in node.input[1:3] if node.op_type == "DequantizeLinear" else ():
                if name in stored and list(stored[name].dims) == [1]:
                    del stored[name].dims[:]


def opset(model: ModelProto) -> None:
    """Leave out versions, and shapes of what subgraphs return: raising an opset infers these."""
    del model.opset_import[:]
    model.ClearField("ir_version")
    for graph in list(_graphs(model.graph))[1:]:
        for value in graph.output:
            value.type.tensor_type.ClearField("shape")


def last_axis(model: ModelProto) -> None:
    """Count the axes of stored tensors from the first one."""
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "axis" and attribute.i < 0 and node.input[0] in ranks:
                attribute.i += ranks[node.input[0]]


def barriers(model: ModelProto) -> None:
    """Take out each Max that is a fusion barrier: its readers read what it reads."""
    graph = model.graph
    found = {node.output[0]: node for node in graph.node if node.op_type == "Max" and _BARRIER in node.name}
    stands_for = {name: node.input[0] for name, node in found.items()}
    for node in [one for one in graph.node if one.output[0] in found]:
        graph.node.remove(node)
    for node in graph.node:
        for at, name in enumerate(node.input):
            while name in stands_for:
                name = stands_for[name]
            node.input[at] = name
    _drop_unread(graph)


def conv_bias(model: ModelProto) -> None:
    """Take out each Reshape of a constant that an Add reads, and give the constant the shape it makes."""
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    read_by = {name: node for node in graph.node for name in node.input}
    reshapes = {
        node.output[0]: node
        for node in graph.node
        if node.op_type == "Reshape" and node.input[0] in stored and read_by[node.output[0]].op_type == "Add"
    }
    for name, node in reshapes.items():
        shape = onnx.numpy_helper.to_array(stored[node.input[1]])
        made = onnx.numpy_helper.to_array(stored[node.input[0]]).reshape(shape)
        graph.initializer.append(onnx.numpy_helper.from_array(made, name))
        graph.node.remove(node)
    _drop_unread(graph)
    _number_constants(graph)


def _number_constants(graph: GraphProto) -> None:
    """Name the constants that Adds read by what is in them."""
    for node in graph.node:
        for tensor in graph.initializer if node.op_type == "Add" else ():
            for at, name in enumerate(node.input):
                if name == tensor.name:
                    node.input[at] = _content_name(tensor)
    for tensor in graph.initializer:
        if any(_content_name(tensor) in node.input for node in graph.node):
            tensor.name = _content_name(tensor)
    unique = {tensor.name: tensor for tensor in graph.initializer}
    kept = [TensorProto.FromString(tensor.SerializeToString()) for tensor in unique.values()]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _content_name(tensor: TensorProto) -> str:
    content = onnx.numpy_helper.to_array(tensor)
    return f"constant {content.dtype} {content.shape} {hash(content.tobytes())}"


def numbers(model: ModelProto) -> None:
    """Leave out what initializers hold, but for their types and shapes."""
    for graph in _graphs(model.graph):
        for tensor in graph.initializer:
            kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            tensor.CopyFrom(kept)


def names(model: ModelProto) -> None:
    """Name nodes, stored tensors and inner values by what they hold or compute."""
    _name_by_content(model.graph, {})


def _name_by_content(graph: GraphProto, outer: dict[str, str]) -> None:
    kept = {value.name for value in graph.output}
    known = outer | {value.name: value.name for value in graph.input}
    for tensor in graph.initializer:
        name, tensor.name = tensor.name, ""
        known[name] = tensor.name = name if name in kept else _digest(tensor)
    for node in graph.node:
        for inner in (attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH):
            _name_by_content(inner, known)
        outputs = list(node.output)
        node.input[:] = [known.get(name, name) for name in node.input]
        del node.output[:]
        node.name = ""
        node.name = _digest(node)
        for at, name in enumerate(outputs):
            known[name] = name if name in kept or not name else f"{node.name}.{at}"
        node.output.extend(known[name] for name in outputs)
    for value in graph.value_info:
        value.name = known.get(value.name, value.name)


def _digest(message: TensorProto | NodeProto) -> str:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()


def same_results(old: Path, new: Path, feeds: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two models give the same bits, run without the runtime's optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    first, second = (
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]) for path in (old, new)
    )
    return all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for feed in feeds
        for a, b in zip(first.run(None, feed), second.run(None, feed), strict=True)
    )


def unread(model: ModelProto) -> None:
    """Take out initializers that nothing reads."""
    _drop_unread(model.graph)


def _drop_unread(graph: GraphProto) -> None:
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    unread = [tensor for tensor in graph.initializer if tensor.name not in read]
    for tensor in unread:
        graph.initializer.remove(tensor)
    made = read | {value.name for value in graph.input}
    for value in [value for value in graph.value_info if value.name not in made]:
        graph.value_info.remove(value)


FORMS: dict[str, Callable[[ModelProto], None]] = {
    "barriers": barriers,
    "bias-shape": bias_shape,
    "conv-bias": conv_bias,
    "last-axis": last_axis,
    "names": names,
    "node-order": node_order,
    "numbers": numbers,
    "opset": opset,
    "unread": unread,
}


def differing_parts(old: ModelProto, new: ModelProto) -> str:
    """Say in a few words where two models differ."""
    parts = []
    mine, yours = ({t.name: t for t in m.graph.initializer} for m in (old, new))
    for what, names in (("only old stores", mine.keys() - yours), ("only new stores", yours.keys() - mine)):
        if names:
            parts.append(f"{what} {', '.join(sorted(names)[:4])}")
    changed = [name for name in mine.keys() & yours if not _same_content(mine[name], yours[name])]
    if changed:
        parts.append(f"other numbers in {', '.join(sorted(changed)[:4])}")
    a, b = ({n.name: n for n in m.graph.node} for m in (old, new))
    for what, names in (("only old has", a.keys() - b), ("only new has", b.keys() - a)):
        if names:
            parts.append(f"{what} nodes {', '.join(sorted(names)[:4])}")
    unlike = [name for name in a.keys() & b if a[name] != b[name]]
    if unlike:
        parts.append(f"other nodes {', '.join(sorted(unlike)[:4])}")
    if [node.name for node in old.graph.node] != [node.name for node in new.graph.node]:
        parts.append("another order of nodes")
    return "; ".join(parts)


def _same_content(one: TensorProto, other: TensorProto) -> bool:
    a, b = onnx.numpy_helper.to_array(one), onnx.numpy_helper.to_array(other)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
