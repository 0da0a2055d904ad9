"""HardSwish on integers: its gate is its input, cut off and read by another scale.

::

    y = x · g,   g = min(max(x / 6 + 1/2, 0), 1)
    x = s·(q − z)   →   g = (clip(q, a, b) − a) / (b − a),   a = z − 3/s,   b = z + 3/s

The runtime has no integer kernel for HardSwish and computes it in float between two conversions. A Clip and a
product of integers take a third of that time. ``a`` and ``b`` are rounded, by half a step of ``q`` at most,
as ``x`` was before; the gate is exactly 0 and 1 where it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Key, Quantized
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT8, UINT8
from octavo.emission import names
from octavo.emission.writer import Writer
from octavo.errors import TableError

_REACH = 3.0  # the gate opens from -3 to 3
_FEWEST = 2  # steps from closed to open, so that there is a half open between them


@dataclass(frozen=True)
class _Gate:
    """The integers at which the gate is closed and open, and what a step between them is worth."""

    closed: int
    last: int
    step: float


def is_wanted(planned: Quantized) -> bool:
    """Whether the plan wants a node written so."""
    return (planned.op_type, planned.form) == ("HardSwish", "Mul")


def spell(writer: Writer, node: ir.Node, key: Key) -> None:
    """Write a HardSwish that reads a tensor behind DequantizeLinear; one with no such gate stays as it is."""
    x = node.inputs[0]
    dq = x.producer() if x is not None else None
    integers = dq.inputs[0] if dq is not None else None
    if x is None or integers is None or dq is None or dq.op_type != "DequantizeLinear":
        raise TableError(f"The plan wants {node.name!r} as a product of integers, and its input is float.")
    params = writer.params[key]
    gate = _gate(params)
    if gate is None:
        return
    base, editor = f"{node.outputs[0].name}_gate", writer.editor
    ends = [
        writer.constant(f"{base}_{name}", np.array(value, params.qtype.dtype))
        for name, value in (("low", gate.closed), ("high", gate.last))
    ]
    clip = editor.node("Clip", [integers, *ends], name=base, output=base, dtype=integers.dtype)
    opened = editor.node(
        "DequantizeLinear",
        [
            clip.outputs[0],
            writer.constant(base + names.SCALE, np.array(gate.step, params.scale.dtype)),
            ends[0],
        ],
        name=base + names.DEQUANTIZE,
        output=base + names.DEQUANTIZE + names.OUTPUT,
        dtype=x.dtype,
        domain=writer.plan.spelling.domain,
    )
    name, output = node.name or "", node.outputs[0]
    product = editor.node("Mul", [x, opened.outputs[0]], name=name, output=base + "d", dtype=x.dtype)
    product.outputs[0].shape = output.shape
    writer.replace_node(node, [clip, opened, product])
    product.name = name
    writer.nodes[name] = product


def _gate(params: QParams) -> _Gate | None:
    """None where a range does not reach down to where the gate closes, or is too coarse."""
    if params.scale.size != 1 or params.qtype not in (UINT8, INT8):
        return None
    scale, zero = float(params.scale.item()), int(params.zero_point.astype(np.int64).item())
    closed, open_ = round(zero - _REACH / scale), round(zero + _REACH / scale)
    if closed < params.qtype.qmin or open_ - closed < _FEWEST:
        return None
    if open_ > params.qtype.qmax:
        return _Gate(closed, params.qtype.qmax, scale / (2 * _REACH))
    return _Gate(closed, open_, 1 / (open_ - closed))
