"""Quantized nodes that a target computes faster as another operator: that becomes their lowering.

- HardSwish as a product of its input with its gate, which is the input clipped and read by another scale::

      y = x · g,   g = min(max(x / 6 + 1/2, 0), 1)
      x = s·(q − z)   →   g = (clip(q, a, b) − a) / (b − a),   a = z − 3/s,   b = z + 3/s

  ``a`` and ``b`` are rounded by at most half a step of ``q``, as ``x`` was before; the gate is exactly 0 and
  1 where it ends. Whether a range holds such a gate is known when scales are (:func:`settled`).
- A channel shuffle (Reshape, Transpose, Reshape) as one Gather along the channels: the runtime lays feature
  maps out channels last for its integer kernels and draws the change of layout into this Transpose, which
  then takes as long as both layers beside it together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Entry, Key, Plan, Quantized, Shared
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT8, UINT8
from octavo.core.recipe import Recipe
from octavo.core.scheme import Scheme
from octavo.model.graph import query
from octavo.targets import Target

HARD_SWISH, GATED = Quantized("HardSwish", "HardSwish"), Quantized("HardSwish", "Mul")
SHUFFLED = Quantized("Transpose", "Gather")
_OPEN_FROM = 3.0  # the gate of HardSwish opens from -3 to 3
_LEAST_STEPS = 2  # from closed to open, so that one is half open between them
_PERM = (0, 2, 1, 3, 4)  # of the Transpose of a shuffle: groups and channels within a group change places


def faster(
    nodes: Iterable[ir.Node],
    quantized: Mapping[str, Quantized],
    entries: Mapping[Key, Entry],
    recipe: Recipe,
    target: Target,
) -> dict[str, Quantized]:
    """Return the nodes of a static QDQ plan, by name, that get another lowering."""
    found: dict[str, Quantized] = {}
    scheme = recipe.activations
    if (
        target.lowerings.hard_swish_as_product
        and isinstance(scheme, Scheme)
        and scheme.qtype in (UINT8, INT8)
    ):
        found |= {name: GATED for name, one in quantized.items() if one == HARD_SWISH}
    if target.lowerings.shuffle_as_gather:
        found |= dict.fromkeys(_shuffles(nodes, quantized, entries), SHUFFLED)
    return found


def settled(model: ir.Model, plan: Plan, params: Mapping[Key, QParams]) -> Plan:
    """Return a plan without the lowerings that the scales rule out: their nodes keep their operator."""
    if GATED not in plan.nodes.values():
        return plan
    nodes = dict(plan.nodes)
    for node in query.nodes(model):
        if nodes.get(node.name or "") != GATED:
            continue
        x = node.inputs[0]
        key = plan.lookup(x.name or "", node.name or "") if x is not None else None
        if key is not None and gate_of(params[key]) is None:
            nodes[node.name or ""] = HARD_SWISH
    return replace(plan, nodes=nodes)


@dataclass(frozen=True)
class Gate:
    """The integers at which the gate of HardSwish is closed and open, and the value of a step."""

    closed: int
    last: int
    step: float


def gate_of(params: QParams) -> Gate | None:
    """Return the gate of a HardSwish that reads a tensor with these parameters.

    None where the range does not include the value at which the gate closes, or its steps are too coarse.
    """
    if params.scale.size != 1 or params.qtype not in (UINT8, INT8):
        return None
    scale, zero = float(params.scale.item()), int(params.zero_point.astype(np.int64).item())
    closed, open_ = round(zero - _OPEN_FROM / scale), round(zero + _OPEN_FROM / scale)
    if closed < params.qtype.qmin or open_ - closed < _LEAST_STEPS:
        return None
    if open_ > params.qtype.qmax:
        return Gate(closed, params.qtype.qmax, scale / (2 * _OPEN_FROM))
    return Gate(closed, open_, 1 / (open_ - closed))


@dataclass(frozen=True)
class Shuffle:
    """Channels exchanged between groups: three nodes, and ``groups`` times ``width`` channels."""

    first: ir.Node
    middle: ir.Node
    last: ir.Node
    groups: int
    width: int


def _shuffles(
    nodes: Iterable[ir.Node], quantized: Mapping[str, Quantized], entries: Mapping[Key, Entry]
) -> Iterator[str]:
    """Yield the Transposes whose shuffle is quantized as a whole, with the parameters of its input."""
    on_edges = {key.consumer for key in entries if key.consumer is not None}
    for node in nodes:
        found = shuffle_around(node)
        parts = (found.first, found.middle, found.last) if found is not None else ()
        if parts and all(
            isinstance(entries.get(Key(one.outputs[0].name or "")), Shared)
            and one.name in quantized
            and one.name not in on_edges
            for one in parts
        ):
            yield node.name or ""


def shuffle_around(node: ir.Node) -> Shuffle | None:
    """Return the shuffle whose Transpose this is."""
    if not query.is_op(node, "Transpose") or tuple(query.attribute(node, "perm", ())) != _PERM:
        return None
    first = node.inputs[0].producer() if node.inputs[0] is not None else None
    last = query.only_reader(node.outputs[0])
    if first is None or last is None or not (query.is_op(first, "Reshape") and query.is_op(last, "Reshape")):
        return None
    if query.only_reader(first.outputs[0]) is not node or last.inputs[0] is not node.outputs[0]:
        return None
    whole, parts, again = (query.shape(v) for v in (first.inputs[0], first.outputs[0], last.outputs[0]))
    if whole is None or parts is None or again != whole or len(whole) != 4 or len(parts) != 5:
        return None
    groups, width = parts[1], parts[2]
    if groups is None or width is None or whole[1] != groups * width or None in whole[2:]:
        return None
    if (whole[0], *whole[2:]) != (parts[0], *parts[3:]):
        return None
    return Shuffle(first, node, last, groups, width)
