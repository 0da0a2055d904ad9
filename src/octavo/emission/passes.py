"""Linear layers with loud inputs: the input takes two passes of 8 bits, each row perhaps by itself.

::

    n = x / max|x| of the row                          (by row)
    n ≈ s₁·(q₁ − z₁),   n − s₁·(q₁ − z₁) ≈ s₂·(q₂ − 128),   s₂ = s₁ / 254        (twice)
    y = (s₁·(q₁ − z₁)·W  +  s₂·(q₂ − 128)·W) · max|x|

Rounding leaves at most half a step, so that the scale of the second pass is known from the first. Both passes
multiply with the same weights, in the runtime's fast kernel of one scale a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Dynamic, Key
from octavo.core.qtypes import UINT8, QType
from octavo.emission import names
from octavo.emission.forms import Quantized
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model import query
from octavo.ops import MATMUL_TO_FLOAT

_MIDDLE = 128
_STEPS = 127.0  # of a row's largest value
_LEFT = 254.0  # half a step of the first pass is so many of the second, halved
_TINY = 1e-30  # keeps a row of zeros from being divided by zero
_AXES_BY_INPUT = 18  # the opset since which reductions take their axes as an input


@dataclass(frozen=True)
class _Source:
    """An input, quantized: its passes, and what each row was divided by."""

    parts: tuple[Quantized, ...]
    rows: ir.Value | None


def is_wanted(writer: Writer, node: ir.Node) -> bool:
    """Whether the plan wants a layer written so."""
    entry = writer.plan.entries.get(_key(node, 0))
    return isinstance(entry, Dynamic) and (entry.twice or entry.by_row)


def passes(writer: Writer, node: ir.Node) -> None:
    """Write a layer with a constant matrix as one or two integer products whose results are float."""
    x, entry = node.inputs[0], writer.plan.entries[_key(node, 0)]
    if x is None or not isinstance(entry, Dynamic):
        raise TableError(f"The plan wants {node.name!r} in passes, and its input has no range to be found.")
    slot = ("passes", x, entry)
    if slot not in writer.shared:
        writer.shared[slot] = _Reading(writer, x).source(entry)
    source: _Source = writer.shared[slot]
    _Line(writer, node).write(source)


def _key(node: ir.Node, index: int) -> Key:
    value = node.inputs[index] if index < len(node.inputs) else None
    return Key(value.name or "" if value is not None else "", node.name)


class _Nodes:
    """New nodes, named after one value."""

    def __init__(self, writer: Writer, base: str) -> None:
        self.w, self.base = writer, base
        self.new: list[ir.Node] = []

    def step(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        suffix: str,
        dtype: ir.DataType = ir.DataType.FLOAT,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        name = self.base + suffix
        node = self.w.editor.node(op, inputs, attributes, name=name, output=name, dtype=dtype, domain=domain)
        self.new.append(node)
        return node.outputs[0]

    def number(self, name: str, content: Any, qtype: QType | None = None) -> ir.Value:
        """A constant that all layers share."""
        slot = ("passes", name)
        if slot not in self.w.shared:
            self.w.shared[slot] = self.w.constant(f"passes_{name}", content, qtype)
        found: ir.Value = self.w.shared[slot]
        return found


class _Reading(_Nodes):
    """The nodes that quantize an input, behind the node that makes it."""

    def __init__(self, writer: Writer, x: ir.Value) -> None:
        super().__init__(writer, x.name or "")
        self.x = x

    def source(self, entry: Dynamic) -> _Source:
        rows = self._loudest() if entry.by_row else None
        if rows is None:
            value, first = self.x, self._found()
        else:
            value = self.step("Mul", [self.x, self.step("Reciprocal", [rows], "_row_factor")], "_rows_scaled")
            first = self._given(value, self.number("row_scale", np.float32(1 / _STEPS)), names.QUANTIZED)
        parts = (first, self._left(value, first, rows is not None)) if entry.twice else (first,)
        self.w.after(self.x, self.new)
        return _Source(parts, rows)

    def _loudest(self) -> ir.Value:
        """The largest magnitude of each row."""
        old = query.opset(self.w.model) < _AXES_BY_INPUT
        which: dict[str, Any] = {"keepdims": 1, **({"axes": [-1]} if old else {})}
        operands = [self.x] if old else [self.x, self.number("last_axis", np.array([-1], np.int64))]
        high = self.step("ReduceMax", operands, "_row_max", **which)
        low = self.step("ReduceMin", operands, "_row_min", **which)
        tiny = self.number("tiny", np.float32(_TINY))
        return self.step("Max", [high, self.step("Neg", [low], "_row_low"), tiny], "_row_loudest")

    def _found(self) -> Quantized:
        """The whole tensor, with a range found at run time."""
        kinds = (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8)
        edit, suffixes = self.w.editor, (names.QUANTIZED, names.SCALE, names.ZERO_POINT)
        outputs = [
            ir.Value(name=edit.values.claim(self.base + suffix), type=ir.TensorType(kind))
            for suffix, kind in zip(suffixes, kinds, strict=True)
        ]
        name = edit.nodes.claim(self.base + names.QUANTIZE)
        self.new.append(ir.Node("", "DynamicQuantizeLinear", [self.x], outputs=outputs, name=name))
        return Quantized(*outputs)

    def _given(self, value: ir.Value, scale: ir.Value, suffix: str) -> Quantized:
        zero = self.number("middle", np.uint8(_MIDDLE), UINT8)
        return Quantized(
            self.step("QuantizeLinear", [value, scale, zero], suffix, ir.DataType.UINT8), scale, zero
        )

    def _left(self, value: ir.Value, first: Quantized, by_row: bool) -> Quantized:
        """What the first pass has rounded away."""
        back = self.step("DequantizeLinear", list(first), "_first_pass")
        rest = self.step("Sub", [value, back], "_left")
        if by_row:
            scale = self.number("row_scale_left", np.float32(1 / _STEPS / _LEFT))
        else:
            share = self.number("share_left", np.float32(1 / _LEFT))
            scale = self.step("Mul", [first.scale, share], "_scale_left")
        return self._given(rest, scale, "_left" + names.QUANTIZED)


class _Line(_Nodes):
    """The products in the place of one layer."""

    def __init__(self, writer: Writer, node: ir.Node) -> None:
        super().__init__(writer, node.outputs[0].name or "")
        self.node = node

    def write(self, source: _Source) -> None:
        found = [self._product(part, number) for number, part in enumerate(source.parts, start=1)]
        last = found[0] if len(found) == 1 else self.step("Add", found, "_sum")
        if source.rows is not None:
            last = self.step("Mul", [last, source.rows], "_rows_restored")
        bias = self.node.inputs[2] if len(self.node.inputs) > 2 else None
        if bias is not None:
            self.step("Add", [last, bias], "_biased")
        self.w.replace_node(self.node, self.new)

    def _product(self, x: Quantized, number: int) -> ir.Value:
        w, form = self._weight(), MATMUL_TO_FLOAT
        operands = [x.integers, w.integers, x.scale, w.scale, x.zero]
        operands += [w.zero] if w.zero is not None else []
        return self.step(form.op_type, operands, f"_pass_{number}", domain=form.domain)

    def _weight(self) -> Quantized:
        key, node = _key(self.node, 1), self.node
        turned = node.op_type == "Gemm" and query.attribute(node, "transB", 0)
        scale, zero = self.w.scale_and_zero(key)
        integers = self.w.quantized_weight(key, layout=(1, 0) if turned else None)
        return Quantized(integers, scale, zero if self.w.params[key].zero_point.any() else None)
