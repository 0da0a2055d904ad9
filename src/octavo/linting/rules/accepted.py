"""OCT5…: what the target's datasheet does not take."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core.recipe import Placement, Style
from octavo.linting.findings import Fault, Severity, rule
from octavo.linting.view import MS, LintedModel, dq_of, is_dq, is_q, is_stored, name
from octavo.model.graph import query
from octavo.model.graph.operators import BLOCKWISE, CONVERSIONS, DYNAMIC_QUANTIZE
from octavo.model.runtime.session import runtime_ir_limit, runtime_opset_limit
from octavo.ops import CLAMPS, Act, Kind, Weight, rule_of
from octavo.ops.integer_operators import GIVE_SUMS, INTEGER_OPERATORS

# ---- Which layers would saturate where pairs of uint8 × int8 products are added in 16 bits
#
# ``vpmaddubsw`` gives ``clip(a0·w0 + a1·w1, -32768, 32767)`` for neighbours along the axis that is summed
# over. With ``a`` up to 255, a pair is at risk where its positive or its negative weights add up to more
# than 128.

_CONVOLUTIONS = {"Conv"} | {op for op, known in INTEGER_OPERATORS.items() if known.computes == "Conv"}
_MAX_PAIR_SUM = 128  # 255 × 128 = 32640 fits 16 bits, 255 × 129 does not


def rows(weight: npt.NDArray[np.int8], node: ir.Node) -> npt.NDArray[np.int8]:
    """Return a row of summed weights for each output channel, in the order in which kernels read them.

    Convolutions read all channels of a pixel, then the next pixel of the window.
    """
    if weight.ndim < 2:
        return weight.reshape(1, -1)
    if node.op_type in _CONVOLUTIONS:
        moved = np.moveaxis(weight, 1, -1)
        return np.asarray(moved.reshape(weight.shape[0], -1))
    if query.attribute(node, "transB", 0):
        return weight
    return np.moveaxis(weight, -2, -1).reshape(-1, weight.shape[-2])


def pairs(matrix: npt.NDArray[np.int8]) -> npt.NDArray[np.int16]:
    """Return neighbours of each row, as (channels, pairs, 2); an odd row ends with a zero."""
    odd = matrix.shape[1] % 2
    wide = np.pad(matrix, ((0, 0), (0, odd))).astype(np.int16)
    return wide.reshape(len(wide), -1, 2)


def is_depthwise(weight: npt.NDArray[np.int8], node: ir.Node) -> bool:
    """Whether this is a depthwise Conv: its kernel multiplies without adding pairs."""
    grouped = node.op_type in _CONVOLUTIONS and query.attribute(node, "group", 1) > 1
    return bool(grouped and weight.ndim > 1 and weight.shape[1] == 1)


def at_risk(weight: npt.NDArray[np.int8], node: ir.Node) -> float:
    """Return the share of a layer's pairs of weights that large inputs drive out of 16 bits."""
    if is_depthwise(weight, node) or weight.ndim < 2 or not weight.size or node.op_type == "ConvTranspose":
        return 0.0
    found = pairs(rows(weight, node))
    up, down = np.maximum(found, 0).sum(axis=2), -np.minimum(found, 0).sum(axis=2)
    return float(np.mean(np.maximum(up, down) > _MAX_PAIR_SUM))


_ERROR, _WARNING = Severity.ERROR, Severity.WARNING


def _readers_roles(node: ir.Node) -> Iterator[tuple[ir.Node, object]]:
    """Yield the nodes that read a conversion's result, and what it is to each."""
    for reader, index in node.outputs[0].uses():
        found = rule_of(reader)
        yield reader, found.role(index) if found is not None else None


@rule("OCT501", _ERROR, "A zero point is not zero where the target is symmetric")
def asymmetric(view: LintedModel) -> Iterator[Fault]:
    """TensorRT takes zero point 0 alone; OpenVINO does so for weights."""
    target = view.target
    for node in view.conversions:
        weight = is_dq(node) and is_stored(node)
        must = target.accepts.symmetric_weights if weight else target.accepts.symmetric_activations
        params = view.params(node)
        if must and params.qtype is not None and params.qtype.bits < 32 and np.any(params.zeros):
            yield Fault(
                name(node),
                f"its zero point is not 0, and target {target.name} is symmetric: it refuses the model",
                "quantize symmetrically: octavo quantize --target " + target.name,
            )


@rule("OCT502", _ERROR, "A type is not among those that the target takes")
def refused_type(view: LintedModel) -> Iterator[Fault]:
    """Activations and weights have types that the datasheet lists."""
    target = view.target
    for node in view.conversions:
        kind = view.params(node).qtype
        weight = is_dq(node) and is_stored(node)
        if kind is None or kind.bits == 32 or (is_dq(node) and not weight):
            continue
        as_weight = weight and any(isinstance(role, Weight) for _, role in _readers_roles(node))
        legal = target.accepts.weight_types if weight and as_weight else target.accepts.activation_types
        if weight and not as_weight:
            legal = (*target.accepts.activation_types, *target.accepts.weight_types)
        if is_q(node) and query.constant(node.inputs[0]) is not None:
            legal = target.accepts.weight_types
        if kind.name not in legal:
            yield Fault(
                name(node),
                f"target {target.name} takes no {kind} here, only {', '.join(legal) or 'float'}",
                "quantize for it: octavo quantize --target " + target.name,
            )


@rule("OCT503", _ERROR, "An operator does not take the type that it reads")
def refused_operand(view: LintedModel) -> Iterator[Fault]:
    """Some operators take fewer types than the target does."""
    for node in view.nodes:
        legal = view.target.accepts.op_types.get(node.op_type)
        before = dq_of(node.inputs[0]) if legal is not None and node.inputs else None
        kind = view.params(before).qtype if before is not None else None
        if legal is not None and kind is not None and kind.name not in legal:
            yield Fault(
                name(node),
                f"target {view.target.name} has no {node.op_type} for {kind}: it runs elsewhere, or not",
                f"quantize its input as {' or '.join(legal)}",
            )


@rule("OCT504", _ERROR, "A quantized operator has a format that the target does not take")
def refused_style(view: LintedModel) -> Iterator[Fault]:
    """Other runtimes read QLinear… and …Integer operators in part or not at all."""
    target = view.target
    for node in view.nodes:
        op = node.op_type
        is_integer = op in GIVE_SUMS or op == DYNAMIC_QUANTIZE
        style = Style.INTEGER if is_integer else Style.QOPERATOR if op.startswith("QLinear") else None
        foreign = node.domain == MS and not target.accepts.contrib_ops and op not in CONVERSIONS
        if (style is not None and style not in target.accepts.styles) or foreign:
            yield Fault(
                name(node),
                f"target {target.name} does not take {op}: it refuses the model",
                "quantize in the qdq style: octavo quantize --target " + target.name,
            )


@rule("OCT505", _ERROR, "A weight has scales per channel or block that the target does not take")
def refused_granularity(view: LintedModel) -> Iterator[Fault]:
    """QNN takes scales per channel in convolutions alone."""
    target = view.target
    for product in view.products:
        if product.w is None or not is_stored(product.w):
            continue
        params, op = view.params(product.w), product.node.op_type
        if params.scale is None or params.per_tensor:
            continue
        blocks = target.accepts.block_ops is not None and op not in target.accepts.block_ops
        bad = blocks if params.block else not target.accepts.per_channel(op)
        if bad or (params.block and "block" not in target.accepts.granularities):
            what = "block" if params.block else "channel"
            yield Fault(
                name(product.node),
                f"target {target.name} takes no scales per {what} in {op}",
                "use one scale for its weight",
            )


@rule("OCT506", _ERROR, "An operator is quantized that the target takes in float alone")
def refused_operator(view: LintedModel) -> Iterator[Fault]:
    """Operators that the datasheet refuses; one that only reads what a quantized neighbour made is float."""
    for node in view.nodes:
        reason = view.target.accepts.refused.get(node.op_type)
        if reason is None:
            continue
        reads = [dq_of(value) for value in node.inputs[:2]]
        gives = any(is_q(one) for value in node.outputs for one in value.consumers())
        if any(one is not None and (gives or is_stored(one)) for one in reads):
            yield Fault(name(node), reason, "keep it in float: --exclude op:" + node.op_type)


@rule("OCT507", _WARNING, "An operator reads quantized tensors and gives a float one")
def half_quantized(view: LintedModel) -> Iterator[Fault]:
    """Where every operator has to be quantized, one that is so in part runs on the CPU."""
    if view.target.static_recipe.placement is not Placement.EVERYWHERE:
        return
    for node in view.nodes:
        found = rule_of(node)
        if found is None or found.kind in (Kind.CLAMP, Kind.LOOKUP) or not node.outputs or not node.inputs:
            continue
        acts = [v for i, v in enumerate(node.inputs) if v is not None and isinstance(found.role(i), Act)]
        moving = [v for v in acts if query.constant(v) is None and not is_stored(dq_of(v))]
        if not any(dq_of(value) is not None for value in moving):
            continue
        behind = node.outputs[0].consumers()
        if len(behind) == 1 and behind[0].op_type in CLAMPS:
            behind = behind[0].outputs[0].consumers()
        whole = all(dq_of(value) is not None for value in moving)
        if not whole or (query.is_float(node.outputs[0]) and not any(is_q(one) for one in behind)):
            yield Fault(
                name(node),
                f"target {view.target.name} runs it on the CPU: not all that it reads and gives is quantized",
                "quantize its inputs and outputs: placement everywhere",
            )


@rule("OCT508", _ERROR, "The opset or IR version is newer than the target loads")
def too_new_model(view: LintedModel) -> Iterator[Fault]:
    """A runtime loads opsets up to its own."""
    newest = min(view.target.accepts.newest_opset or runtime_opset_limit(), runtime_opset_limit())
    place = view.model.graph.name or "graph"
    if view.opset > newest:
        yield Fault(
            place,
            f"opset {view.opset}, and target {view.target.name} loads up to {newest}",
            f"export the model with opset {newest} or older",
        )
    limit = runtime_ir_limit()
    if (view.model.ir_version or 0) > limit:
        yield Fault(
            place,
            f"IR version {view.model.ir_version}, and the installed runtime loads up to {limit}",
            "save it again: the lowest version that the model needs is written",
            lambda edit: None,
        )


@rule("OCT509", _WARNING, "Products may saturate in 16 bits")
def saturation(view: LintedModel) -> Iterator[Fault]:
    """Without VNNI, x86 adds pairs of uint8 × int8 products in 16 bits."""
    if not view.target.kernels.saturates:
        return
    for node, value in _multiplied(view):
        tensor = query.constant(value)
        if tensor is None or tensor.dtype is not ir.DataType.INT8:
            continue
        share = at_risk(np.asarray(tensor.numpy()), node)
        if share > 0.0:
            yield Fault(
                name(node),
                f"{100 * share:.2f} % of its pairs of weights exceed 16 bits with large inputs: on a CPU"
                " without VNNI results saturate silently",
                "quantize weights in 7 bits (reduce_range), or as uint8",
            )


def _multiplied(view: LintedModel) -> Iterator[tuple[ir.Node, ir.Value | None]]:
    """Yield products of 8-bit activations, and the integers of their weights."""
    for product in view.products:
        kind = view.params(product.x).qtype if product.x is not None else None
        if product.w is not None and kind is not None and kind.bits == 8 and not kind.is_float:
            yield product.node, product.w.inputs[0]
    for node in view.nodes:
        known = INTEGER_OPERATORS.get(node.op_type)
        index = known.slot("q1") if known is not None and known.is_linear else None
        if index is not None and len(node.inputs) > index and node.op_type not in BLOCKWISE:
            yield node, node.inputs[index]
