"""One canonical form of a model, so that everything after it has one case to think of instead of many.

After :func:`normalize`: no model-local functions; every constant is an initializer of the main graph (no
``Constant`` nodes, no initializers in subgraphs, none that is also an input); node names and value names are
unique across all scopes; nodes are in topological order; nothing is unused; the default domain is ``""``.
Inputs and outputs of the main graph keep their names, types and order.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph import meta, query
from octavo.model.graph.edit import Names, return_instead
from octavo.model.graph.inline import inline_functions
from octavo.model.graph.scopes import check_scopes, remove_unused, sort
from octavo.model.graph.tensors import dims_of, element_type


def normalize(model: ir.Model) -> list[str]:
    """Bring a model to the canonical form, in place; returns what was changed, in words."""
    notes: list[str] = []
    _default_domain(model)
    _note(notes, inline_functions(model), "call{s} of model-local functions inlined")
    check_scopes(model)
    graphs = list(query.graphs(model))
    _note(notes, _open_negative_sizes(graphs), "negative size{s} taken as unknown")
    if sort(model):
        notes.append("nodes put in topological order")
        graphs = list(query.graphs(model))
    _note(notes, _unique_names(graphs), "name{s} made unique")
    _note(notes, _inputs_to_constants(graphs), "initializer{s} no longer graph input{s}")
    for graph in graphs:
        _types_of_initializers(graph)
    constants, lifted = _gather_constants(graphs)
    _note(notes, constants, "Constant node{s} turned into initializers")
    _note(notes, lifted, "initializer{s} of subgraphs moved to the main graph")
    dead_nodes, dead_weights = remove_unused(model)
    _note(notes, dead_nodes, "unused node{s} removed")
    _note(notes, dead_weights, "unused initializer{s} removed")
    meta.annotate(model, one_graph=len(graphs) == 1 or len(list(query.graphs(model))) == 1)
    return notes


def _note(notes: list[str], count: int, text: str) -> None:
    if count:
        notes.append(f"{count} " + text.format(s="" if count == 1 else "s"))


def _default_domain(model: ir.Model) -> None:
    """Give the domain ``ai.onnx`` its other name, the empty one; nodes follow by themselves."""
    for imports in [model.opset_imports, *(f.opset_imports for f in model.functions.values())]:
        if "ai.onnx" in imports:
            version = imports.pop("ai.onnx")
            if imports.setdefault("", version) != version:
                raise ModelError(
                    f"The model imports the default opset twice, as {imports['']} and as {version}; keep one."
                )


def _open_negative_sizes(graphs: list[ir.Graph]) -> int:
    """Exporters write -1 for a size that is not known; inference of shapes computes with it, and aborts."""
    count = 0
    for graph in graphs:
        for value in [*graph.inputs, *(output for node in graph for output in node.outputs)]:
            shape = value.shape
            if shape is None:
                continue
            dims = shape.dims
            if any(isinstance(dim, int) and dim < 0 for dim in dims):
                value.shape = ir.Shape(None if isinstance(dim, int) and dim < 0 else dim for dim in dims)
                count += 1
    return count


def _defined(graph: ir.Graph) -> Iterable[ir.Value]:
    """Return the values that a graph defines, each once, the ones seen from outside first."""
    found = [*graph.inputs, *graph.outputs, *query.initializers(graph).values()]
    for node in graph:
        found += node.outputs
    return dict.fromkeys(found)


def _unique_names(graphs: list[ir.Graph]) -> int:
    """Give every value and node of every scope a name of its own; the main graph's come first."""
    values, nodes = Names(), Names()
    renamed = 0
    for graph in graphs:
        for value in _defined(graph):
            old = value.name
            if old == "":
                continue  # an optional output that is not there
            name = values.claim(old or "value")
            if name != old:
                value.name = name
                renamed += 1
    unnamed: list[ir.Node] = []
    for graph in graphs:
        for node in graph:
            if node.op_type == "Constant" and not node.domain:
                continue  # about to go
            old = node.name
            if not old:
                unnamed.append(node)
                continue
            name = nodes.claim(old)
            if name != old:
                node.name = name
                renamed += 1
    counts: dict[str, int] = {}
    for node in unnamed:
        number = counts.get(node.op_type, 0)
        counts[node.op_type] = number + 1
        node.name = nodes.claim(f"{node.op_type}_{number}")
    return renamed + len(unnamed)


def _inputs_to_constants(graphs: list[ir.Graph]) -> int:
    """Turn initializers that are also inputs into constants: defaults are not overridden."""
    graph, *others = graphs
    kept = [value for value in graph.inputs if not value.is_initializer()]
    count = len(graph.inputs) - len(kept)
    if count:
        graph.inputs.clear()
        graph.inputs.extend(kept)
    for inner in others:
        for value in inner.inputs:
            if value.is_initializer() and value.name is not None:
                inner.initializers.pop(value.name)  # a subgraph's inputs are always fed
                value.const_value = None
    return count


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol:
    """Return the content of a ``Constant`` node in any of its forms."""
    attributes = query.attributes(node)
    if len(attributes) != 1:
        raise ModelError(f"The Constant node {node.name!r} needs one attribute and has {len(attributes)}.")
    name, attribute = next(iter(attributes.items()))
    match name:
        case "value" if attribute.type == ir.AttributeType.TENSOR:
            tensor: ir.TensorProtocol = attribute.value  # as_tensor() asks a protocol, which is slow
            return tensor
        case "value_float" | "value_floats":
            return ir.tensor(np.array(attribute.value, np.float32))
        case "value_int" | "value_ints":
            return ir.tensor(np.array(attribute.value, np.int64))
        case "value_string":
            return ir.StringTensor([attribute.as_string().encode()], shape=ir.Shape([]))
        case "value_strings":
            texts = [text.encode() for text in attribute.as_strings()]
            return ir.StringTensor(texts, shape=ir.Shape([len(texts)]))
    raise ModelError(f"The Constant node {node.name!r} has the attribute {name!r}, which is not supported.")


def _gather_constants(graphs: list[ir.Graph]) -> tuple[int, int]:
    """Make constants of all scopes initializers of the main graph: what ``Constant`` nodes hold, and what
    subgraphs store. Returns how many ``Constant`` nodes there were, and how many constants left a subgraph;
    one that a subgraph returns goes through ``Identity``.
    """
    main, count, lifted = graphs[0], 0, 0
    for graph in graphs:
        found = [node for node in graph if node.op_type == "Constant" and not node.domain]
        constants = [_held(node) for node in found]
        if graph is not main:
            stored = list(query.initializers(graph).values())
            graph.initializers.clear()
            constants = stored + constants
            lifted += len(constants)
        for value in constants:
            if graph is not main and value.is_graph_output():
                _return_through_identity(graph, value)
            main.initializers.add(value)
        graph.remove(found)
        count += len(found)
    return count, lifted


def _held(node: ir.Node) -> ir.Value:
    """Return a value in the place of a ``Constant`` node's, with its content."""
    old, tensor = node.outputs[0], _constant_tensor(node)
    new = ir.Value(
        name=old.name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(dims_of(tensor)),
        const_value=tensor,
        metadata_props=dict(old.metadata_props),
    )
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    tensor.name = new.name
    return new


def _return_through_identity(graph: ir.Graph, value: ir.Value) -> None:
    output = ir.Value(name=f"{value.name}_output", type=value.type, shape=value.shape)
    identity = ir.Node("", "Identity", [value], outputs=[output], name=f"{value.name}_Identity")
    graph.append(identity)
    return_instead(graph, value, output)


def _types_of_initializers(graph: ir.Graph) -> None:
    """Give each initializer the type and shape of its content, whatever an annotation said."""
    for value in query.initializers(graph).values():
        tensor = value.const_value
        if tensor is None:
            raise ModelError(f"The initializer {value.name!r} has no content.")
        dtype = element_type(tensor)
        if type(value.type) is not ir.TensorType or value.dtype != dtype:
            value.type = ir.TensorType(dtype)
        dims = dims_of(tensor)
        if value.shape is None or value.shape.dims != dims:
            value.shape = ir.Shape(dims)
