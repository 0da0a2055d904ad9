"""Known compositions seen as one operator.

Recognised: Gelu, LayerNormalization and HardSwish in the orders of factors that exporters write. Where the
model's opset has the operator, it replaces the nodes and takes the last one's name and output; where not, the
nodes are marked in memory, ``node.meta["octavo.unit"] = "<operator>:<last node>"``, so that planning can
treat them as one. Nothing is touched where another node sees an intermediate result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import onnx_ir as ir

from octavo.model import query
from octavo.model.edit import Editor
from octavo.model.prepare.activations import gelu, hard_swish
from octavo.model.prepare.adapters import ADAPTERS
from octavo.model.prepare.biases import flat_biases
from octavo.model.prepare.layer_norm import layer_norm
from octavo.model.prepare.patterns import closed
from octavo.model.prepare.unit import Unit

UNIT = "octavo.unit"

# Where a search starts: the operator that every spelling of a composition has.
MATCHERS: dict[str, Callable[[ir.Node], Unit | None]] = {
    "Erf": gelu,
    "Tanh": gelu,
    "Sqrt": layer_norm,
    "Clip": hard_swish,
    "HardSigmoid": hard_swish,
}


def fuse(model: ir.Model) -> dict[str, int]:
    """Replace or mark every composition; returns how many of each, as words and numbers."""
    counts: Counter[str] = Counter()
    edit = Editor(model)
    opset = query.opset(model)
    for node in list(query.nodes(model)):
        if node.graph is None or node.domain:
            continue
        if node.op_type == "Upsample" and opset >= 10:
            _resize(edit, node, opset)
            counts["Upsample written as Resize"] += 1
        matcher = MATCHERS.get(node.op_type)
        unit = matcher(node) if matcher is not None else None
        if unit is None or not closed(list(unit.nodes)):
            continue
        if opset >= unit.since:
            _replace(edit, unit)
            counts[f"{unit.op_type} as one operator"] += 1
        else:
            counts[f"{unit.op_type} marked as a unit"] += _mark(unit)
    counts["biases of linear layers written as vectors"] += flat_biases(model)
    return {text: count for text, count in counts.items() if count}


def _replace(edit: Editor, unit: Unit) -> None:
    last = unit.nodes[-1]
    name = last.name or unit.op_type
    new = edit.node(
        unit.op_type, list(unit.inputs), unit.attributes, name=name, output=last.outputs[0].name or name
    )
    last.append(new)
    edit.take_over(new.outputs[0], last.outputs[0])
    edit.remove(reversed(unit.nodes))
    new.name = name
    edit.nodes.taken.add(name)


def _mark(unit: Unit) -> int:
    """Mark the nodes; returns 1 unless they were marked before."""
    mark = f"{unit.op_type}:{unit.nodes[-1].name}"
    fresh = any(node.meta.get(UNIT) != mark for node in unit.nodes)
    for node in unit.nodes:
        node.meta[UNIT] = mark
    return int(fresh)


def _resize(edit: Editor, node: ir.Node, opset: int) -> None:
    """``Upsample`` is gone since opset 10; models that use it all the same mean its last definition."""
    if "scales" in node.attributes:
        ADAPTERS["Upsample", 9](edit, node)
    for version in range(10, opset + 1):
        adapter = ADAPTERS.get((node.op_type, version))
        if adapter is not None:
            adapter(edit, node)
