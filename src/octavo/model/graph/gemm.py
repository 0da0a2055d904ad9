"""Gemm as MatMul and Add, for integer kernels that know only the product."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import GraphProto, NodeProto

from octavo.model.graph.protos import bodies, remove, replace_nodes


def split(graph: GraphProto) -> int:
    """Write each plain Gemm (``alpha = beta = 1``, A not transposed) as MatMul and Add; returns how many.

    Nodes get the names ``<name>_MatMul`` and ``<name>_Add``. A constant B that is transposed is stored so,
    under its own name where nothing else reads it.
    """
    used = Counter(name for node in graph.node for name in node.input)
    used.update(value.name for value in graph.output)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[NodeProto] = []
    count = 0
    for node in graph.node:
        for body in bodies(node):
            count += split(body)
        if node.op_type == "Gemm" and not node.domain and _plain(node):
            nodes += _parts(node, graph, weights, used)
            count += 1
        else:
            nodes.append(node)
    if count:
        replace_nodes(graph, nodes)
    return count


def _attributes(node: NodeProto) -> dict[str, float]:
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, **given}


def _plain(node: NodeProto) -> bool:
    values = _attributes(node)
    return values["alpha"] == 1.0 and values["beta"] == 1.0 and not values["transA"]


def _parts(
    node: NodeProto, graph: GraphProto, weights: dict[str, onnx.TensorProto], used: Counter[str]
) -> list[NodeProto]:
    a, b, *c = node.input
    before: list[NodeProto] = []
    if _attributes(node)["transB"]:
        if b in weights:
            b = _transposed(b, graph, weights, used)
        else:
            before = [onnx.helper.make_node("Transpose", [b], [f"{b}_Transposed"], f"{node.name}_Transpose")]
            b = f"{b}_Transposed"
    output = node.output[0]
    has_bias = bool(c and c[0])
    product = f"{output}_MatMul" if has_bias else output
    matmul = onnx.helper.make_node("MatMul", [a, b], [product], f"{node.name}_MatMul" if node.name else "")
    if not has_bias:
        return [*before, matmul]
    add = onnx.helper.make_node("Add", [product, c[0]], [output], f"{node.name}_Add" if node.name else "")
    return [*before, matmul, add]


def _transposed(
    name: str, graph: GraphProto, weights: dict[str, onnx.TensorProto], used: Counter[str]
) -> str:
    """Return the initializer that holds the transposed weight."""
    alone = used[name] == 1
    new = name if alone else f"{name}_Transposed"
    if not alone and new in weights:
        return new
    array = np.ascontiguousarray(np.transpose(onnx.numpy_helper.to_array(weights[name])))
    if alone:
        remove(graph.initializer, [weights[name]])
        remove(graph.input, [value for value in graph.input if value.name == name])
    graph.initializer.append(onnx.numpy_helper.from_array(array, new))
    weights[new] = graph.initializer[-1]
    return new
