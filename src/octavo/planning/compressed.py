"""Compressed weights: those of layers that stay float, as int8 in the file. Which, and in what granularity.

::

    weight = Cast(integers) · scale        scale = largest magnitude of a channel / 127

Both operators read constants alone, so that the runtime computes them once, when it loads the model: the file
is a quarter, and what runs is the float model. A scale costs nothing at run time, so it may be finer than
kernels take it: one for each block of some 32 values. The largest of so few is a third smaller than the
largest of some hundreds, and so is the error, 3 to 5 dB less, for an eighth more of the compressed bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor, moved, parameter_shape
from octavo.core.plan import Compressed, Constant, Plan
from octavo.core.qtypes import INT8
from octavo.core.recipe import Recipe
from octavo.core.scheme import Scheme
from octavo.model.graph import query
from octavo.ops import Kind, OpRule, Table, Weight, axis_of, rule_of
from octavo.planning.outliers import loss
from octavo.planning.resolve import weight_array
from octavo.planning.state import State
from octavo.planning.weights import weight_of

LEAST_SIZE = 1024  # values; a smaller weight is not worth two nodes
_LARGEST_SHARE = 0.25  # of the bytes of the float weight that its scales may take
_BLOCK, _BLOCKS = 32, range(16, 65)  # values that share a scale, as near to 32 as the weight's axis allows
_NAMED = 3  # weights that a note names


@dataclass(frozen=True)
class _Reading:
    """A weight as one float layer reads it."""

    node: ir.Node
    value: ir.Value
    origin: ir.Value
    grain: Granularity  # of the origin
    is_table: bool


def with_compressed(plan: Plan, nodes: Sequence[ir.Node], state: State, recipe: Recipe) -> Plan:
    """Return the plan with the weights that are left float compressed, where the recipe says so."""
    if recipe.compressed is None:
        return plan
    found: dict[str, Compressed] = {}
    refused: dict[str, str] = {}
    for reading in _readings(plan, nodes):
        name = reading.origin.name or ""
        if name in refused:
            continue
        reason = _refusal(reading, state, recipe)
        if reason is not None:
            refused[name] = reason
            found.pop(name, None)
        elif name not in found:
            scheme = Scheme(INT8, reading.grain, symmetric=True)
            found[name] = Compressed(scheme, _saves(reading))
    return replace(plan, compressed=found, notes=(*plan.notes, *_notes(refused)))


def _readings(plan: Plan, nodes: Sequence[ir.Node]) -> Iterator[_Reading]:
    """Yield every large weight that a layer reads as float."""
    for node in nodes:
        rule = rule_of(node)
        for index, value in enumerate(node.inputs if rule is not None else ()):
            source = weight_of(value)
            if value is None or rule is None or source is None:
                continue
            if plan.lookup(value.name or "", node.name or "") is not None:
                continue
            grain = _grain(node, rule, index, value)
            origin, perm = source
            if grain is None or not _is_large(origin):
                continue
            if perm is not None:
                grain = moved(grain, tuple(int(i) for i in np.argsort(perm)))
            reading = _Reading(node, value, origin, grain, isinstance(rule.role(index), Table))
            if _saves(reading) > 0:
                yield reading


def _is_large(origin: ir.Value) -> bool:
    dims = query.static_shape(origin)
    return (
        dims is not None
        and len(dims) > 1
        and math.prod(dims) >= LEAST_SIZE
        and query.element_type(origin) is ir.DataType.FLOAT
        and not origin.is_graph_output()
    )


def _grain(node: ir.Node, rule: OpRule, index: int, value: ir.Value) -> Granularity | None:
    """Return a granularity in blocks where the weight has an axis for them, else of one scale per channel.

    None where the input is not a weight.
    """
    dims = query.static_shape(value) or ()
    match rule.role(index):
        case Weight() if rule.kind is Kind.RECURRENT and len(dims) == 3:
            return _in_blocks(dims, 2) or PerBlock(dims[2], 2)
        case Weight() if rule.is_matrix_product and len(dims) > 2:
            return _in_blocks(dims, len(dims) - 2) or PerBlock(dims[-2], len(dims) - 2)
        case Weight(axis):
            channels = axis_of(axis, node)
            return _finest(dims, channels) if channels is not None and dims else PerTensor()
        case Table():
            return _finest(dims, query.attribute(node, "axis", 0)) if dims else PerChannel(0)
        case _:
            return None


def _finest(dims: tuple[int, ...], channels: int) -> Granularity:
    """Return blocks along the longest axis but that of the channels, or one scale per channel."""
    channels %= len(dims)
    others = [axis for axis in range(len(dims)) if axis != channels]
    blocks = _in_blocks(dims, max(others, key=lambda axis: dims[axis])) if others else None
    return blocks or PerChannel(channels)


def _in_blocks(dims: tuple[int, ...], axis: int) -> PerBlock | None:
    """Return blocks of about 32 values along an axis that is divisible so."""
    sizes = [size for size in _BLOCKS if dims[axis] % size == 0]
    return PerBlock(min(sizes, key=lambda size: abs(math.log2(size / _BLOCK))), axis) if sizes else None


def _saves(reading: _Reading) -> int:
    """Return the bytes that are saved; 0 where scales take too much of it."""
    dims = query.static_shape(reading.origin) or ()
    whole, scales = 4 * math.prod(dims), 4 * math.prod(parameter_shape(dims, reading.grain))
    return whole - whole // 4 - scales if scales <= _LARGEST_SHARE * whole else 0


def _refusal(reading: _Reading, state: State, recipe: Recipe) -> str | None:
    """Return why a weight keeps its float values, or None."""
    if state.selection.is_excluded(reading.node):
        return "a layer that reads it is excluded"
    if reading.is_table and not recipe.quantize_embeddings:
        return "this recipe keeps embeddings in float"
    reason = state.avoided(reading.value) or state.avoided(reading.origin)
    if reason is not None:
        return reason
    if not np.all(np.isfinite(weight_array(reading.origin))):
        return "it holds NaN or infinity"
    return loss(reading.origin, Constant(Scheme(INT8, reading.grain, symmetric=True)))


def _notes(refused: dict[str, str]) -> Iterator[str]:
    """Yield why weights that could be compressed are not, by reason."""
    for reason in dict.fromkeys(refused.values()):
        names = [name for name, why in refused.items() if why == reason]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"not compressed to int8: {', '.join(names[:_NAMED])}{more}: {reason}"
