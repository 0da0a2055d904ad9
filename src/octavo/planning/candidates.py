"""Which nodes could be quantized at all, and for each of the others the reason why not."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.core.granularity import PerBlock
from octavo.core.qtypes import UINT8
from octavo.core.recipe import DynamicScheme, Placement, Recipe, Style
from octavo.core.scheme import Scheme
from octavo.model import query
from octavo.ops import Act, Form, Kind, OpRule, Table, Weight, rule_of
from octavo.ops.hooks import is_gate
from octavo.planning.select import Selection
from octavo.targets import Target

_MASK = 1e30  # magnitudes at which a constant is a mask or an infinity, not a signal

_LARGE = 64 * 64  # results in a channel
_CHEAP = 0.02  # of all products of convolutions

UNIT = "octavo.unit"  # node.meta: the node is part of a pattern that the runtime runs as one


@dataclass(frozen=True)
class Avoid:
    """What calibration has shown to be no good, with reasons; the plan is made again around it."""

    nodes: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()  # those of the tensors that calibration had no value of

    def __bool__(self) -> bool:
        return bool(self.nodes or self.tensors)

    def and_also(self, more: Avoid) -> Avoid:
        """What either of two speaks against."""
        return Avoid(
            {**self.nodes, **more.nodes}, {**self.tensors, **more.tensors}, self.unseen | more.unseen
        )


@dataclass(frozen=True)
class Question:
    """Everything that decides about a node."""

    recipe: Recipe
    target: Target
    selection: Selection
    avoid: Avoid

    @property
    def everywhere(self) -> bool:
        """Whether the recipe wants more than what pays."""
        return self.recipe.placement is Placement.EVERYWHERE or self.recipe.op_types is not None

    @property
    def dynamic(self) -> bool:
        """Whether activations are quantized at run time."""
        return isinstance(self.recipe.activations, DynamicScheme)


def weight_of(value: ir.Value | None) -> tuple[ir.Value, tuple[int, ...] | None] | None:
    """The initializer behind a weight, and the permutation of a Transpose between the two (tied weights)."""
    while value is not None:
        producer = value.producer()
        if producer is None:
            return (value, None) if query.constant(value) is not None else None
        if query.is_op(producer, "Identity"):
            value = producer.inputs[0]
            continue
        if query.is_op(producer, "Transpose") and query.constant(producer.inputs[0]) is not None:
            source = weight_of(producer.inputs[0])
            rank = query.rank(producer.inputs[0]) or 0
            perm = query.attribute(producer, "perm", None) or tuple(reversed(range(rank)))
            if source is None or source[1] is not None or sorted(perm) != list(range(rank)):
                return None
            return source[0], tuple(perm)
        return None
    return None


def refusal(node: ir.Node, question: Question) -> str | None:
    """Why a node stays float, or None where nothing speaks against it. Order: the nearest cause first."""
    rule = rule_of(node)
    reason = question.selection.refusal(node)
    if reason is not None:
        return reason
    if rule is None:
        return "no rule for this operator"
    if UNIT in node.meta and question.target.keeps_units:
        return f"part of a {str(node.meta[UNIT]).partition(':')[0]}, which the runtime runs as one operator"
    if (node.name or "") in question.avoid.nodes:
        return question.avoid.nodes[node.name or ""]
    return (
        _type_refusal(node, rule)
        or _unaccepted(node, rule, question)
        or rule.refusal(node)
        or _form_refusal(node, rule, question)
        or _weight_refusal(node, rule, question)
        or _operand_refusal(node, rule, question)
        or (None if question.everywhere else _target_refusal(node, rule, question))
    )


def leading_to_products(nodes: Sequence[ir.Node], refused: Container[str | None]) -> set[ir.Value]:
    """Values that some product reads, directly or through operators that can be quantized."""
    found: set[ir.Value] = set()
    for node in reversed(nodes):
        rule = rule_of(node) if node.name not in refused else None
        if rule is None or not (rule.kind is Kind.PRODUCT or any(v in found for v in node.outputs)):
            continue
        read = {
            v for i, v in enumerate(node.inputs) if v is not None and isinstance(rule.role(i), Act | Table)
        }
        if rule.kind is Kind.PRODUCT and node.inputs[1] is not None:
            read.add(node.inputs[1])
        found |= read
    return found


def is_float_work(node: ir.Node) -> bool:
    """Whether a node that stays as it is deserves a line: it computes on floats."""
    return any(query.is_float(v) for v in node.outputs) and node.op_type not in _SILENT


_SILENT = frozenset(
    {
        "Cast",
        "Constant",
        "Shape",
        "QuantizeLinear",
        "DequantizeLinear",
        "If",
        "Loop",
        "Scan",
        "ConstantOfShape",
    }
)


def _type_refusal(node: ir.Node, rule: OpRule) -> str | None:
    for i, value in enumerate(node.inputs):
        if value is None or not isinstance(rule.role(i), Act | Weight | Table):
            continue
        kind = query.element_type(value)
        if kind is None:
            return f"the type of its input {value.name!r} is unknown"
        if kind not in query.FLOATS:
            return "it works on integers"
    return None


def _unaccepted(node: ir.Node, rule: OpRule, question: Question) -> str | None:
    """Why the target does not take this operator quantized, wherever it stands."""
    target, activations = question.target, question.recipe.activations
    if node.op_type in target.refuses:
        return target.refuses[node.op_type]
    in_blocks = isinstance(question.recipe.weights.granularity, PerBlock) and rule.kind is Kind.PRODUCT
    if in_blocks and target.block_ops is not None and node.op_type not in target.block_ops:
        return f"target {target.name} takes weights in blocks in {', '.join(sorted(target.block_ops))} alone"
    if node.op_type not in target.op_types or not isinstance(activations, Scheme):
        return None
    legal = target.takes(node.op_type)
    if activations.qtype.name in legal:
        return None
    return f"target {target.name} takes no {activations.qtype} activations in it, only {', '.join(legal)}"


def form_of(rule: OpRule, question: Question) -> Form | None:
    """The integer spelling in the style of the recipe."""
    return rule.forms.get(question.recipe.style)


def at_run_time(node: ir.Node, question: Question) -> bool:
    """Whether a static recipe lets this layer find the range of its input while the model runs."""
    recipe, rule = question.recipe, rule_of(node)
    if not recipe.is_static or recipe.style is not Style.QDQ or rule is None or rule.kind is not Kind.PRODUCT:
        return False
    if (node.name or "") not in question.selection.at_run_time or node.op_type not in ("MatMul", "Gemm"):
        return False
    form = rule.forms.get(Style.INTEGER)
    return (
        form is not None
        and node.op_type in question.target.dynamic_products
        and weight_of(node.inputs[1]) is not None
        and form.takes(UINT8, recipe.weights.qtype)
        and (form.refuse is None or form.refuse(node) is None)
    )


def _form_refusal(node: ir.Node, rule: OpRule, question: Question) -> str | None:
    style = question.recipe.style
    if style is Style.QDQ or rule.kind in (Kind.CLAMP, Kind.LOOKUP, Kind.RECURRENT):
        return None
    form = form_of(rule, question)
    if form is None:
        return f"it has no integer spelling in the {style.value} style"
    if rule.kind is Kind.PRODUCT and question.recipe.activations is not None:
        act, weight = question.recipe.activations.qtype, question.recipe.weights.qtype
        if not form.takes(act, weight):
            return f"{form.op_type} has no kernel for {act} activations with {weight} weights"
    return form.refuse(node) if form.refuse is not None else None


def _operand_refusal(node: ir.Node, rule: OpRule, question: Question) -> str | None:
    """A constant beside an activation has to have a range: masks and infinities have none."""
    if not question.recipe.is_static:
        return None
    for i, value in enumerate(node.inputs):
        found = query.array(value) if isinstance(rule.role(i), Act) else None
        if found is not None and found.size and not np.abs(found).max() < _MASK:
            return (
                f"its operand {value.name if value is not None else ''!r} reaches {np.abs(found).max():.3g}"
            )
    return None


def _weight_refusal(node: ir.Node, rule: OpRule, question: Question) -> str | None:
    for i, value in enumerate(node.inputs):
        if not isinstance(rule.role(i), Weight) or value is None:
            continue
        producer = value.producer()
        if producer is not None and producer.op_type == "DequantizeLinear":
            return "its weight is quantized already"
        if weight_of(value) is None and (rule.kind is Kind.RECURRENT or question.recipe.activations is None):
            return "its weight is computed, not constant"
        if weight_of(value) is None and question.recipe.style is Style.INTEGER:
            return "its weight is computed, not constant"
    first = node.inputs[0] if node.inputs else None
    producer = first.producer() if first is not None else None
    if rule.kind is Kind.PRODUCT and producer is not None and producer.op_type == "DequantizeLinear":
        return "its input is quantized already"
    return None


def _target_refusal(node: ir.Node, rule: OpRule, question: Question) -> str | None:
    target = question.target
    if node.op_type in target.gates and is_gate(node):
        return None
    stays = {**target.stays_float, **(target.dynamic_stays_float if question.dynamic else {})}
    if node.op_type in stays and not (node.op_type == "EmbedLayerNormalization" and question.dynamic):
        return stays[node.op_type]
    match rule.kind:
        case Kind.PRODUCT:
            known = target.dynamic_products if question.dynamic else target.products
            return (
                _product_refusal(node, target) if node.op_type in known else "the target gains nothing by it"
            )
        case Kind.RECURRENT:
            source = weight_of(node.inputs[1])
            small = source is None or _size(source[0]) < target.least_recurrent
            return "its weights are too small to gain" if small else None
        case Kind.FOLLOWER if node.op_type not in target.followers:
            return "the target gains nothing by it"
        case Kind.MOVE if node.op_type not in target.moves:
            return "the target does not move integers with it"
        case _:
            if rule.blends is not None and rule.blends(node):
                return "it blends values, and the runtime has no integer kernel for that"
            return None


def _product_refusal(node: ir.Node, target: Target) -> str | None:
    source = weight_of(node.inputs[1])
    if source is None:
        return "both factors are computed: 8 bits cost accuracy there and gain little"
    if _size(source[0]) < target.least_weight:
        return f"a weight of {_size(source[0])} values is too small to gain"
    if node.op_type == "MatMul" and (query.rank(node.inputs[1]) or 0) != 2:
        return "its weight is no matrix, and the runtime fails on scales per channel there"
    if node.op_type == "Conv":
        return _conv_refusal(node, target)
    if node.op_type == "Gemm" and query.attribute(node, "alpha", 1.0) != 1.0:
        return "alpha is not 1, and the runtime does not fuse that"
    return None


def _conv_refusal(node: ir.Node, target: Target) -> str | None:
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
    return source is None or _size(source[0]) >= target.least_weight


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


def _size(value: ir.Value) -> int:
    tensor = query.constant(value)
    return int(np.prod(tensor.shape.numpy(), dtype=np.int64)) if tensor is not None else 0
