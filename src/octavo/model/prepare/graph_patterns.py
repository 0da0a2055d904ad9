"""Small patterns over use-def chains: commutative operands, constants near a number, chains of readers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.query import is_op

# ---- A composition that was recognised: which nodes, and which one operator says the same


@dataclass(frozen=True)
class Composition:
    """Nodes, the last of which makes the result, and the operator that they compute."""

    op_type: str
    since: int  # the first opset that has the operator
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def made_by(value: ir.Value | None, *ops: str) -> ir.Node | None:
    """Return the node that makes a value, if it is one of these operators."""
    node = value.producer() if value is not None else None
    return node if is_op(node, *ops) else None


def read_by(value: ir.Value, *ops: str) -> ir.Node | None:
    """Return the only node that reads a value, if it is one of these operators and in the same graph."""
    node = query.only_reader(value)
    return node if node is not None and is_op(node, *ops) and node.graph is value.graph else None


def reduced_axes(node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes that a reduction runs over, an attribute or a constant input, if they are known."""
    axes = query.attribute(node, "axes", None)
    if axes is None and len(node.inputs) > 1:
        axes = query.array(node.inputs[1])
    return None if axes is None else tuple(int(axis) for axis in np.ravel(axes))


def other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the operand of a two-operand node that is not this value."""
    left, right = node.inputs[0], node.inputs[1]
    return right if left is value else left


def near(value: ir.Value | None, number: float) -> bool:
    """Whether a value is a constant of one element close to a number; half precision is close enough."""
    found = query.scalar(value)
    return found is not None and math.isclose(found, number, rel_tol=1e-3, abs_tol=1e-6)


def operand_beside(node: ir.Node | None, number: float) -> ir.Value | None:
    """Return the operand of a commutative node whose other operand is a constant close to a number."""
    if node is None or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if near(right, number):
        return left
    return right if near(left, number) else None


def scaled(value: ir.Value | None, factor: float) -> tuple[ir.Node, ir.Value] | None:
    """Return ``(node, x)`` where the value is ``x · factor``, written as a product or as a quotient."""
    product = made_by(value, "Mul")
    source = operand_beside(product, factor)
    if product is not None and source is not None:
        return product, source
    quotient = made_by(value, "Div")
    if quotient is not None and near(quotient.inputs[1], 1 / factor) and quotient.inputs[0] is not None:
        return quotient, quotient.inputs[0]
    return None


def scaling(node: ir.Node | None, value: ir.Value, factor: float) -> bool:
    """Whether a node multiplies this value by a factor, written as a product or as a quotient."""
    if node is None:
        return False
    if node.op_type == "Mul":
        return operand_beside(node, factor) is value
    return node.op_type == "Div" and node.inputs[0] is value and near(node.inputs[1], 1 / factor)


def product_of(start: ir.Value, x: ir.Value, factor: float) -> list[ir.Node] | None:
    """Return the nodes that make ``start · x · factor`` from ``start``, in any order; the last gives it.

    ``(start · x) · f``, ``(start · f) · x`` and ``start · (x · f)``, with ``f`` as a product or a quotient.
    """
    first = read_by(start, "Mul", "Div")
    if first is None:
        return None
    result = first.outputs[0]
    if scaling(first, start, factor):
        last = read_by(result, "Mul")
        return [first, last] if last is not None and other(last, result) is x else None
    if first.op_type != "Mul":
        return None
    beside = other(first, start)
    if beside is x:
        last = read_by(result, "Mul", "Div")
        return [first, last] if last is not None and scaling(last, result, factor) else None
    inner = scaled(beside, factor)
    if inner is not None and inner[1] is x and query.only_reader(inner[0].outputs[0]) is first:
        return [inner[0], first]
    return None


def closed(nodes: list[ir.Node]) -> bool:
    """Whether nothing outside of these nodes reads what they make, but for the last one's result."""
    inside = set(nodes)
    for node in nodes[:-1]:
        for value in node.outputs:
            if value.is_graph_output() or any(user not in inside for user, _ in value.uses()):
                return False
    return len({node.graph for node in nodes}) == 1
