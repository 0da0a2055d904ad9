"""Float and quantized models in the same terms: units and signals, whatever the output style.

A *signal* is a tensor in all the forms it takes: as float, quantized, dequantized, cast, copied. A *unit* is
one operator in all the nodes it takes: ``QLinearConv`` is a Conv, and so is ``ConvInteger`` with the Cast and
the products behind it. A float model and its quantized twin then have nearly the same units and signals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from octavo.comparison import lowered_operators
from octavo.comparison.constant_values import cast_type, is_constant, numbers, stored_value
from octavo.comparison.lowered_operators import Operand, Unit
from octavo.model.graph import query
from octavo.model.graph.operators import CONVERSIONS_OR_DYNAMIC, DEQUANTIZE, QUANTIZE
from octavo.ops import DATA_MOVEMENT

_COPIES = CONVERSIONS_OR_DYNAMIC | {"Identity", "Dropout"}
_BELOW_ANY_SIGNAL = -1e30  # a Max with less than this changes nothing


@dataclass(frozen=True)
class ScaleAndZero:
    """Scale and zero point of an integer tensor, as the graph has them."""

    scale: ir.Value
    zero: ir.Value | None


class SignalView:
    """The units and signals of one model, which is in its normal form."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._root: dict[ir.Value, ir.Value] = {}
        self.units: list[Unit] = []
        self.numbers: dict[ir.Value, ScaleAndZero] = {}
        self.members: dict[ir.Value, list[ir.Value]] = {}
        self._read(list(query.nodes(model)))
        self.maker = {self.signal(v): unit for unit in self.units for v in unit.outputs}
        self.readers: dict[ir.Value, list[tuple[Unit, int]]] = {}
        for unit in self.units:
            for slot, operand in enumerate(unit.operands):
                if operand is not None:
                    self.readers.setdefault(self.signal(operand.value), []).append((unit, slot))
        for value in self._values():
            self.members.setdefault(self.signal(value), []).append(value)
        self.leaving = {self.signal(v) for graph in query.graphs(model) for v in graph.outputs}

    def _read(self, nodes: list[ir.Node]) -> None:
        taken: set[ir.Node] = set()
        for node in nodes:
            if node in taken:
                continue
            if is_copy(node):
                self._join(node.outputs[0], query.operand(node, 0))
                self._note_linear(node)
            elif not all(is_constant(v) for v in node.outputs):
                unit = lowered_operators.unit(node)
                taken.update(unit.nodes)
                self.units.append(unit)
                self._note(unit)

    def _note_linear(self, node: ir.Node) -> None:
        x, scale, zero = (query.operand(node, number) for number in range(3))
        if node.op_type == "QuantizeLinear" and scale is not None:
            self.numbers[node.outputs[0]] = ScaleAndZero(scale, zero)
        elif node.op_type == "DequantizeLinear" and x is not None and scale is not None:
            self.numbers.setdefault(x, ScaleAndZero(scale, zero))
        elif node.op_type == "DynamicQuantizeLinear" and len(node.outputs) > 2:
            self.numbers[node.outputs[0]] = ScaleAndZero(node.outputs[1], node.outputs[2])

    def _note(self, unit: Unit) -> None:
        for operand in unit.operands:
            if operand is not None and operand.scale is not None:
                self.numbers.setdefault(operand.value, ScaleAndZero(operand.scale, operand.zero))
        out = unit.outputs[0] if unit.outputs else None
        if out is None:
            return
        if unit.scale is not None:
            self.numbers[out] = ScaleAndZero(unit.scale, unit.zero)
        elif unit.kind in DATA_MOVEMENT and unit.operands and unit.operands[0] is not None:
            known = self.numbers.get(unit.operands[0].value)
            if known is not None and not query.is_float(out):
                self.numbers.update((v, known) for v in unit.outputs if v.dtype is out.dtype)

    def _join(self, value: ir.Value, other: ir.Value | None) -> None:
        if other is not None:
            self._root[value] = self.signal(other)

    def signal(self, value: ir.Value) -> ir.Value:
        """Return the value that represents the signal of which this one is a form."""
        return self._root.get(value, value)

    def _values(self) -> Iterator[ir.Value]:
        for graph in query.graphs(self.model):
            yield from graph.inputs
        for node in query.nodes(self.model):
            yield from node.outputs

    def seen(self, signal: ir.Value) -> ir.Value:
        """Return the form that readers see: dequantized where there is one, else integers, else float."""
        forms = self.members.get(signal, [signal])
        for op in (DEQUANTIZE, QUANTIZE):
            for value in forms:
                producer = value.producer()
                if producer is not None and producer.op_type == op:
                    return value
        return forms[0]

    def quantization(self, signal: ir.Value) -> ScaleAndZero | None:
        """Return scale and zero point of a signal that is quantized by constant numbers, anywhere."""
        for value in self.members.get(signal, [signal]):
            found = self.numbers.get(value)
            if found is not None and is_constant(found.scale):
                return found
        return None

    def is_quantized(self, unit: Unit) -> bool:
        """Whether a unit reads, holds or gives less than float32: integers, or 16-bit floats."""
        values = [operand.value for operand in unit.operands if operand is not None]
        return (
            unit.is_integer
            or any(_dequantized(v) or half_type(v) is not None for v in values)
            or any(
                self.quantization(self.signal(v)) is not None or half_type(v) is not None
                for v in unit.outputs
            )
        )


def _dequantized(value: ir.Value) -> bool:
    producer = value.producer()
    while producer is not None and producer.op_type in ("Transpose", "Identity", "Reshape", "Max"):
        if producer.op_type != "Identity" and not is_copy(producer) and not is_constant(value):
            return False
        first = producer.inputs[0]
        producer = first.producer() if first is not None else None
    return producer is not None and producer.op_type == "DequantizeLinear"


def half_type(value: ir.Value) -> ir.DataType | None:
    """Return the 16-bit float type of a value, or of the constant that a Cast makes it from."""
    stored = stored_value(value) if is_constant(value) else value
    kind = query.element_type(stored)
    return kind if kind in query.HALF_FLOATS else None


def is_copy(node: ir.Node) -> bool:
    """Whether a node gives its first input in another form."""
    if node.op_type in _COPIES:
        return True
    if node.op_type == "Cast":
        return query.is_float(query.operand(node, 0)) and cast_type(node) in query.FLOATS
    if node.op_type == "Max" and len(node.inputs) == 2:
        low = numbers(node.inputs[1])
        return low is not None and low.size == 1 and float(low.reshape(-1)[0]) < _BELOW_ANY_SIGNAL
    return False


def operands(unit: Unit) -> Iterable[tuple[int, Operand]]:
    """Return the operands that there are, with their places."""
    return ((i, operand) for i, operand in enumerate(unit.operands) if operand is not None)
