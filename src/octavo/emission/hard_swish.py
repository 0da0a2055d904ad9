"""HardSwish on integers: a Clip and a product in place of float arithmetic between two conversions.

The runtime has no integer kernel for HardSwish; this takes a third of the time. The gate and its numbers are
those of :mod:`octavo.planning.lowerings`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Key
from octavo.emission import names
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.planning.lowerings import gate_of


def write(writer: Writer, node: ir.Node, key: Key) -> None:
    """Write a HardSwish that reads a tensor after DequantizeLinear."""
    x = node.inputs[0]
    dq = x.producer() if x is not None else None
    integers = dq.inputs[0] if dq is not None else None
    if x is None or integers is None or dq is None or dq.op_type != "DequantizeLinear":
        raise TableError(f"The plan lowers {node.name!r} to a product of integers, but its input is float.")
    params = writer.params[key]
    gate = gate_of(params)
    if gate is None:
        raise TableError(
            f"The plan lowers {node.name!r} to a product with its gate, which the range of its input does not"
            " include; change its lowering to HardSwish."
        )
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
        domain=writer.plan.writing.domain,
    )
    name, output = node.name or "", node.outputs[0]
    product = editor.node("Mul", [x, opened.outputs[0]], name=name, output=base + "d", dtype=x.dtype)
    product.outputs[0].shape = output.shape
    writer.replace_node(node, [clip, opened, product])
    product.name = name
    writer.nodes[name] = product
