"""Known compositions seen as one operator.

Recognised: Gelu, LayerNormalization and HardSwish in the orders of factors that exporters write. Where the
model's opset has the operator, it replaces the nodes and takes the last one's name and output; where not, the
nodes are marked as a unit in memory (:mod:`octavo.model.graph.meta`), so that planning can treat them
as one; HardSwish is written in two nodes first. Nothing is touched where another node sees an
intermediate result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import onnx_ir as ir

from octavo.model.graph import meta, query
from octavo.model.graph.edit import Editor
from octavo.model.graph.query import is_op
from octavo.model.prepare.graph_patterns import (
    Composition,
    closed,
    made_by,
    near,
    operand_beside,
    product_of,
    read_by,
    reduced_axes,
    scaled,
)
from octavo.model.prepare.opset import upsample_as_resize
from octavo.model.prepare.rewrites import flat_biases

# ---- Gelu and HardSwish in the forms that exporters write

_TANH_SCALE = math.sqrt(2 / math.pi)
_CUBE = 0.044715  # the factor of x³ in the approximation of Gelu by tanh


def gelu(node: ir.Node) -> Composition | None:
    """``x · ½ · (1 + erf(x/√2))`` around an ``Erf``, or ``x · ½ · (1 + tanh(…))`` around a ``Tanh``."""
    if is_op(node, "Erf"):
        inner = scaled(node.inputs[0], 1 / math.sqrt(2))
        found = ([inner[0]], inner[1]) if inner is not None else None
        approximate = "none"
    elif is_op(node, "Tanh"):
        found = _tanh_argument(node.inputs[0])
        approximate = "tanh"
    else:
        return None
    one_more = read_by(node.outputs[0], "Add")
    if found is None or one_more is None or operand_beside(one_more, 1.0) is not node.outputs[0]:
        return None
    before, x = found
    factors = product_of(one_more.outputs[0], x, 0.5)
    if factors is None:
        return None
    nodes = (*before, node, one_more, *factors)
    return Composition("Gelu", 20, nodes, (x,), {"approximate": approximate} if approximate == "tanh" else {})


def _tanh_argument(value: ir.Value | None) -> tuple[list[ir.Node], ir.Value] | None:
    """``√(2/π)·(x + c·x³)`` or ``√(2/π)·x·(1 + c·x²)``: its nodes and ``x``."""
    outer = scaled(value, _TANH_SCALE)
    if outer is not None:
        total = made_by(outer[1], "Add")
        found = _cubic_sum(total) if total is not None else None
        if found is not None:
            return [*found[0], outer[0]], found[1]
        product = made_by(outer[1], "Mul")
        return _factored(product, outer[0]) if product is not None else None
    product = made_by(value, "Mul")
    if product is None:
        return None
    for left, right in ((0, 1), (1, 0)):
        inner = scaled(product.inputs[left], _TANH_SCALE)
        if inner is not None:
            return _factored_with(product.inputs[right], inner[1], [inner[0], product])
    return None


def _factored(product: ir.Node, last: ir.Node) -> tuple[list[ir.Node], ir.Value] | None:
    """Return the nodes of ``x · (1 + c·x²)``, and ``x``."""
    for left, right in ((0, 1), (1, 0)):
        source = product.inputs[left]
        if source is not None:
            found = _factored_with(product.inputs[right], source, [product, last])
            if found is not None:
                return found
    return None


def _factored_with(
    value: ir.Value | None, x: ir.Value, tail: list[ir.Node]
) -> tuple[list[ir.Node], ir.Value] | None:
    """Return the nodes of ``1 + c·x²`` for a given ``x``, and ``x``."""
    total = made_by(value, "Add")
    square = operand_beside(total, 1.0)
    if total is None or square is None:
        return None
    power = scaled(square, _CUBE)
    if power is not None:
        nodes = _power(power[1], x, 2)
        return ([*nodes, power[0], total, *tail], x) if nodes is not None else None
    outer = made_by(square, "Mul")  # (c·x)·x
    if outer is None:
        return None
    for left, right in ((0, 1), (1, 0)):
        inner = scaled(outer.inputs[left], _CUBE)
        if inner is not None and inner[1] is x and outer.inputs[right] is x:
            return [inner[0], outer, total, *tail], x
    return None


def _cubic_sum(total: ir.Node) -> tuple[list[ir.Node], ir.Value] | None:
    """Return the nodes of ``x + c·x³``, and ``x``."""
    for left, right in ((0, 1), (1, 0)):
        x, cubic = total.inputs[left], scaled(total.inputs[right], _CUBE)
        if x is None or cubic is None:
            continue
        nodes = _power(cubic[1], x, 3)
        if nodes is not None:
            return [*nodes, cubic[0], total], x
    return None


def _power(value: ir.Value | None, x: ir.Value, exponent: int) -> list[ir.Node] | None:
    """Return the nodes that make ``x`` to the power of 2 or 3."""
    power = made_by(value, "Pow")
    if power is not None and power.inputs[0] is x and near(power.inputs[1], exponent):
        return [power]
    product = made_by(value, "Mul")
    if product is None:
        return None
    if exponent == 2:
        return [product] if product.inputs[0] is x and product.inputs[1] is x else None
    for left, right in ((0, 1), (1, 0)):
        square = _power(product.inputs[left], x, 2)
        if square is not None and product.inputs[right] is x:
            return [*square, product]
    return None


def hard_swish(node: ir.Node) -> Composition | None:
    """``x · clip(x + 3, 0, 6) / 6`` around a ``Clip``, or ``x · hardsigmoid(x)`` of slope 1/6."""
    if is_op(node, "HardSigmoid"):
        return _hard_sigmoid(node)
    if not is_op(node, "Clip") or not _clips_to_six(node):
        return None
    shift = made_by(node.inputs[0], "Add")
    x = operand_beside(shift, 3.0)
    factors = product_of(node.outputs[0], x, 1 / 6) if x is not None else None
    if shift is None or x is None or factors is None:
        return None
    return Composition("HardSwish", 14, (shift, node, *factors), (x,))


def _hard_sigmoid(node: ir.Node) -> Composition | None:
    alpha, beta = query.attribute(node, "alpha", 0.2), query.attribute(node, "beta", 0.5)
    x, product = node.inputs[0], read_by(node.outputs[0], "Mul")
    if x is None or product is None or not (math.isclose(alpha, 1 / 6, rel_tol=1e-4) and beta == 0.5):
        return None
    beside = product.inputs[1] if product.inputs[0] is node.outputs[0] else product.inputs[0]
    return Composition("HardSwish", 14, (node, product), (x,)) if beside is x else None


def _clips_to_six(node: ir.Node) -> bool:
    """Whether a ``Clip`` has the bounds 0 and 6, as inputs or, before opset 11, as attributes."""
    if len(node.inputs) == 3:
        return near(node.inputs[1], 0.0) and near(node.inputs[2], 6.0)
    return bool(query.attribute(node, "min") == 0.0 and query.attribute(node, "max") == 6.0)


# ---- LayerNormalization in parts: ``d = x − mean(x)``, ``y = d / √(mean(d²) + ε) · γ (+ β)``, last axes


def layer_norm(node: ir.Node) -> Composition | None:
    """Return the unit around the ``Sqrt`` of a layer normalization that is written out."""
    if not is_op(node, "Sqrt"):
        return None
    spread = _spread(node)
    if spread is None:
        return None
    nodes, difference, epsilon, axes = spread
    quotient = read_by(node.outputs[0], "Div")
    if quotient is None or quotient.inputs[1] is not node.outputs[0]:
        return None
    centre = _centre(quotient.inputs[0], axes)
    if centre is None or not _same_centre(centre, difference, axes):
        return None
    scale = read_by(quotient.outputs[0], "Mul")
    gamma = _parameter(scale, quotient.outputs[0], len(axes))
    if scale is None or gamma is None or not _covers(gamma, query.shape(centre.inputs[0])):
        return None
    shift = read_by(scale.outputs[0], "Add")
    beta = _parameter(shift, scale.outputs[0], len(axes))
    if beta is not None and query.shape(beta) != query.shape(gamma):
        beta = None
    x = centre.inputs[0]
    mean = made_by(centre.inputs[1], "ReduceMean")
    if x is None or mean is None:
        return None
    before = _unique([*_centres(centre, difference), *nodes, node, quotient, scale])
    inputs = (x, gamma) if beta is None else (x, gamma, beta)
    last = (shift,) if shift is not None and beta is not None else ()
    return Composition(
        "LayerNormalization", 17, (*before, *last), inputs, {"axis": axes[0], "epsilon": epsilon}
    )


def _spread(root: ir.Node) -> tuple[list[ir.Node], ir.Value, float, tuple[int, ...]] | None:
    """Return the nodes of ``√(mean(d²) + ε)``, ``d``, ``ε`` and the axes from the end."""
    total = made_by(root.inputs[0], "Add")
    if total is None:
        return None
    for left, right in ((0, 1), (1, 0)):
        variance, epsilon = made_by(total.inputs[left], "ReduceMean"), query.scalar(total.inputs[right])
        axes = _last_axes(variance) if variance is not None else None
        if variance is None or axes is None or epsilon is None:
            continue
        square = made_by(variance.inputs[0], "Pow", "Mul")
        if square is None or square.inputs[0] is None:
            return None
        if square.op_type == "Pow" and not near(square.inputs[1], 2.0):
            return None
        if square.op_type == "Mul" and square.inputs[0] is not square.inputs[1]:
            return None
        return [square, variance, total], square.inputs[0], epsilon, axes
    return None


def _last_axes(mean: ir.Node) -> tuple[int, ...] | None:
    """Return the axes that a mean is taken over, counted from the end, if they are the last ones and kept."""
    if not query.attribute(mean, "keepdims", 1):
        return None
    axes = reduced_axes(mean)
    if not axes:
        return None
    rank = query.rank(mean.inputs[0])
    if any(axis >= 0 for axis in axes):
        if rank is None:
            return None
        axes = tuple(axis - rank if axis >= 0 else axis for axis in axes)
    ordered = tuple(sorted(axes))
    return ordered if ordered == tuple(range(-len(ordered), 0)) else None


def _centre(value: ir.Value | None, axes: tuple[int, ...]) -> ir.Node | None:
    """Return the ``Sub`` that takes a value's own mean off it."""
    difference = made_by(value, "Sub")
    mean = made_by(difference.inputs[1], "ReduceMean") if difference is not None else None
    if difference is None or mean is None or mean.inputs[0] is not difference.inputs[0]:
        return None
    return difference if _last_axes(mean) == axes else None


def _same_centre(centre: ir.Node, difference: ir.Value, axes: tuple[int, ...]) -> bool:
    """Whether the squared difference is the divided one, or a copy of it, as some exporters write."""
    if centre.outputs[0] is difference:
        return True
    copy = _centre(difference, axes)
    return copy is not None and copy.inputs[0] is centre.inputs[0]


def _centres(centre: ir.Node, difference: ir.Value) -> list[ir.Node]:
    found: list[ir.Node] = []
    for node in (centre, difference.producer()):
        mean = node.inputs[1].producer() if node is not None and node.inputs[1] is not None else None
        found.extend(part for part in (mean, node) if part is not None)
    return found


def _parameter(node: ir.Node | None, value: ir.Value, axes: int) -> ir.Value | None:
    """Return the constant operand beside a value, if it has one dimension per normalized axis."""
    if node is None:
        return None
    beside = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    if query.constant(beside) is None or query.rank(beside) != axes:
        return None
    return beside


def _covers(gamma: ir.Value, dims: tuple[int | None, ...] | None) -> bool:
    """Whether the scale has one entry per normalized element rather than being broadcast."""
    sizes = query.shape(gamma) or ()
    tail = dims[-len(sizes) :] if dims is not None else (None,) * len(sizes)
    return all(size == dim or (dim is None and size != 1) for size, dim in zip(sizes, tail, strict=True))


def _unique(nodes: list[ir.Node]) -> list[ir.Node]:
    return list(dict.fromkeys(nodes))


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
