"""Which nodes could be quantized at all, and for each of the others the reason why not."""

from __future__ import annotations

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
from octavo.planning.convolutions import conv_refusal
from octavo.planning.select import Selection
from octavo.planning.sources import size_of, weight_of
from octavo.targets import Target

_MASK = 1e30  # magnitudes at which a constant is a mask or an infinity, not a signal

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
            small = source is None or size_of(source[0]) < target.least_recurrent
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
    if size_of(source[0]) < target.least_weight:
        return f"a weight of {size_of(source[0])} values is too small to gain"
    if node.op_type == "MatMul" and (query.rank(node.inputs[1]) or 0) != 2:
        return "its weight is no matrix, and the runtime fails on scales per channel there"
    if node.op_type == "Conv":
        return conv_refusal(node, target)
    if node.op_type == "Gemm" and query.attribute(node, "alpha", 1.0) != 1.0:
        return "alpha is not 1, and the runtime does not fuse that"
    return None
