"""Convolutions that gain nothing by integers, or lose too much: the first, the last, those of many groups."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from octavo.model import query
from octavo.ops import Kind, rule_of
from octavo.planning.sources import size_of, weight_of
from octavo.targets import Target

_LARGE = 64 * 64  # results in a channel
_CHEAP = 0.02  # of all products of convolutions


def conv_refusal(node: ir.Node, target: Target) -> str | None:
    """Why a Conv stays float: by its place in the graph and its number of products."""
    group = query.attribute(node, "group", 1)
    dims = [d or 1 for d in query.shape(node.inputs[1]) or ()]
    if len(dims) < 2:
        return None
    before = _layer_before(node)
    if query.is_depthwise(node):
        behind = before is not None and before.op_type == "Conv" and _is_thin_start(before, target)
        return "depthwise behind a first layer that stays float: it gains nothing" if behind else None
    if _is_added_to_start(node, target):
        return "its result is added to that of a first layer that stays float"
    if _is_thin_start(node, target):
        return f"{int(np.prod(dims[1:]))} products for each result are too few to gain in the first layer"
    if _is_answer(node, target):
        return "its result is an answer of the model, and it is cheap: 8 bits cost accuracy and gain little"
    if target.most_groups is not None and group > target.most_groups:
        return f"a Conv of {group} groups is slower with integers"
    return None


def _is_thin_start(conv: ir.Node, target: Target) -> bool:
    """Whether a Conv has no layer before it, and few products for each result.

    A picture whose size is open is taken to be large.
    """
    dims = [d or 1 for d in query.shape(conv.inputs[1]) or ()]
    sides = (query.shape(conv.outputs[0]) or (None,) * 3)[2:]
    known = [side for side in sides if side is not None]
    large = len(known) < len(sides) or math.prod(known) >= _LARGE
    least = max(target.least_products, target.large_products if large else 0)
    return int(np.prod(dims[1:])) < least and _layer_before(conv) is None


def _is_answer(conv: ir.Node, target: Target) -> bool:
    """Whether a Conv is a small linear layer at every place of a map, and no layer is behind it."""
    dims = [d or 1 for d in query.shape(conv.inputs[1]) or ()]
    sides = (query.shape(conv.outputs[0]) or (None,) * 3)[2:]
    one_by_one = math.prod(dims[2:]) == 1 and query.attribute(conv, "group", 1) == 1
    if not one_by_one or dims[1] > target.answer_products or math.prod(d or 2 for d in sides) == 1:
        return False
    seen, todo = set[ir.Value](), [conv.outputs[0]]
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        for reader in value.consumers():
            if query.subgraphs(reader) or _is_layer(reader, target):
                return False
            todo.extend(reader.outputs)
    return any(value.is_graph_output() for value in seen) and _share(conv) <= _CHEAP


def _share(conv: ir.Node) -> float:
    """The share of a Conv in the products of all of its graph."""
    convs = [node for node in conv.graph or () if query.is_op(node, "Conv") and node is not conv]
    own = _products(conv)
    return own / (own + sum(map(_products, convs)))


def _products(conv: ir.Node) -> int:
    """How many a Conv computes; where its size is open, as if it gave one place of a map."""
    sides = (query.shape(conv.outputs[0]) or ())[2:]
    return math.prod(d or 1 for d in query.shape(conv.inputs[1]) or ()) * math.prod(d or 1 for d in sides)


def _is_layer(node: ir.Node, target: Target) -> bool:
    """Whether a node is a product that might be quantized, or one of computed factors."""
    rule = rule_of(node)
    if rule is None or rule.kind is not Kind.PRODUCT:
        return False
    source = weight_of(node.inputs[1])
    return source is None or size_of(source[0]) >= target.least_weight


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
    """The nearest product in front of a node, along first inputs."""
    return _layer_of(node.inputs[0])


def _layer_of(value: ir.Value | None) -> ir.Node | None:
    """The nearest product that a value comes from, along first inputs."""
    while value is not None and (producer := value.producer()) is not None:
        rule = rule_of(producer)
        if rule is not None and rule.kind is Kind.PRODUCT:
            return producer
        value = producer.inputs[0] if producer.inputs else None
    return None
