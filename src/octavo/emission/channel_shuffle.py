"""A channel shuffle, which exchanges channels between groups, as one Gather."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.planning.lowerings import SHUFFLED, Shuffle, shuffle_around


def planned(writer: Writer) -> list[Shuffle]:
    """Return the shuffles that the plan lowers to a Gather; call it before anything is replaced."""
    found = []
    for name, one in writer.plan.nodes.items():
        if one == SHUFFLED:
            shuffle = shuffle_around(writer.nodes[name])
            if shuffle is None:
                raise TableError(f"The plan lowers {name!r} to a Gather, but it is not a channel shuffle.")
            found.append(shuffle)
    return found


def write(writer: Writer, shuffle: Shuffle) -> None:
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
