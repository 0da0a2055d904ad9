"""Weights of MatMul that are matrices but for leading axes of one: ``[1, 1, K, N]`` becomes ``[K, N]``.

Kernels for weights in blocks take matrices. The product has fewer axes then where the input has fewer than
the weight had: leading axes of one are put back, by an Unsqueeze where the rank of the input is known, and by
``Reshape(y, Concat(ones(max(rank - max(rank of y, 2), 0)), Shape(y)))`` where it is not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.model.graph.tensors import computed
from octavo.model.prepare import shapes

_INT64 = ir.DataType.INT64
_AXES_ARE_INPUTS = 13  # the first opset in which Unsqueeze takes its axes as an input


def squeeze_weights(model: ir.Model, wanted: Callable[[ir.Node], bool] = lambda node: True) -> int:
    """Make matrices of such weights of the wanted nodes, in place; returns of how many."""
    found = [node for node in query.nodes(model) if _has_unit_axes(node) and wanted(node)]
    if any(query.rank(node.inputs[0]) is None for node in found):
        shapes.infer(model)
    edit = Editor(model)
    for node in found:
        _squeeze(edit, node)
    return len(found)


def _has_unit_axes(node: ir.Node) -> bool:
    if not query.is_op(node, "MatMul") or len(node.inputs) != 2:
        return False
    tensor = query.constant(node.inputs[1])
    dims = tuple(tensor.shape.numpy()) if tensor is not None else ()
    return len(dims) > 2 and set(dims[:-2]) == {1}


def _squeeze(edit: Editor, node: ir.Node) -> None:
    weight, output = node.inputs[1], node.outputs[0]
    tensor = query.constant(weight)
    if weight is None or tensor is None:
        return
    dims = tuple(tensor.shape.numpy())
    reshaped = computed(lambda: np.asarray(tensor.numpy()).reshape(dims[-2:]), tensor.dtype, dims[-2:])
    matrix = edit.constant(f"{weight.name}_matrix", reshaped)
    node.replace_input_with(1, matrix)
    if weight.is_initializer() and not weight.uses() and not weight.is_graph_output() and weight.name:
        name = weight.name
        weight.graph.initializers.pop(name)  # type: ignore[union-attr]
        matrix.name = name
    rank = query.rank(node.inputs[0])
    if rank is None or rank < len(dims):
        _restore(edit, node, output, len(dims), rank)


def _restore(edit: Editor, node: ir.Node, output: ir.Value, rank: int, known: int | None) -> None:
    """Put the leading axes back behind a product; the last new node takes over its output."""
    name = output.name or ""
    product = ir.Value(name=edit.values.claim(f"{name}_product"), type=output.type)
    new = ir.Node(
        node.domain, node.op_type, node.inputs, node.attributes.values(), outputs=[product], name=node.name
    )
    made = [new]

    def add(op: str, inputs: list[ir.Value], what: str, dtype: ir.DataType | None = _INT64) -> ir.Value:
        made.append(edit.node(op, inputs, name=f"{name}_{what}", dtype=dtype))
        return made[-1].outputs[0]

    def number(what: str, *content: int) -> ir.Value:
        return edit.constant(f"{name}_{what}", np.array(content, np.int64))

    if known is not None:
        axes = tuple(range(rank - max(known, 2)))
        as_input = [number("axes", *axes)] if query.opset(edit.model) >= _AXES_ARE_INPUTS else []
        last = add("Unsqueeze", [product, *as_input], "unsqueezed", output.dtype)
        if not as_input:
            made[-1].attributes["axes"] = ir.AttrInt64s("axes", axes)
    else:
        shape = add("Shape", [product], "shape")
        own = add("Max", [add("Shape", [shape], "rank"), number("two", 2)], "rank_of_matrix")
        missing = add("Sub", [number("rank_of_weight", rank), own], "missing")
        count = add("Max", [missing, number("none", 0)], "count")
        ones = add("ConstantOfShape", [count], "ones")
        made[-1].attributes["value"] = ir.AttrTensor("value", ir.Tensor(np.array([1], np.int64)))
        whole = add("Concat", [ones, shape], "whole_shape")
        made[-1].attributes["axis"] = ir.AttrInt64("axis", 0)
        last = add("Reshape", [product, whole], "reshaped", output.dtype)
    graph = node.graph
    if graph is None:
        return
    graph.insert_after(node, made)
    edit.take_over(last, output)
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    graph.remove(node)
