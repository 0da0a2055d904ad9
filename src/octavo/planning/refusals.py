"""Why a node stays float whatever its neighbours do: each function returns a reason, or None."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from octavo.core.granularity import PerBlock
from octavo.core.qparams import QParams
from octavo.core.qtypes import QType
from octavo.core.recipe import DynamicScheme, Recipe, Style
from octavo.core.scheme import Scheme
from octavo.model.fake_quant.forms import linear_parameters
from octavo.model.graph import query
from octavo.ops import Act, Kind, Lowering, OpRule, Table, Weight, rule_of
from octavo.ops.hooks import is_gate
from octavo.planning.weights import size_of, weight_of
from octavo.targets import Target

# ---- Convolutions for which int8 does not pay off: the first, the last, those of many groups

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
    fewest = target.placement.convolutions.depthwise_min_channels
    if dims[1] == 1 and group == dims[0] < fewest:
        return f"a depthwise Conv of fewer than {fewest} channels is several times slower in int8"
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
            return "it works on texts" if kind is ir.DataType.STRING else "it works on integers"
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
    """Return why a constant beside an activation has no usable range: it is a mask or an infinity."""
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
