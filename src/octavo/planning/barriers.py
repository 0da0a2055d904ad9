"""Fusion barriers: nodes that the runtime must not rewrite between QuantizeLinear and DequantizeLinear.

A barrier is a clamp that clamps nothing; for an Add another name, for a Softmax its parts or a floor under
what it reads, for the parts of a Gelu one operator. Seven things would go wrong without one:

- A layer that stays float between quantized values is not left so: the runtime rounds its weights to int8
  itself, one scale for the tensor. Data movement and clamps on either side do not stop it.
- An Add in front of a LayerNormalization is joined with it to an operator that takes several times as long.
- A Softmax over an axis with two or more behind it, as detectors have it, takes four to six times as long as
  its parts one by one.
- A Softmax over scores that a causal mask has pushed down takes six times as long: exp of them is too small
  for a normal float, and the processor computes with such numbers in microcode.
- A Gelu that is written in parts and reads integers stays in parts: each of its two readers of the input gets
  a DequantizeLinear of its own, which the runtime's pattern does not allow. One operator takes half the time.
- A float MaxPool in front of QuantizeLinear does not stay float: the runtime moves QuantizeLinear to its
  other side, and pools four times as many integers with a kernel that takes 40 times as long.
- Around float8 it looks for integer kernels that do not take float8, and the model does not load; and it
  drops a Relu or Clip in front of a float8 QuantizeLinear, which lets negative values pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Bounded, Constant, Entry, Fixed, Key, Measured
from octavo.core.recipe import Recipe
from octavo.model.graph import meta, query
from octavo.ops import rule_of
from octavo.ops.patterns import COMPARE_POSITIONS, GELU_CORES, KEEP_SCORES, MAKE_MASKS
from octavo.targets import Target
from octavo.targets.ort_cpu_vnni import ORT_CPU_VNNI

# ---- Causal masks, recognized by structure: those that hide about half of all scores from a Softmax

LOW = -64.0  # constants below this, added to scores, hide them: exp of it is nothing
SHARE = 0.25  # of the scores that a mask has to hide, and to leave, to be a causal one
POSITIONS = 32  # a constant mask for fewer is not worth the further nodes
_LARGEST_CONSTANT = 1 << 24  # values of a constant that is looked at
_LOOKED_AT = 1 << 16  # values of such a constant that are counted
_DEPTH = 64  # nodes that are looked at behind a Softmax and behind a mask


def is_gelu_core(node: ir.Node) -> bool:
    """Whether a node is the one in the middle of a Gelu that is written in parts."""
    return node.op_type in GELU_CORES and (meta.unit(node) or "").startswith("Gelu:")


def unit_of(node: ir.Node) -> list[ir.Node]:
    """Return the nodes that the runtime runs with this one as one operator, the last of them first."""
    mark = meta.unit(node)
    found, todo = {node}, [node]
    while todo:
        here = todo.pop()
        near = {value.producer() for value in here.inputs if value is not None}
        near.update(reader for value in here.outputs for reader in value.consumers())
        fresh = {one for one in near if one is not None and meta.unit(one) == mark} - found
        found |= fresh
        todo.extend(fresh)
    return sorted(found, key=lambda one: (f":{one.name}" not in (mark or ""), one.name or ""))


def read_by_unit(unit: Collection[ir.Node]) -> list[ir.Value]:
    """Return what the nodes of a unit read of others, but for constants."""
    read = dict.fromkeys(value for node in unit for value in node.inputs if value is not None)
    return [value for value in read if value.producer() not in unit and query.constant(value) is None]


def over_last_axis(softmax: ir.Node) -> bool:
    """Whether a Softmax is taken over the last axis."""
    axis = int(query.attribute(softmax, "axis", -1))
    rank = query.rank(softmax.inputs[0])
    return axis == -1 or (rank is not None and axis == rank - 1)


def is_causal(softmax: ir.Node) -> bool:
    """Whether a mask that hides later positions from earlier ones is mixed into what a Softmax reads."""
    value = softmax.inputs[0]
    for _ in range(_DEPTH):
        maker = value.producer() if value is not None else None
        if maker is None or maker.domain:
            return False
        if maker.op_type == "Where":
            return _hides(maker.inputs[0])
        if maker.op_type == "Add":
            return any(_hides(operand) for operand in maker.inputs)
        if maker.op_type not in KEEP_SCORES:
            return False
        value = maker.inputs[0]
    return False


def _hides(mask: ir.Value | None) -> bool:
    """Whether a mask comes from a constant that hides much, or from comparing positions."""
    return any(
        _is_half(found) if isinstance(found, np.ndarray) else found.op_type in COMPARE_POSITIONS
        for found in _behind(mask)
    )


def _behind(mask: ir.Value | None) -> Iterator[ir.Node | np.ndarray]:
    """Yield what a mask is made of: constants, and the nodes before the first that computes no mask."""
    todo, seen = [mask], 0
    while todo and seen < _DEPTH:
        value, seen = todo.pop(), seen + 1
        if value is None:
            continue
        maker, content = value.producer(), query.array(value, limit=_LARGEST_CONSTANT)
        if content is not None:
            yield content
        elif maker is not None and not maker.domain:
            yield maker
            if maker.op_type in MAKE_MASKS:
                todo.extend(maker.inputs)


def _is_half(content: np.ndarray) -> bool:
    """Whether a constant of floats pushes a good part of all scores down, or one of booleans masks it."""
    if content.ndim < 2 or min(content.shape[-2:]) < POSITIONS:
        return False
    flat = content.reshape(-1)
    some = flat[:: -(-flat.size // _LOOKED_AT) | 1]  # an odd step meets every column of a square
    if content.dtype.kind not in "fb":
        return False
    hidden = float(np.mean(some < LOW if content.dtype.kind == "f" else ~some))
    return SHARE <= hidden <= 1 - SHARE


def find(
    nodes: Iterable[ir.Node], quantized: Collection[str], entries: Mapping[Key, Entry], target: Target
) -> tuple[str, ...]:
    """Return the names of the nodes that would be computed wrongly without a barrier."""
    touched = {key.tensor for key in entries}
    whole = {key.tensor for key in entries if key.consumer is None}
    float8 = any(
        isinstance(e, Measured | Bounded | Fixed | Constant) and e.scheme.qtype.is_float
        for e in entries.values()
    )
    if not (target.kernels.rounds_float_weights or float8):
        return ()
    # Whatever the target, results are checked in ONNX Runtime.
    fuses = target.kernels.fused or ORT_CPU_VNNI.kernels.fused
    found = []
    for node in nodes:
        is_quantized = node.name in quantized
        if not node.inputs or not node.outputs or (is_quantized and not float8):
            continue
        rule, first, output = rule_of(node), node.inputs[0], node.outputs[0]
        if rule is not None and rule.has_bias and not is_quantized:
            needed = _comes_from(first, whole) and _leads_to(output, touched)
        elif not float8:
            needed = False
        elif rule is not None and rule.passes_values:
            computed = query.is_float(first) and query.constant(first) is None
            needed = computed and (_comes_from(first, whole) or _leads_to(output, touched))
        else:
            fused = node.op_type in fuses and not node.domain and query.is_float(output)
            needed = fused and (is_quantized or _leads_to(output, touched))
        if needed:
            found.append(node.name or "")
    return tuple(found)


def slow_fusions(
    nodes: Iterable[ir.Node], entries: Mapping[Key, Entry], target: Target, recipe: Recipe
) -> tuple[str, ...]:
    """Return the names of float nodes that are slow as they are, or once the runtime has rewritten them."""
    touched = {key.tensor for key in entries}
    whole = {key.tensor for key in entries if key.consumer is None}
    return tuple(
        node.name or ""
        for node in nodes
        if _is_joined(node, target)
        or _is_slow_softmax(node, target)
        or _is_floored(node, target)
        or _is_made_integer(node, touched, whole, target)
        or (not recipe.writing.dedicated and _is_split_gelu(node, entries, target))
    )


def _is_split_gelu(node: ir.Node, entries: Mapping[Key, Entry], target: Target) -> bool:
    """Whether a node is the core of a Gelu in parts that reads integers."""
    if not target.lowerings.gelu_in_one or node.op_type not in GELU_CORES or not node.name:
        return False
    unit = unit_of(node) if is_gelu_core(node) else []
    read = read_by_unit(unit)
    has_own_view = any(Key(value.name or "", part.name) in entries for part in unit for value in read)
    whole = {key.tensor for key in entries if key.consumer is None}
    return len(read) == 1 and not has_own_view and _comes_from(read[0], whole)


def _is_joined(node: ir.Node, target: Target) -> bool:
    return query.is_op(node, "Add") and any(
        consumer.op_type in target.lowerings.sum_before for consumer in node.outputs[0].consumers()
    )


def _is_made_integer(node: ir.Node, touched: Collection[str], whole: Collection[str], target: Target) -> bool:
    """Whether a float operator would read what the runtime has quantized in front of it, and be slow at it.

    Between integers on both sides its integer kernel is fast: there the layout suits it.
    """
    if node.op_type not in target.kernels.slow_behind_float or node.domain or not node.name:
        return False
    moved = target.placement.data_movement
    return _leads_to(node.outputs[0], touched, moved) and not _comes_from(node.inputs[0], whole)


def _is_slow_softmax(node: ir.Node, target: Target) -> bool:
    if not target.lowerings.softmax_in_parts or not query.is_op(node, "Softmax") or not node.name:
        return False
    rank = query.rank(node.inputs[0])
    axis = int(query.attribute(node, "axis", -1))
    return rank is not None and (axis + rank if axis < 0 else axis) <= rank - 3


def _is_floored(node: ir.Node, target: Target) -> bool:
    return (
        target.lowerings.softmax_floor
        and query.is_op(node, "Softmax")
        and bool(node.name)
        and over_last_axis(node)
        and is_causal(node)
    )


def _comes_from(value: ir.Value | None, quantized: Collection[str]) -> bool:
    """Whether a value is quantized, or is a quantized one moved or clamped."""
    while value is not None and value.name not in quantized:
        producer = value.producer()
        value = producer.inputs[0] if producer is not None and _passes(producer) else None
    return value is not None


def _leads_to(value: ir.Value, quantized: Collection[str], moved: Collection[str] | None = None) -> bool:
    """Whether a value is quantized, perhaps after it was moved or clamped; by certain operators, if given."""
    todo, seen = [value], {value}
    while todo:
        here = todo.pop()
        if here.name in quantized:
            return True
        behind = {
            v
            for node in here.consumers()
            if _passes(node) and (moved is None or node.op_type in moved) and node.inputs[0] is here
            for v in node.outputs
        }
        todo.extend(behind - seen)
        seen |= behind
    return False


def _passes(node: ir.Node) -> bool:
    rule = rule_of(node)
    return rule is not None and rule.passes_values
