"""The inputs of an integer operator, from the operand template of its row in the op table."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import onnx_ir as ir

from octavo.ops import Lowering


class Quantized(NamedTuple):
    """An integer value with its parameters, as values of the graph."""

    integers: ir.Value
    scale: ir.Value
    zero: ir.Value | None


def operands_of(
    lowering: Lowering,
    node: ir.Node,
    quantized: Callable[[int], Quantized],
    bias: Callable[[int], ir.Value] | None = None,
    output: tuple[ir.Value, ir.Value] | None = None,
    padding: Callable[[int], ir.Value | None] | None = None,
) -> list[ir.Value | None]:
    """Return the operands of the integer operator that one node becomes.

    ``output`` is scale and zero point of output 0; None leaves them out. ``padding`` gives the integers of a
    fill value that has an entry in the plan.
    """
    operands: list[ir.Value | None] = []
    tokens = lowering.operands.split()
    for position, token in enumerate(tokens):
        if token == "rest":
            operands.extend(node.inputs[1:])
        elif token == "…":
            operands.extend(_repeat(tokens[:position], node, quantized))
        elif token[0] == "p":
            given = padding(int(token[1:])) if padding is not None else None
            operands.append(given if given is not None else quantized(0).zero)
        elif token in ("sy", "zy"):
            operands.append(output["sz".index(token[0])] if output is not None else None)
        else:
            operands.append(_operand(token, node, quantized, bias))
    while operands and operands[-1] is None:
        operands.pop()
    return operands


def _operand(
    token: str, node: ir.Node, quantized: Callable[[int], Quantized], bias: Callable[[int], ir.Value] | None
) -> ir.Value | None:
    kind, index = token[0], int(token[1:])
    present = index < len(node.inputs) and node.inputs[index] is not None
    if not present:
        return None
    if kind == "f":
        return node.inputs[index]
    if kind == "b":
        return bias(index) if bias is not None else None
    return quantized(index)["qsz".index(kind)]


def _repeat(before: list[str], node: ir.Node, quantized: Callable[[int], Quantized]) -> list[ir.Value | None]:
    """Return the operands of the group of tokens that ends with the first input, for every further input."""
    group = [t[0] for t in before if t.endswith("0")]
    return [quantized(i)["qsz".index(kind)] for i in range(1, len(node.inputs)) for kind in group]
