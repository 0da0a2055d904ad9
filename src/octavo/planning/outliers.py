"""Outliers that one scale can't hold: in weights, seen by looking; in activations, known by structure.

A weight channel whose largest value is hundreds of times its typical one loses nearly all its values: they
round to zero. A product of two activations (the gate of a SwiGLU or GeGLU layer) has rare values that are
thousands of times the rest; a range taken over the whole tensor leaves the rest no steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core import kernels
from octavo.core.granularity import PerBlock, PerChannel, normal_axis
from octavo.core.plan import Constant, Plan
from octavo.model.graph import meta, query
from octavo.ops import rule_of
from octavo.ops.patterns import KEEP_PROBABILITIES, MAKE_GATES, MAKE_VALUES
from octavo.planning.resolve import weight_array
from octavo.planning.state import Avoid

LOST = 0.5  # share of a channel's weights that round to zero, from which on the channel is lost
CHANNELS = 0.1  # share of lost channels from which on a layer stays float
_LOOKED_AT = 1 << 20  # weights of a layer that are counted, at most
_LAST_BLOCKS = 2  # of a transformer, where the residual stream has its largest magnitudes


def gated(value: ir.Value | None) -> bool:
    """Whether a value is the product of two computed values, and not the scaled copy of one."""
    producer = value.producer() if value is not None else None
    if producer is None or not query.is_op(producer, "Mul") or meta.unit(producer) is not None:
        return False
    factors = [v for v in producer.inputs if v is not None and query.constant(v) is None]
    if len(factors) < 2:
        return False
    sources = [f.producer() for f in factors]
    return not any(s is not None and query.is_op(s, "Sigmoid") and s.inputs[0] in factors for s in sources)


def outlier_layers(nodes: Sequence[ir.Node]) -> frozenset[str]:
    """Return the linear layers of a gated transformer whose input one range can't hold.

    Those that read a gate's product; those that feed the gates of the last two blocks, where the residual
    stream is largest; and those that make attention's values, whose error nothing normalizes.
    """
    gates = [node for node in nodes if _is_linear(node) and gated(node.inputs[0])]
    if not gates:
        return frozenset()
    found = {node.name or "" for node in gates}
    for node in gates[-_LAST_BLOCKS:]:
        found |= _linear_before(node.inputs[0], MAKE_GATES)
    for node in nodes:
        if query.is_op(node, "MatMul") and not _is_linear(node) and _follows_softmax(node.inputs[0]):
            found |= _linear_before(node.inputs[1], MAKE_VALUES)
    return frozenset(found)


def _is_linear(node: ir.Node) -> bool:
    rule = rule_of(node)
    return rule is not None and rule.is_matrix_product and query.constant(node.inputs[1]) is not None


def _linear_before(value: ir.Value | None, through: frozenset[str]) -> set[str]:
    """Return the linear layers behind a value, through operators of some types only."""
    found: set[str] = set()
    seen: set[ir.Node] = set()
    todo = [value]
    while todo:
        here = todo.pop()
        maker = here.producer() if here is not None else None
        if maker is None or maker in seen:
            continue
        seen.add(maker)
        if _is_linear(maker):
            found.add(maker.name or "")
        elif maker.op_type in through:
            todo.extend(maker.inputs)
    return found


def _follows_softmax(value: ir.Value | None) -> bool:
    maker = value.producer() if value is not None else None
    while maker is not None and query.is_op(maker, *KEEP_PROBABILITIES):
        maker = maker.inputs[0].producer() if maker.inputs[0] is not None else None
    return query.is_op(maker, "Softmax")


def lost_weights(model: ir.Model, plan: Plan) -> Avoid:
    """Return the linear operators whose weights would mostly round to zero, with the reason."""
    found: dict[str, str] = {}
    nodes = {node.name: node for node in query.nodes(model)}
    for key, entry in plan.entries.items():
        node = nodes.get(key.consumer)
        rule = rule_of(node) if node is not None else None
        if not isinstance(entry, Constant) or node is None or rule is None or not rule.is_linear:
            continue
        if entry.scheme.qtype.is_float or entry.scheme.qtype.bits > 8:
            continue
        value = next((v for v in node.inputs if v is not None and v.name == key.tensor), None)
        reason = loss(value, entry) if value is not None else None
        if reason is not None:
            found[node.name or ""] = reason
    return Avoid(nodes=found)


def loss(value: ir.Value, entry: Constant) -> str | None:
    """Return why a weight would mostly round to zero, or None where it does not."""
    content = weight_array(value)
    scheme = entry.scheme
    if content.size == 0 or isinstance(scheme.granularity, PerBlock):
        return None
    low, high = kernels.extremes(content, scheme.granularity)
    top = np.maximum(np.abs(low), np.abs(high)).astype(np.float32).reshape(-1)
    axis = (
        normal_axis(scheme.granularity.axis, content.ndim)
        if isinstance(scheme.granularity, PerChannel)
        else None
    )
    some = np.abs(_thinned(content, axis).astype(np.float32, copy=False))
    qmin, qmax = scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
    half_step = top / np.float32(qmax - qmin)
    others = tuple(i for i in range(content.ndim) if i != axis)
    limit = half_step.reshape([-1 if i == axis else 1 for i in range(content.ndim)])
    nonzero = (some > 0).sum(axis=others)
    lost = np.atleast_1d(((some < limit) & (some > 0)).sum(axis=others) / np.maximum(nonzero, 1))
    bad = lost > LOST
    if bad.mean() < CHANNELS:
        return None
    return (
        f"{100 * lost[bad].mean():.0f} % of its weights in {bad.sum()} of {len(bad)} channels would round to"
        f" zero beside an outlier of {float(top[bad].max()):.3g}"
    )


def _thinned(content: npt.NDArray[np.generic], axis: int | None) -> npt.NDArray[np.generic]:
    """Return every so many rows of a large weight, with all its channels."""
    step = -(-content.size // _LOOKED_AT)
    along = next((i for i in range(content.ndim) if i != axis and content.shape[i] >= 2 * step), None)
    if step == 1 or along is None:
        return content
    return content[tuple(slice(None, None, step if i == along else None) for i in range(content.ndim))]
