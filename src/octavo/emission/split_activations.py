"""Linear layers whose input has outliers: it is split into a high and a low part, perhaps row by row.

::

    n = x / max|x| of the row                          (by row)
    n ≈ s₁·(q₁ − z₁),   n − s₁·(q₁ − z₁) ≈ s₂·(q₂ − 128),   s₂ = s₁ / 254        (high and low part)
    y = (s₁·(q₁ − z₁)·W  +  s₂·(q₂ − 128)·W) · max|x|

Rounding leaves at most half a step, so that the scale of the low part follows from that of the high part.
Both parts are multiplied with the same weights, in the runtime's fast kernel with one scale for the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Dynamic, Key
from octavo.core.qtypes import UINT8, QType
from octavo.emission import names
from octavo.emission.operands import Quantized
from octavo.emission.writer import NodeChain, Writer
from octavo.errors import TableError
from octavo.model.graph import query
from octavo.ops import MATMUL_TO_FLOAT

_MIDDLE = 128  # the zero point of both parts
_STEPS = 127.0  # from zero to a row's largest value
_FINER = 254.0  # steps of the low part in one of the high part: what rounding leaves is half a step
_TINY = 1e-30  # a row of zeros is not divided by zero
_AXES_BY_INPUT = 18  # the opset since which reductions take their axes as an input


@dataclass(frozen=True)
class _Split:
    """A quantized input: its parts, and what each row was divided by."""

    parts: tuple[Quantized, ...]
    rows: ir.Value | None


def is_split(writer: Writer, node: ir.Node) -> bool:
    """Return whether the plan splits the input of a layer, or scales it row by row."""
    entry = writer.plan.entries.get(_key(node, 0))
    return isinstance(entry, Dynamic) and (entry.twice or entry.by_row)


def write(writer: Writer, node: ir.Node) -> None:
    """Write a layer with a constant matrix as one or two integer products with float results."""
    x, entry = node.inputs[0], writer.plan.entries[_key(node, 0)]
    if x is None or not isinstance(entry, Dynamic):
        raise TableError(f"The plan splits the input of {node.name!r}, which is not quantized at run time.")
    slot = ("split", x, entry)
    if slot not in writer.shared:
        writer.shared[slot] = _Input(writer, x).split(entry)
    split: _Split = writer.shared[slot]
    _Product(writer, node).write(split)


def _key(node: ir.Node, index: int) -> Key:
    value = query.operand(node, index)
    return Key(value.name or "" if value is not None else "", node.name)


class _Input(NodeChain):
    """The nodes that quantize an input, right after the node that computes it."""

    def __init__(self, writer: Writer, x: ir.Value) -> None:
        super().__init__(writer, x.name or "")
        self.x = x

    def split(self, entry: Dynamic) -> _Split:
        """Quantize the input as its entry says."""
        rows = self._row_maxima() if entry.by_row else None
        if rows is None:
            node, high = self.w.dynamically_quantized(self.x)
            value = self.x
            self.new.append(node)
        else:
            value = self.node("Mul", [self.x, self.node("Reciprocal", [rows], "_row_factor")], "_rows_scaled")
            high = self._quantized(value, self._number("row_scale", np.float32(1 / _STEPS)), names.QUANTIZED)
        parts = (high, self._low(value, high, rows is not None)) if entry.twice else (high,)
        self.w.after(self.x, self.new)
        return _Split(parts, rows)

    def _number(self, name: str, content: Any, qtype: QType | None = None) -> ir.Value:
        return self.shared(f"passes_{name}", content, qtype)

    def _row_maxima(self) -> ir.Value:
        """Compute the largest magnitude of each row."""
        old = query.opset(self.w.model) < _AXES_BY_INPUT
        which: dict[str, Any] = {"keepdims": 1, **({"axes": [-1]} if old else {})}
        operands = [self.x] if old else [self.x, self._number("last_axis", np.array([-1], np.int64))]
        high = self.node("ReduceMax", operands, "_row_max", **which)
        low = self.node("ReduceMin", operands, "_row_min", **which)
        tiny = self._number("tiny", np.float32(_TINY))
        return self.node("Max", [high, self.node("Neg", [low], "_row_low"), tiny], "_row_largest")

    def _quantized(self, value: ir.Value, scale: ir.Value, suffix: str) -> Quantized:
        zero = self._number("middle", np.uint8(_MIDDLE), UINT8)
        integers = self.node("QuantizeLinear", [value, scale, zero], suffix, ir.DataType.UINT8)
        return Quantized(integers, scale, zero)

    def _low(self, value: ir.Value, high: Quantized, by_row: bool) -> Quantized:
        """Quantize what rounding to the high part leaves."""
        back = self.node("DequantizeLinear", list(high), "_first_pass")
        rest = self.node("Sub", [value, back], "_left")
        if by_row:
            scale = self._number("row_scale_left", np.float32(1 / _STEPS / _FINER))
        else:
            share = self._number("share_left", np.float32(1 / _FINER))
            scale = self.node("Mul", [high.scale, share], "_scale_left")
        return self._quantized(rest, scale, "_left" + names.QUANTIZED)


class _Product(NodeChain):
    """The products that replace one layer."""

    def __init__(self, writer: Writer, layer: ir.Node) -> None:
        super().__init__(writer, layer.outputs[0].name or "")
        self.layer = layer

    def write(self, split: _Split) -> None:
        """Multiply each part, add them up, and undo the division of rows."""
        found = [self._product(part, number) for number, part in enumerate(split.parts, start=1)]
        last = found[0] if len(found) == 1 else self.node("Add", found, "_sum")
        if split.rows is not None:
            last = self.node("Mul", [last, split.rows], "_rows_restored")
        bias = self.layer.inputs[2] if len(self.layer.inputs) > 2 else None
        if bias is not None:
            self.node("Add", [last, bias], "_biased")
        self.w.replace_node(self.layer, self.new)

    def _product(self, x: Quantized, number: int) -> ir.Value:
        w, lowering = self._weight(), MATMUL_TO_FLOAT
        operands = [x.integers, w.integers, x.scale, w.scale, x.zero]
        operands += [w.zero] if w.zero is not None else []
        return self.node(lowering.op_type, operands, f"_pass_{number}", domain=lowering.domain)

    def _weight(self) -> Quantized:
        key, layer = _key(self.layer, 1), self.layer
        transposed = layer.op_type == "Gemm" and query.attribute(layer, "transB", 0)
        scale, zero = self.w.scale_and_zero(key)
        integers = self.w.quantized_weight(key, layout=(1, 0) if transposed else None)
        return Quantized(integers, scale, zero if self.w.params[key].zero_point.any() else None)
