"""Known compositions seen as one operator.

Recognised: Gelu, LayerNormalization and HardSwish in the orders of factors that exporters write. Where the
model's opset has the operator, it replaces the nodes and takes the last one's name and output; where not, the
nodes are marked as a unit in memory (:mod:`octavo.model.graph.meta`), so that planning can treat them
as one; HardSwish is written in two nodes first. Nothing is touched where another node sees an
intermediate result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import onnx_ir as ir

from octavo.model.graph import meta, query
from octavo.model.graph.edit import Editor
from octavo.model.prepare.compositions import gelu, hard_swish, layer_norm
from octavo.model.prepare.graph_patterns import Composition, closed
from octavo.model.prepare.opset import upsample_as_resize
from octavo.model.prepare.rewrites import flat_biases

# Where a search starts: the operator that every form of a composition has.
MATCHERS: dict[str, Callable[[ir.Node], Composition | None]] = {
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
            upsample_as_resize(edit, node, opset)
            counts["Upsample written as Resize"] += 1
        matcher = MATCHERS.get(node.op_type)
        unit = matcher(node) if matcher is not None else None
        if unit is None or not closed(list(unit.nodes)):
            continue
        if opset >= unit.since:
            _replace(edit, unit)
            counts[f"{unit.op_type} as one operator"] += 1
        elif unit.op_type == "HardSwish" and len(unit.nodes) > 2:
            _mark(_shortened(edit, unit))
            counts["HardSwish written as HardSigmoid and Mul"] += 1
        else:
            counts[f"{unit.op_type} marked as a unit"] += _mark(unit)
    counts["biases of linear layers written as vectors"] += flat_biases(model)
    return {text: count for text, count in counts.items() if count}


def _replace(edit: Editor, unit: Composition) -> None:
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


def _shortened(edit: Editor, unit: Composition) -> Composition:
    """``x · hardsigmoid(x)`` in two nodes, for an opset without HardSwish: a node is a pass over memory."""
    (x,), last = unit.inputs, unit.nodes[-1]
    name, kind = last.name or unit.op_type, last.outputs[0].dtype
    attributes, dims = {"alpha": 1 / 6, "beta": 0.5}, last.outputs[0].shape
    gate = edit.node("HardSigmoid", [x], attributes, name=f"{name}_gate", dtype=kind, shape=dims)
    product = edit.node("Mul", [x, gate.outputs[0]], name=name, output=last.outputs[0].name or name)
    last.append([gate, product])
    edit.take_over(product.outputs[0], last.outputs[0])
    edit.remove(reversed(unit.nodes))
    product.name = name
    edit.nodes.taken.add(name)
    return Composition(unit.op_type, unit.since, (gate, product), unit.inputs)


def _mark(unit: Composition) -> int:
    """Mark the nodes; returns 1 unless they were marked before."""
    mark = f"{unit.op_type}:{unit.nodes[-1].name}"
    fresh = any(meta.unit(node) != mark for node in unit.nodes)
    for node in unit.nodes:
        meta.mark_unit(node, mark)
    return int(fresh)
