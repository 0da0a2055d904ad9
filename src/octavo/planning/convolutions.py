"""Convolutions for which int8 does not pay off: the first, the last, those of many groups."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from octavo.model.graph import query
from octavo.ops import rule_of
from octavo.planning.weights import size_of, weight_of
from octavo.targets import Target

_LARGE_MAP = 64 * 64  # outputs per channel; from here on a first Conv needs more work per output
_CHEAP_SHARE = 0.02  # share of the multiplications of all convolutions; below it int8 saves next to nothing


def conv_refusal(node: ir.Node, target: Target) -> str | None:
    """Return why a Conv stays float, by its position in the graph and its work per output."""
    if not query.is_op(node, "Conv"):
        return None
    group = query.attribute(node, "group", 1)
    dims = [d or 1 for d in query.shape(node.inputs[1]) or ()]
    if len(dims) < 2:
        return None
    before = _layer_before(node)
    if query.is_depthwise(node):
        behind = before is not None and before.op_type == "Conv" and _is_thin_start(before, target)
        return "depthwise Conv behind a first Conv kept in float: int8 does not pay off" if behind else None
    if _is_added_to_start(node, target):
        return "its output is added to that of a first Conv kept in float"
    if _is_thin_start(node, target):
        work = int(np.prod(dims[1:]))
        return f"first Conv: too little work for int8 to pay off ({work} multiplications per output)"
    if _is_answer(node, target):
        return "it computes a model output and is cheap: int8 costs accuracy and gains little"
    if (
        target.placement.convolutions.max_groups is not None
        and group > target.placement.convolutions.max_groups
    ):
        return f"a Conv of {group} groups is slower in int8"
    return None


def _is_thin_start(conv: ir.Node, target: Target) -> bool:
    """Whether a Conv has no layer before it, and little work per output.

    A feature map whose size is open is taken to be large.
    """
    dims = [d or 1 for d in query.shape(conv.inputs[1]) or ()]
    sides = (query.shape(conv.outputs[0]) or (None,) * 3)[2:]
    known = [side for side in sides if side is not None]
    large = len(known) < len(sides) or math.prod(known) >= _LARGE_MAP
    least = max(
        target.placement.convolutions.first_min_work,
        target.placement.convolutions.large_first_min_work if large else 0,
    )
    return int(np.prod(dims[1:])) < least and _layer_before(conv) is None


def _is_answer(conv: ir.Node, target: Target) -> bool:
    """Whether a Conv is a small linear layer at each position of a feature map, and no layer is behind it."""
    dims = [d or 1 for d in query.shape(conv.inputs[1]) or ()]
    sides = (query.shape(conv.outputs[0]) or (None,) * 3)[2:]
    one_by_one = math.prod(dims[2:]) == 1 and query.attribute(conv, "group", 1) == 1
    if (
        not one_by_one
        or dims[1] > target.placement.convolutions.output_max_work
        or math.prod(d or 2 for d in sides) == 1
    ):
        return False
    seen, todo = set[ir.Value](), [conv.outputs[0]]
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        for consumer in value.consumers():
            if query.subgraphs(consumer) or _is_layer(consumer, target):
                return False
            todo.extend(consumer.outputs)
    return any(value.is_graph_output() for value in seen) and _share(conv) <= _CHEAP_SHARE


def _share(conv: ir.Node) -> float:
    """Return the share of a Conv in the multiplications of all convolutions of its graph."""
    convs = [node for node in conv.graph or () if query.is_op(node, "Conv") and node is not conv]
    own = _products(conv)
    return own / (own + sum(map(_products, convs)))


def _products(conv: ir.Node) -> int:
    """Return how many multiplications a Conv takes; where its size is open, those of one position."""
    sides = (query.shape(conv.outputs[0]) or ())[2:]
    return math.prod(d or 1 for d in query.shape(conv.inputs[1]) or ()) * math.prod(d or 1 for d in sides)


def _is_layer(node: ir.Node, target: Target) -> bool:
    """Whether a node is a linear operator that might be quantized, or a product of two activations."""
    rule = rule_of(node)
    if rule is None or not rule.is_linear:
        return False
    return weight_of(node.inputs[1]) is None or size_of(node.inputs[1]) >= target.placement.min_weight_size


def _is_added_to_start(conv: ir.Node, target: Target) -> bool:
    """Whether a Conv ends a first block whose other layers stay float, and adds to the block's input."""
    add = query.only_reader(conv.outputs[0])
    if add is None or add.op_type != "Add":
        return False
    other = next((v for v in add.inputs if v is not conv.outputs[0]), None)
    start, middle = _layer_of(other), _layer_before(conv)
    if start is None or middle is None or start.op_type != "Conv" or middle.op_type != "Conv":
        return False
    return query.is_depthwise(middle) and _layer_before(middle) is start and _is_thin_start(start, target)


def _layer_before(node: ir.Node) -> ir.Node | None:
    """Return the nearest linear operator in front of a node, along first inputs."""
    return _layer_of(node.inputs[0])


def _layer_of(value: ir.Value | None) -> ir.Node | None:
    """Return the nearest linear operator that a value comes from, along first inputs."""
    while value is not None and (producer := value.producer()) is not None:
        rule = rule_of(producer)
        if rule is not None and rule.is_linear:
            return producer
        value = producer.inputs[0] if producer.inputs else None
    return None
