"""Nodes that the runtime must not rewrite between QuantizeLinear and DequantizeLinear.

Five things would go wrong without a guard (a clamp that clamps nothing; for an Add another name, for a
Softmax its parts or a floor under what it reads):

- A layer that stays float between quantized values is not left so: the runtime rounds its weights to int8
  itself, one scale for the tensor. Data movement and clamps on either side do not stop it.
- An Add in front of a LayerNormalization is joined with it to an operator that takes several times as long.
- A Softmax over an axis with two or more behind it, as detectors have it, takes four to six times as long as
  its parts one by one.
- A Softmax over scores that a causal mask has pushed down takes six times as long: exp of them is too small
  for a normal float, and the processor computes with such numbers in microcode.
- Around float8 it looks for integer kernels that do not take float8, and the model does not load; and it
  drops a Relu or Clip in front of a float8 QuantizeLinear, which lets negative values pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from octavo.core.plan import Bounded, Constant, Entry, Fixed, Key, Measured
from octavo.model import query
from octavo.model.query import constant, is_float
from octavo.ops import Kind, rule_of
from octavo.planning import masks
from octavo.targets import Target
from octavo.targets.ort_cpu_vnni import ORT_CPU_VNNI

_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm"})


def find(
    nodes: Iterable[ir.Node],
    quantized: Collection[str],
    level: Collection[ir.Value],
    entries: Mapping[Key, Entry],
    target: Target,
) -> tuple[str, ...]:
    """The names of the nodes to guard; ``level`` are the values that every reader sees quantized."""
    touched = {key.tensor for key in entries}
    float8 = any(
        isinstance(e, Measured | Bounded | Fixed | Constant) and e.scheme.qtype.is_float
        for e in entries.values()
    )
    if not (target.rewrites or float8):
        return ()
    fuses = target.fuses or ORT_CPU_VNNI.fuses  # whatever the target, results are checked in ONNX Runtime
    found = []
    for node in nodes:
        name = node.name or ""
        if not node.inputs or not node.outputs:
            continue
        if name not in quantized and node.op_type in _LAYERS and not node.domain:
            guarded = _comes_from(node.inputs[0], level) and _leads_to(node.outputs[0], touched)
        elif not float8:
            guarded = False
        elif _passes(node):
            moves = is_float(node.inputs[0]) and constant(node.inputs[0]) is None
            guarded = moves and (_comes_from(node.inputs[0], level) or _leads_to(node.outputs[0], touched))
        else:
            fused = node.op_type in fuses and not node.domain and is_float(node.outputs[0])
            guarded = fused and (name in quantized or _leads_to(node.outputs[0], touched))
        if guarded:
            found.append(name)
    return tuple(found)


def apart(nodes: Iterable[ir.Node], quantized: Collection[str], target: Target) -> tuple[str, ...]:
    """By name, Adds that the runtime would join with the slower operator behind them, and slow Softmaxes."""
    free = [node for node in nodes if not node.domain and node.name not in quantized]
    return tuple(
        node.name or ""
        for node in free
        if _is_joined(node, target) or _is_slow_softmax(node, target) or _is_floored(node, target)
    )


def _is_joined(node: ir.Node, target: Target) -> bool:
    return node.op_type == "Add" and any(
        reader.op_type in target.slow_with_add for reader in node.outputs[0].consumers()
    )


def _is_slow_softmax(node: ir.Node, target: Target) -> bool:
    if not target.softmax_spelled or node.op_type != "Softmax" or not node.name:
        return False
    rank = query.rank(node.inputs[0])
    axis = int(query.attribute(node, "axis", -1))
    return rank is not None and (axis + rank if axis < 0 else axis) <= rank - 3


def _is_floored(node: ir.Node, target: Target) -> bool:
    return (
        target.softmax_floored
        and node.op_type == "Softmax"
        and bool(node.name)
        and masks.over_last_axis(node)
        and masks.is_causal(node)
    )


def _passes(node: ir.Node) -> bool:
    rule = rule_of(node)
    return rule is not None and rule.kind in (Kind.MOVE, Kind.CLAMP, Kind.LOOKUP)


def _comes_from(value: ir.Value | None, level: Collection[ir.Value]) -> bool:
    """Whether a value is quantized, or is one moved or clamped."""
    while value is not None and value not in level:
        producer = value.producer()
        value = producer.inputs[0] if producer is not None and _passes(producer) else None
    return value is not None


def _leads_to(value: ir.Value, touched: Collection[str]) -> bool:
    """Whether a value is quantized, perhaps after it was moved or clamped."""
    todo, seen = [value], {value}
    while todo:
        here = todo.pop()
        if here.name in touched:
            return True
        moved = (r for r in here.consumers() if _passes(r) and r.inputs[0] is here)
        behind = {v for reader in moved for v in reader.outputs} - seen
        seen |= behind
        todo.extend(behind)
    return False
