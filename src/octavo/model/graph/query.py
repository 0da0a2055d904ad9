"""Questions about a model: small, pure, and answered from the use-def chains, never by a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph import operators
from octavo.model.graph.meta import describe, of

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16})
HALF_FLOATS = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_WITH_GRAPHS = frozenset(operators.SUBGRAPH_ATTRIBUTES)  # of the default domain; others are looked at


def has_random(model: ir.Model) -> bool:
    """Whether some operator draws from a generator, so that results depend on the order of runs."""
    return any(node.op_type in operators.RANDOM for node in nodes(model))


def nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield all nodes of all scopes, depth first: a node, then those of its subgraphs, then the next node."""
    return iter(model.graph) if of(model).one_graph else _nodes_of_all(model.graph)


def _nodes_of_all(main: ir.Graph) -> Iterator[ir.Node]:
    stack = [iter(main)]
    while stack:
        for node in stack[-1]:
            yield node
            if (node.op_type in _WITH_GRAPHS or node.domain) and (inner := subgraphs(node)):
                stack.extend(iter(graph) for graph in reversed(inner))
                break
        else:
            stack.pop()


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph and all subgraphs, each before those inside it."""
    yield model.graph
    if not of(model).one_graph:
        yield from _inside(model.graph)


def _inside(graph: ir.Graph) -> Iterator[ir.Graph]:
    for node in graph:
        if node.op_type in _WITH_GRAPHS or node.domain:
            found = subgraphs(node)
            yield from found
            for inner in found:
                yield from _inside(inner)


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield all graphs, those of functions too, also where an operator carries one that it should not."""
    yield from model.graphs()
    for identifier in sorted(model.functions):
        yield model.functions[identifier].graph
        yield from model.functions[identifier].subgraphs()


def tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield every initializer's tensor, of all scopes."""
    for graph in graphs(model):
        for value in initializers(graph).values():
            if value.const_value is not None:
                yield value.const_value


def values(model: ir.Model) -> dict[str, ir.Value]:
    """Return all values of all scopes by name: inputs, initializers and results."""
    found: dict[str, ir.Value] = {}
    for graph in graphs(model):
        found.update((value.name or "", value) for value in graph.inputs)
        found.update(initializers(graph))
    for node in nodes(model):
        for value in node.outputs:
            found[value.name or ""] = value
    found.pop("", None)
    return found


def initializers(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return a graph's initializers, for reading: onnx-ir's own mapping looks each of them up anew."""
    return graph.initializers.data


def attributes(node: ir.Node) -> dict[str, ir.Attr]:
    """Return a node's attributes, for reading: see :func:`initializers`."""
    return node.attributes.data


def held_tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Return what ``Constant`` nodes hold, before they become initializers."""
    held = (attribute(node, "value") for node in nodes(model) if is_op(node, "Constant"))
    return (tensor for tensor in held if isinstance(tensor, ir.TensorProtocol))


def takes_graphs(node: ir.Node) -> bool:
    """Whether a node may carry graphs: few standard operators do, those of other domains are not known."""
    return node.op_type in _WITH_GRAPHS or bool(node.domain)


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs that a node carries (an ``If``'s branches, a ``Loop``'s body)."""
    found: list[ir.Graph] = []
    if node.op_type not in _WITH_GRAPHS and not node.domain:
        return found
    for attribute in attributes(node).values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            found.append(attribute.value)
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            found.extend(attribute.value)
    return found


def conditional_graphs(model: ir.Model) -> dict[ir.Graph, ir.Node | None]:
    """Return the main graph, and those that nothing but Ifs surround, with the If that each belongs to."""
    found: dict[ir.Graph, ir.Node | None] = {model.graph: None}
    waiting = [model.graph]
    while waiting:
        for node in waiting.pop():
            if is_op(node, "If"):
                found.update(dict.fromkeys(subgraphs(node), node))
                waiting.extend(subgraphs(node))
    return found


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether a node is one of these operators of the default domain; one of another may share the name."""
    return node is not None and not node.domain and node.op_type in op_types


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the content of a constant: an initializer's tensor, also behind ``Identity`` nodes."""
    while value is not None:
        producer = value.producer()
        if producer is None:
            return value.const_value if value.is_initializer() and not value.is_graph_input() else None
        if producer.op_type != "Identity" or producer.domain or not producer.inputs:
            return None
        value = producer.inputs[0]
    return None


def array(value: ir.Value | None, *, limit: int = 1 << 20) -> npt.NDArray[Any] | None:
    """Return the content of a constant of at most ``limit`` elements."""
    tensor = constant(value)
    if tensor is None or tensor.size > limit:
        return None
    return np.asarray(tensor.numpy())


def scalar(value: ir.Value | None) -> float | None:
    """Return the content of a constant of one element, as a Python number."""
    found = array(value, limit=1)
    if found is None or found.size != 1 or found.dtype.kind in "SUO":
        return None
    return float(found.reshape(-1)[0])


def element_type(value: ir.Value | None) -> ir.DataType | None:
    """Return the element type of a tensor, where it is known."""
    if value is None:
        return None
    kind = value.type
    if kind is not None:
        if not isinstance(kind, ir.TensorType):
            return None
        dtype = kind.dtype
        if dtype is not None and dtype != ir.DataType.UNDEFINED:
            return dtype
    tensor = value.const_value
    return tensor.dtype if tensor is not None else None


def is_float(value: ir.Value | None) -> bool:
    """Whether a tensor is known to be of a floating-point type that can be quantized."""
    return element_type(value) in FLOATS


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node; None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def readers(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that read a value, each once, as they were connected; also those in subgraphs."""
    return list(value.consumers())


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the one node that reads a value, if nothing else sees it: no second reader, no graph output."""
    found = value.consumers()
    return found[0] if len(found) == 1 and not value.is_graph_output() else None


def shape(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """Return the dimensions of a tensor, None for each that is unknown; None without even a rank."""
    if value is None:
        return None
    known = value.shape
    if known is None:
        if value.const_value is None:
            return None
        return tuple(int(dim) for dim in value.const_value.shape.numpy())
    return tuple([dim if isinstance(dim, int) and dim >= 0 else None for dim in known.dims])


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the dimensions of a tensor where all of them are known."""
    dims = shape(value)
    return None if dims is None or None in dims else dims  # type: ignore[return-value]


def rank(value: ir.Value | None) -> int | None:
    """Return the number of dimensions of a tensor, where it is known."""
    known = value.shape if value is not None else None
    if value is not None and known is None and value.const_value is not None:
        known = value.const_value.shape  # type: ignore[assignment]
    return len(known) if known is not None else None


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """Return an attribute's value: int, float, str, tensor, or a tuple of those."""
    found = attributes(node).get(name)
    return found.value if found is not None and not found.is_ref() else default


def opset(model: ir.Model) -> int:
    """Return the version of the default operator set."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))


@dataclass(frozen=True)
class Linear:
    """A linear layer: ``MatMul`` with a constant weight, and the constant 1-D bias added to it, if any."""

    matmul: ir.Node
    add: ir.Node | None
    weight: ir.Value
    bias: ir.Value | None


def is_depthwise(node: ir.Node) -> bool:
    """Whether a node is a Conv that keeps its channels apart."""
    dims = shape(node.inputs[1]) if is_op(node, "Conv") and len(node.inputs) > 1 else None
    return dims is not None and len(dims) > 1 and dims[1] == 1 and attribute(node, "group", 1) > 1


def linear_layer(node: ir.Node) -> Linear | None:
    """Return the linear layer that a ``MatMul`` by a constant matrix is; None for any other node."""
    if node.op_type != "MatMul" or node.domain or len(node.inputs) != 2:
        return None
    weight = node.inputs[1]
    if weight is None or constant(weight) is None or rank(weight) != 2:
        return None
    add = only_reader(node.outputs[0])
    if add is not None and add.op_type == "Add" and not add.domain:
        other = add.inputs[0] if add.inputs[1] is node.outputs[0] else add.inputs[1]
        columns = shape(weight)
        if constant(other) is not None and columns is not None and shape(other) == (columns[1],):
            return Linear(node, add, weight, other)
    return Linear(node, None, weight, None)


@dataclass(frozen=True)
class NodeCounts:
    """How many nodes and weights of each kind a model has: what decides how it can be quantized."""

    float_weights: int
    quantize: int
    dequantize: int
    integer: int
    blockwise: int
    compiled: int

    @property
    def quantized(self) -> int:
        """Return nodes that show an earlier quantization."""
        return self.quantize + self.dequantize + self.integer + self.blockwise


def classify(model: ir.Model) -> NodeCounts:
    """Count what decides how a model can be quantized."""
    ops = Counter(node.op_type for node in nodes(model))
    weights = (value for graph in graphs(model) for value in initializers(graph).values())
    return NodeCounts(
        float_weights=sum(is_float(value) and (rank(value) or 0) >= 2 for value in weights),
        quantize=ops[operators.QUANTIZE],
        dequantize=ops[operators.DEQUANTIZE],
        integer=sum(n for op, n in ops.items() if op in operators.INTEGER or op.startswith("QLinear")),
        blockwise=sum(ops[op] for op in operators.BLOCKWISE),
        compiled=ops["EPContext"],
    )


def refuse_unsupported(model: ir.Model) -> None:
    """Raise for models that can't be quantized: compiled for one device, or quantized already."""
    kind = classify(model)
    name = describe(model)
    if kind.compiled:
        raise ModelError(
            f"{name} is compiled for one device ({kind.compiled} EPContext nodes), so its operators can't be "
            "seen; quantize the model that it was compiled from."
        )
    pipeline = {node.op_type for node in nodes(model) if node.domain == "ai.onnx.ml"}
    if pipeline and not _has_float_compute(model):
        raise ModelError(
            f"{name} is a pipeline of classical machine learning ({', '.join(sorted(pipeline)[:5])}), whose "
            "operators have no quantized form; only networks with layers like MatMul, Gemm or Conv can be "
            "quantized."
        )
    if kind.quantized and not kind.float_weights and not _has_float_compute(model):
        raise ModelError(
            f"{name} is quantized already ({kind.quantize} QuantizeLinear, {kind.dequantize} "
            f"DequantizeLinear, {kind.integer + kind.blockwise} integer operators) and has no float operator "
            "left to quantize; start from the float model."
        )


def _has_float_compute(model: ir.Model) -> bool:
    """Whether some matrix product or convolution reads a float that does not come from a DequantizeLinear."""
    for node in nodes(model):
        if node.op_type not in operators.LAYERS:
            continue
        for value in node.inputs[:2]:
            producer = value.producer() if value is not None else None
            if value is not None and (producer is None or producer.op_type != "DequantizeLinear"):
                return True
    return False
