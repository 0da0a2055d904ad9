"""Nodes written by the lowering that the plan names: channel shuffles and HardSwish."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Key
from octavo.emission import names
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.planning.lowerings import SHUFFLED, Shuffle, gate_of, shuffle_around

# ---- A channel shuffle, which exchanges channels between groups, as one Gather


def planned_shuffles(writer: Writer) -> list[Shuffle]:
    """Return the shuffles that the plan lowers to a Gather; call it before anything is replaced."""
    found = []
    for name, one in writer.plan.nodes.items():
        if one == SHUFFLED:
            shuffle = shuffle_around(writer.nodes[name])
            if shuffle is None:
                raise TableError(f"The plan lowers {name!r} to a Gather, but it is not a channel shuffle.")
            found.append(shuffle)
    return found


def write_shuffle(writer: Writer, shuffle: Shuffle) -> None:
    """Replace the three nodes of a shuffle by a Gather of what the first one reads."""
    first, last = shuffle.first, shuffle.last
    name, result, x = last.name or "", last.outputs[0], first.inputs[0]
    if x is None:
        raise TableError(
            f"The plan lowers {shuffle.middle.name!r} to a Gather, but the shuffle has no input."
        )
    order = np.arange(shuffle.groups * shuffle.width).reshape(shuffle.groups, shuffle.width).T
    between = _between(last.inputs[0], first)
    indices = writer.constant(f"{result.name}_channels", order.reshape(-1).astype(np.int64))
    gather = writer.editor.node(
        "Gather", [x, indices], {"axis": 1}, name=name, output=f"{result.name}_gathered", dtype=x.dtype
    )
    writer.replace_node(last, [gather])
    gather.name = name
    writer.nodes[name] = gather
    for node in (shuffle.middle.name, first.name):
        writer.nodes.pop(node or "", None)
    writer.editor.remove(between)


def _between(value: ir.Value | None, first: ir.Node) -> list[ir.Node]:
    """Return the nodes that compute a value, back to the first node: Transpose, and conversions around it."""
    found: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None:
        found.append(node)
        if node is first:
            break
        value = node.inputs[0]
    return found


# ---- HardSwish on integers: a Clip and a product in place of float arithmetic between two conversions
#
# The runtime has no integer kernel for HardSwish; this takes a third of the time. The gate and its numbers
# are those of :mod:`octavo.planning.lowerings`.


def write_hard_swish(writer: Writer, node: ir.Node, key: Key) -> None:
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
