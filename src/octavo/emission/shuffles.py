"""Channels exchanged between groups, written as one Gather."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.planning.shuffles import Shuffle, shuffle_around


def planned(writer: Writer) -> list[Shuffle]:
    """The shuffles that the plan wants written so; to be asked for before anything is moved."""
    found = []
    for name, one in writer.plan.nodes.items():
        if (one.op_type, one.form) == ("Transpose", "Gather"):
            shuffle = shuffle_around(writer.nodes[name])
            if shuffle is None:
                raise TableError(f"The plan wants {name!r} as a Gather, and it exchanges no channels.")
            found.append(shuffle)
    return found


def spell(writer: Writer, shuffle: Shuffle) -> None:
    """Put a Gather of what the first node reads in the place of all three."""
    first, last = shuffle.first, shuffle.last
    name, result, x = last.name or "", last.outputs[0], first.inputs[0]
    if x is None:
        raise TableError(f"The plan wants {shuffle.middle.name!r} as a Gather, and nothing is read there.")
    order = np.arange(shuffle.groups * shuffle.width).reshape(shuffle.groups, shuffle.width).T
    between = _between(last.inputs[0], first)
    places = writer.constant(f"{result.name}_channels", order.reshape(-1).astype(np.int64))
    gather = writer.editor.node(
        "Gather", [x, places], {"axis": 1}, name=name, output=f"{result.name}_gathered", dtype=x.dtype
    )
    writer.replace_node(last, [gather])
    gather.name = name
    writer.nodes[name] = gather
    for node in (shuffle.middle.name, first.name):
        writer.nodes.pop(node or "", None)
    writer.editor.remove(between)


def _between(value: ir.Value | None, first: ir.Node) -> list[ir.Node]:
    """What makes a value, back to the first node: Transpose, and the conversions around it."""
    found: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None:
        found.append(node)
        if node is first:
            break
        value = node.inputs[0]
    return found
