"""The schemes of weights: which axis, which blocks, and what tables and recurrent layers ask for."""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.qtypes import UINT8
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.model import query
from octavo.ops import OpRule, Table, Weight, axis_of
from octavo.targets import Target

_BLOCK = 32  # weights to a scale where a product is scaled block by block
_LEAST_TABLE = 1 << 14  # values; a smaller table is not worth the further nodes


def scheme_of(
    node: ir.Node, rule: OpRule, role: Weight, value: ir.Value, recipe: Recipe, target: Target
) -> Scheme:
    """The recipe's scheme for weights, with the axis that this operator means."""
    scheme = recipe.weights
    axis, sums = axis_of(role.axis, node), axis_of(role.sums, node)
    if not target.takes_channels(node.op_type):
        axis = None
    match scheme.granularity:
        case PerChannel(None):
            form = rule.forms.get(recipe.style)
            per_channel = axis is not None and (form is None or form.takes_per_channel(scheme))
            return scheme.but(granularity=PerChannel(axis) if per_channel else PerTensor())
        case PerBlock(size, None):
            blocked = sums is not None and query.rank(value) == 2
            return scheme.but(granularity=PerBlock(size, sums) if blocked else _or_channel(axis))
        case _:
            return scheme


def _or_channel(axis: int | None) -> Granularity:
    return PerChannel(axis) if axis is not None else PerTensor()


def blocks_of(node: ir.Node, recipe: Recipe, target: Target) -> Scheme | None:
    """The scheme of a linear layer that is scaled block by block and needs no range of its input.

    None where the recipe, the target or the node does not allow it.
    """
    weight = node.inputs[1]
    activations = recipe.activations
    if (
        not target.block_products
        or activations is None
        or not activations.qtype.bits == recipe.weights.qtype.bits == 8
        or activations.qtype.is_float
        or isinstance(recipe.weights.granularity, PerBlock)
        or node.op_type not in ("MatMul", "Gemm")
        or weight is None
        or not weight.is_initializer()
        or query.rank(weight) != 2
        or query.attribute(node, "transA", 0)
        or query.attribute(node, "alpha", 1.0) != 1.0
    ):
        return None
    axis = 1 if query.attribute(node, "transB", 0) else 0
    return Scheme(UINT8, PerBlock(_BLOCK, axis), symmetric=True)


def has_int32_bias(recipe: Recipe) -> bool:
    """Whether biases become int32: their scale is that of an input times that of a weight."""
    return (
        recipe.quantize_bias
        and isinstance(recipe.activations, Scheme)
        and not recipe.activations.qtype.is_float
        and recipe.style is not Style.INTEGER
        and not isinstance(recipe.weights.granularity, PerBlock)
    )


def has_channels(bias: ir.Value, weight: ir.Value, scheme: Scheme) -> bool:
    """Whether the scales of an int32 bias can be laid along it: one for all, or one for each channel."""
    match scheme.granularity:
        case PerTensor():
            return True
        case PerChannel(axis):
            values, channels = query.shape(bias), query.shape(weight)
            return bool(values and channels and axis is not None and values[-1] == channels[axis])
        case PerBlock():
            return False


def tables(node: ir.Node, rule: OpRule) -> list[ir.Value]:
    """The tables that a lookup reads, if all of them are constant."""
    found = [v for i, v in enumerate(node.inputs) if v is not None and isinstance(rule.role(i), Table)]
    constant = [v for v in found if query.constant(v) is not None]
    return constant if len(constant) == len(found) else []


def table_refusal(node: ir.Node, found: list[ir.Value], recipe: Recipe) -> str | None:
    """Why the tables of a lookup stay float, or None."""
    if not recipe.quantize_embeddings:
        return "embeddings stay float in this recipe"
    if recipe.weights.qtype.bits != 8 or recipe.weights.qtype.is_float:
        return "its table would need 8-bit weights"
    if node.op_type != "Gather":
        return "it has no quantized spelling in the qdq style" if recipe.style is Style.QDQ else None
    dims = query.shape(found[0]) or ()
    if len(dims) != 2 or query.attribute(node, "axis", 0) != 0:
        return "its table is no matrix of rows"
    if (dims[0] or 0) * (dims[1] or 0) < _LEAST_TABLE:
        return "its table is too small to gain"
    return None


def table_scheme(node: ir.Node, recipe: Recipe) -> Scheme:
    """One scale a row where rows are gathered, one for the table where a fused operator looks up."""
    if node.op_type != "Gather":
        return recipe.weights.but(granularity=PerTensor())
    return recipe.weights.but(granularity=PerChannel(0), symmetric=True)


def recurrent_scheme(weight: ir.Value, recipe: Recipe, *, fused: bool) -> Scheme:
    """One scale a gate row: a block as long as the row, where the kernel takes them per direction."""
    dims = query.shape(weight) or ()
    grain: Granularity = PerChannel(1)
    if isinstance(recipe.weights.granularity, PerTensor):
        grain = PerTensor()
    elif fused and not recipe.weights.qtype.signed:
        grain = PerTensor()  # the kernel takes one zero point for all gate rows
    elif fused and len(dims) == 3:
        grain = PerBlock(int(dims[2] or 1), 2)
    return recipe.weights.but(granularity=grain, symmetric=recipe.weights.qtype.signed)
