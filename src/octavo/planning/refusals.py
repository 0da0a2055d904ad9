"""Why a node stays float whatever its neighbours do: each function returns a reason, or None."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core.granularity import PerBlock
from octavo.core.qparams import QParams
from octavo.core.qtypes import QType
from octavo.core.recipe import DynamicScheme, Recipe, Style
from octavo.core.scheme import Scheme
from octavo.model.fake_quant.forms import linear_parameters
from octavo.model.graph import query
from octavo.ops import Act, Kind, Lowering, OpRule, Table, Weight
from octavo.ops.hooks import is_gate
from octavo.planning.convolutions import conv_refusal
from octavo.planning.weights import size_of, weight_of
from octavo.targets import Target

SIGNAL = 1e30  # magnitudes from which on a constant is a mask or an infinity, not a signal
NO_RULE = "no rule for this operator"
FLOAT_INPUT = "the producer of its input is not quantized"
NOT_CONSTANT = "its weight is not constant"


def no_lowering(style: Style) -> str:
    """Return the reason where a style has no integer operator."""
    return f"no integer operator for it in the {style.value} style"


def lowering_refusal(node: ir.Node, rule: OpRule, lowering: Lowering | None, style: Style) -> str | None:
    """Return why a node has no integer operator in a style."""
    if lowering is None:
        return no_lowering(style)
    return rule.refusal(node) or lowering.refusal(node)


def kernel_refusal(lowering: Lowering, activation: QType, weight: QType) -> str | None:
    """Return why an integer operator has no kernel for these types."""
    if not lowering.pairs or lowering.takes(activation, weight):
        return None
    return f"{lowering.op_type} has no kernel for {activation} activations with {weight} weights"


def unusable(node: ir.Node, rule: OpRule, recipe: Recipe) -> str | None:
    """Return why a node can't be quantized by a recipe on any target. The nearest cause comes first."""
    return (
        _type_refusal(node, rule)
        or rule.refusal(node)
        or _style_refusal(node, rule, recipe)
        or _weight_refusal(node, rule, recipe)
        or _operand_refusal(node, rule, recipe)
    )


def _type_refusal(node: ir.Node, rule: OpRule) -> str | None:
    for value in rule.reads(node, Act, Weight, Table):
        kind = query.element_type(value)
        if kind is None:
            return f"the type of its input {value.name!r} is unknown"
        if kind not in query.FLOATS:
            return "it works on integers"
    return None


def _style_refusal(node: ir.Node, rule: OpRule, recipe: Recipe) -> str | None:
    if recipe.style is Style.QDQ or rule.kind in (Kind.CLAMP, Kind.LOOKUP, Kind.RECURRENT):
        return None
    lowering, activations = rule.lowerings.get(recipe.style), recipe.activations
    found = lowering_refusal(node, rule, lowering, recipe.style)
    if found is None and lowering is not None and rule.is_linear and activations is not None:
        found = kernel_refusal(lowering, activations.qtype, recipe.weights.qtype)
    return found


def _weight_refusal(node: ir.Node, rule: OpRule, recipe: Recipe) -> str | None:
    computed = rule.kind is not Kind.RECURRENT and recipe.is_static and recipe.style is not Style.INTEGER
    for value in rule.reads(node, Weight):
        if is_dequantized(value):
            return "its weight is quantized already"
        if not computed and weight_of(value) is None:
            return NOT_CONSTANT
    if rule.is_linear and is_dequantized(node.inputs[0]):
        return "its input is quantized already"
    return None


def is_dequantized(value: ir.Value | None) -> bool:
    """Whether the model itself has quantized a value already."""
    producer = value.producer() if value is not None else None
    return producer is not None and producer.op_type == "DequantizeLinear"


def dequantized_by(value: ir.Value | None) -> QParams | None:
    """Return the parameters with which the model itself has quantized a value, where they are constants."""
    producer = value.producer() if value is not None else None
    return linear_parameters(producer) if producer is not None and is_dequantized(value) else None


def _operand_refusal(node: ir.Node, rule: OpRule, recipe: Recipe) -> str | None:
    """A constant beside an activation has to have a range: masks and infinities have none."""
    for value in rule.reads(node, Act) if recipe.is_static else ():
        found = query.array(value)
        if found is not None and found.size and not np.abs(found).max() < SIGNAL:
            return f"its operand {value.name!r} reaches {np.abs(found).max():.3g}"
    return None


# ---- what a target takes, and what it gains by


def unaccepted(node: ir.Node, rule: OpRule, recipe: Recipe, target: Target) -> str | None:
    """Return why a target does not take an operator quantized, wherever it stands."""
    if node.op_type in target.accepts.refused:
        return target.accepts.refused[node.op_type]
    in_blocks = isinstance(recipe.weights.granularity, PerBlock) and rule.is_linear
    if in_blocks and target.accepts.block_ops is not None and node.op_type not in target.accepts.block_ops:
        ops = ", ".join(sorted(target.accepts.block_ops))
        return f"target {target.name} takes blockwise weights in {ops} only"
    if node.op_type not in target.accepts.op_types or not isinstance(recipe.activations, Scheme):
        return None
    legal = target.accepts.activations_of(node.op_type)
    if recipe.activations.qtype.name in legal:
        return None
    return f"target {target.name} takes {', '.join(legal)} activations in it, not {recipe.activations.qtype}"


def unprofitable(node: ir.Node, rule: OpRule, recipe: Recipe, target: Target) -> str | None:
    """Return why a target gains nothing by an operator, or loses accuracy for little."""
    if node.op_type in target.placement.gates and is_gate(node):
        return None
    dynamic = isinstance(recipe.activations, DynamicScheme)
    stays = target.placement.dynamic_kept_in_float.get(node.op_type) if dynamic else None
    stays = stays or target.placement.kept_in_float.get(node.op_type)
    if stays is not None and not (dynamic and rule.kind is Kind.LOOKUP and not rule.moves_values):
        return stays
    match rule.kind:
        case Kind.LINEAR:
            known = target.placement.dynamic_linear if dynamic else target.placement.linear
            return _linear_refusal(node, rule, target) if node.op_type in known else _NO_GAIN
        case Kind.RECURRENT if node.op_type not in target.placement.recurrent:
            return _NO_GAIN
        case Kind.RECURRENT:
            small = size_of(node.inputs[1]) < target.placement.min_recurrent_size
            return "its weights are too small for int8 to pay off" if small else None
        case Kind.ELEMENTWISE if node.op_type not in target.placement.elementwise:
            return _NO_GAIN
        case Kind.DATA_MOVEMENT if node.op_type not in target.placement.data_movement:
            return "the target does not run it on integers"
        case _:
            if rule.blends is not None and rule.blends(node):
                return "it interpolates, and the runtime has no integer kernel for that"
            return None


_NO_GAIN = "int8 does not pay off for it on this target"


def _linear_refusal(node: ir.Node, rule: OpRule, target: Target) -> str | None:
    if weight_of(node.inputs[1]) is None:
        return "both inputs are activations: int8 costs accuracy there and gains little"
    size = size_of(node.inputs[1])
    if size < target.placement.min_weight_size:
        return f"its weight has {size} values, too few for int8 to pay off"
    return conv_refusal(node, target) or (rule.unfused(node) if rule.unfused is not None else None)
