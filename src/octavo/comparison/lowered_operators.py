"""Which float operator an integer operator, or a chain of nodes, was lowered from.

The op table says how each output style lowers an operator; :mod:`octavo.ops.integer_operators` has its rows
by the integer operator's name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.comparison import constant_values
from octavo.comparison.constant_values import Array, is_constant, numbers
from octavo.model.graph import query
from octavo.ops import LINEAR
from octavo.ops.integer_operators import GIVE_SUMS, INTEGER_OPERATORS, SAME_AS


@dataclass(frozen=True)
class Operand:
    """What a unit reads at one place; scale and zero point where it reads integers."""

    value: ir.Value
    scale: ir.Value | None = None
    zero: ir.Value | None = None


@dataclass(frozen=True, eq=False)
class Unit:
    """One operator: its kind, the nodes it is lowered with, and what the float operator would read."""

    kind: str
    node: ir.Node
    nodes: tuple[ir.Node, ...]
    operands: tuple[Operand | None, ...]
    outputs: tuple[ir.Value, ...]
    scale: ir.Value | None = None
    zero: ir.Value | None = None
    is_integer: bool = False

    @property
    def name(self) -> str:
        """Return the name of its operator node."""
        return self.node.name or (self.outputs[0].name if self.outputs else "") or ""


def unit(node: ir.Node) -> Unit:
    """Return the unit that a node is, or begins."""
    lowered = INTEGER_OPERATORS.get(node.op_type)
    if lowered is None:
        if node.op_type == "Gather" and is_constant(node.inputs[0]):
            return _lookup(node)
        inputs = tuple(Operand(v) if v is not None else None for v in node.inputs)
        kind = SAME_AS.get(node.op_type, node.op_type)
        return Unit(kind, node, (node,), inputs, tuple(node.outputs))
    found = _fill(node, lowered.operands)
    line = _line(node) if node.op_type in GIVE_SUMS else [node]
    last = line[-1]
    wide = max((i for letter, i in found if letter in "qf" and isinstance(i, int)), default=-1)
    inputs = tuple(_operand(found, i) for i in range(wide + 1))
    outputs = tuple(last.outputs if len(line) > 1 else node.outputs)
    out = {letter: found.get((letter, "y")) for letter in "sz"}
    return Unit(lowered.computes, node, tuple(line), inputs, outputs, out["s"], out["z"], is_integer=True)


def _operand(found: dict[tuple[str, int | str], ir.Value], index: int) -> Operand | None:
    value = found.get(("q", index)) or found.get(("f", index))
    return Operand(value, found.get(("s", index)), found.get(("z", index))) if value is not None else None


def _fill(node: ir.Node, tokens: str) -> dict[tuple[str, int | str], ir.Value]:
    """Return inputs by what they are: ``("q", 0)``, integers of input 0; ``("s", "y")``, output scale."""
    words = tokens.split()
    found: dict[tuple[str, int | str], ir.Value] = {}
    if "…" in words:
        words = words[: words.index("…")]
        group = [w[0] for w in words if w[1:] != "y"]
        extra = (len(node.inputs) - len(words)) // len(group)
        words += [f"{letter}{i}" for i in range(1, extra + 1) for letter in group]
    for word, value in zip(words, node.inputs, strict=False):
        if value is not None and word not in ("-", "rest"):
            key: int | str = "y" if word[1:] == "y" else int(word[1:])
            found[word[0], key] = value
    return found


def _line(node: ir.Node) -> list[ir.Node]:
    """Return an integer product and the nodes that bring it back to float: a Cast, then scales."""
    found = [node]
    cast = query.only_reader(node.outputs[0])
    if cast is None or cast.op_type != "Cast":
        return found
    found.append(cast)
    while (mul := query.only_reader(found[-1].outputs[0])) is not None and mul.op_type == "Mul":
        other = next((v for v in mul.inputs if v is not found[-1].outputs[0]), None)
        maker = other.producer() if other is not None else None
        if not is_constant(other) and not _is_scale(other):
            break
        if maker is not None and maker.op_type == "Mul":
            found.insert(len(found) - 1, maker)
        found.append(mul)
    return found


def _is_scale(value: ir.Value | None, depth: int = 4) -> bool:
    """Whether a value is made of scales: constants, and what DynamicQuantizeLinear found."""
    if value is None or is_constant(value):
        return value is not None
    maker = value.producer()
    if maker is None:
        return False
    if maker.op_type == "DynamicQuantizeLinear":
        return value is maker.outputs[1]
    return (
        maker.op_type in ("Mul", "Reshape")
        and depth > 0
        and all(_is_scale(v, depth - 1) for v in maker.inputs)
    )


def _lookup(node: ir.Node) -> Unit:
    """Return rows of a table; where they are integers, with the nodes that make them float."""
    nodes = [node]
    tensor = query.constant(node.inputs[0])
    if tensor is not None and tensor.dtype.itemsize == 1:
        step = query.only_reader(node.outputs[0])
        while step is not None and step.op_type in ("Cast", "Sub", "Mul") and _rows_only(step, nodes[-1]):
            nodes += [
                m for v in step.inputs if (m := v.producer() if v else None) is not None and m not in nodes
            ]
            nodes.append(step)
            step = query.only_reader(step.outputs[0])
    inputs = tuple(Operand(v) if v is not None else None for v in node.inputs)
    return Unit("Gather", node, tuple(nodes), inputs, tuple(nodes[-1].outputs), is_integer=len(nodes) > 1)


def _rows_only(step: ir.Node, before: ir.Node) -> bool:
    others = [v for v in step.inputs if v is not None and v is not before.outputs[0]]
    makers = [v.producer() for v in others]
    return all(m is not None and m.op_type == "Gather" and is_constant(m.inputs[0]) for m in makers)


def weight(found: Unit, index: int) -> Array | None:
    """Return the constant that a unit reads at a place, in real numbers; None where it reads no constant."""
    operand = found.operands[index] if index < len(found.operands) else None
    if operand is None or not is_constant(operand.value):
        return None
    if found.node.op_type == "MatMulNBits" and index == 1:
        return constant_values.blocks(found.node)
    if found.node.op_type == "GatherBlockQuantized" and index == 0:
        return constant_values.block_rows(found.node)
    if found.kind == "Gather" and found.is_integer and index == 0:
        return _table(found)
    held = constant_values.real(operand.value)
    if held is None or held.dtype.kind not in "iu" or not found.is_integer:
        return held if held is not None and held.dtype.kind == "f" else None
    scale, zero = scale_of(found, index), numbers(operand.zero)
    return (
        constant_values.dequantize(held, scale, zero, channel_axis(found, index))
        if scale is not None
        else None
    )


def scale_of(found: Unit, index: int) -> Array | None:
    """Return the scales of the integers that a unit reads at a place."""
    operand = found.operands[index] if index < len(found.operands) else None
    if operand is None:
        return None
    if operand.scale is not None:
        return numbers(operand.scale)
    if index == 2 and found.kind in LINEAR:
        one, other = scale_of(found, 0), scale_of(found, 1)
        return one * other if one is not None and other is not None else None
    if index == 1 and len(found.nodes) > 1:
        return _line_scale(found)
    maker = operand.value.producer()
    return numbers(maker.inputs[1]) if maker is not None and maker.op_type == "DequantizeLinear" else None


def _line_scale(found: Unit) -> Array | None:
    """Return what an integer product is multiplied with, less the scale of its input."""
    inside = {v for node in found.nodes for v in node.outputs}
    total: Array = np.ones(())
    for node in found.nodes:
        if node.op_type == "Mul":
            for value in node.inputs:
                if value is not None and value not in inside and is_constant(value):
                    total = total * constant_values.stored(value).astype(np.float64)
    first = found.operands[0]
    maker = first.value.producer() if first is not None else None
    if maker is not None and maker.op_type == "QuantizeLinear":
        own = numbers(maker.inputs[1])
        total = total / own if own is not None else total
    return np.asarray(total).reshape(-1)


def _table(found: Unit) -> Array:
    """Return a table of integer rows with a scale, and perhaps a zero point, for each."""
    gathered = [(n, constant_values.stored(n.inputs[0])) for n in found.nodes if n.op_type == "Gather"]
    table = gathered[0][1].astype(np.float32)
    for step in found.nodes:
        if step.op_type in ("Sub", "Mul"):
            for node, content in gathered[1:]:
                if node.outputs[0] in step.inputs:
                    table = table - content if step.op_type == "Sub" else table * content
    return np.asarray(table, np.float32)


def channel_axis(found: Unit, index: int) -> int:
    """Return the axis of a weight along which its scales lie."""
    if found.node.op_type == "QGemm":
        return 0 if query.attribute(found.node, "transB", 0) or index == 2 else 1
    if found.kind == "MatMul":
        return -1
    return 1 if found.kind == "ConvTranspose" and index == 1 else -1 if found.kind == "LSTM" else 0
