"""LayerNormalization spelt out: ``d = x − mean(x)``, ``y = d / √(mean(d²) + ε) · γ (+ β)``, last axes."""

from __future__ import annotations

import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.query import is_op
from octavo.model.prepare.patterns import made_by, near, read_by
from octavo.model.prepare.unit import Unit


def layer_norm(node: ir.Node) -> Unit | None:
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
    return Unit("LayerNormalization", 17, (*before, *last), inputs, {"axis": axes[0], "epsilon": epsilon})


def _spread(root: ir.Node) -> tuple[list[ir.Node], ir.Value, float, tuple[int, ...]] | None:
    """``√(mean(d²) + ε)``: its nodes, ``d``, ``ε`` and the axes from the end."""
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
    axes = query.attribute(mean, "axes", None)
    if axes is None and len(mean.inputs) > 1:
        found = query.array(mean.inputs[1])
        axes = tuple(int(axis) for axis in found.reshape(-1)) if found is not None else None
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
