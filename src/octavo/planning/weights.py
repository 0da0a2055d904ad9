"""Weights: the initializers behind them, and the schemes that linear, lookup and recurrent operators take."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core.blocks import Array
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.plan import Constant, Entry
from octavo.core.qtypes import UINT8
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.model.graph import query
from octavo.ops import Lowering, OpRule, Table, Weight, axis_of, rule_of
from octavo.targets import Target
from octavo.targets.target import OutlierInputs

_BLOCK = 32  # weights to a scale where MatMulNBits scales input and weight block by block
_LEAST_TABLE = 1 << 14  # values; quantizing a smaller table costs more nodes than it saves bytes


def weight_of(value: ir.Value | None) -> tuple[ir.Value, tuple[int, ...] | None] | None:
    """Return the initializer behind a weight, and the permutation of a Transpose (tied weights)."""
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


def size_of(value: ir.Value | None) -> int:
    """Return how many values the initializer behind a weight holds; 0 where it is computed."""
    source = weight_of(value)
    tensor = query.constant(source[0]) if source is not None else None
    return int(np.prod(tensor.shape.numpy(), dtype=np.int64)) if tensor is not None else 0


# ---- linear operators


def scheme_of(node: ir.Node, rule: OpRule, index: int, recipe: Recipe, target: Target) -> Scheme:
    """Return the recipe's scheme for the weight at an input, along the axes that it has there."""
    role = rule.role(index)
    weight = role if isinstance(role, Weight) else Weight()
    axis, sums = axis_of(weight.axis, node), axis_of(weight.sums, node)
    if not target.accepts.per_channel(node.op_type):
        axis = None
    return along(recipe.weights, axis, sums, query.rank(node.inputs[index]), rule.lowerings.get(recipe.style))


def along(
    scheme: Scheme, axis: int | None, sums: int | None, rank: int | None, lowering: Lowering | None
) -> Scheme:
    """Return a scheme whose granularity names its axis: of the channels, or of the sums for blocks."""
    match scheme.granularity:
        case PerChannel(None):
            takes = lowering is None or lowering.takes_per_channel(scheme)
            return scheme.but(granularity=_channels(axis if takes else None))
        case PerBlock(size, None) if sums is not None and rank == 2:
            return scheme.but(granularity=PerBlock(size, sums))
        case PerBlock(_, None):
            return scheme.but(granularity=_channels(axis))
        case _:
            return scheme


def _channels(axis: int | None) -> Granularity:
    return PerChannel(axis) if axis is not None else PerTensor()


def blocks_of(node: ir.Node, recipe: Recipe, target: Target) -> Scheme | None:
    """Return the scheme of a matrix product that is scaled block by block and needs no range of its input.

    None where the recipe, the target or the node does not allow it.
    """
    rule, weight, activations = rule_of(node), node.inputs[1], recipe.activations
    if (
        target.kernels.outlier_inputs is OutlierInputs.IN_FLOAT
        or activations is None
        or not activations.qtype.bits == recipe.weights.qtype.bits == 8
        or activations.qtype.is_float
        or isinstance(recipe.weights.granularity, PerBlock)
        or rule is None
        or not rule.is_matrix_product
        or weight is None
        or not weight.is_initializer()
        or query.rank(weight) != 2
        or query.attribute(node, "transA", 0)
        or query.attribute(node, "alpha", 1.0) != 1.0
    ):
        return None
    axis = 1 if query.attribute(node, "transB", 0) else 0
    return Scheme(UINT8, PerBlock(_BLOCK, axis), symmetric=True)


# ---- lookups and recurrent layers


def tables(node: ir.Node, rule: OpRule) -> list[ir.Value]:
    """Return the tables that a lookup reads, if all of them are constant."""
    found = rule.reads(node, Table)
    return found if all(query.constant(v) is not None for v in found) else []


def table_refusal(node: ir.Node, rule: OpRule, recipe: Recipe) -> str | None:
    """Return why the constant tables of a lookup stay float, or None."""
    if not recipe.quantize_embeddings:
        return "this recipe keeps embeddings in float"
    if recipe.weights.qtype.bits != 8 or recipe.weights.qtype.is_float:
        return "its table takes 8-bit integers only"
    if not rule.moves_values:
        return "no quantized operator for it in the qdq style" if recipe.style is Style.QDQ else None
    dims = query.shape(rule.reads(node, Table)[0]) or ()
    if len(dims) != 2 or query.attribute(node, "axis", 0) != 0:
        return "its table is not a matrix of rows"
    if (dims[0] or 0) * (dims[1] or 0) < _LEAST_TABLE:
        return "its table is too small for int8 to pay off"
    return None


def table_scheme(rule: OpRule, recipe: Recipe) -> Scheme:
    """Return a scheme with a scale per row where rows are gathered, and one where they are summed."""
    if not rule.moves_values:
        return recipe.weights.but(granularity=PerTensor())
    return recipe.weights.but(granularity=PerChannel(0), symmetric=True)


def recurrent_scheme(weight: ir.Value, recipe: Recipe, *, fused: bool) -> Scheme:
    """Return a scheme with a scale per gate row: for each direction a block as long as the row."""
    dims = query.shape(weight) or ()
    grain: Granularity = PerChannel(1)
    if isinstance(recipe.weights.granularity, PerTensor):
        grain = PerTensor()
    elif fused and not recipe.weights.qtype.signed:
        grain = PerTensor()  # the kernel takes one zero point for all gate rows
    elif fused and len(dims) == 3:
        grain = PerBlock(int(dims[2] or 1), 2)
    return recipe.weights.but(granularity=grain, symmetric=recipe.weights.qtype.signed)


# ---- Tied weights: a table that is looked up and the product that makes logits often hold the same values
#
# An exporter may write them as one initializer, read as it is and transposed, or store them twice. Where both
# are quantized alike, one set of integers serves both: MatMulNBits reads ``[N, blocks, bytes]``, and the
# lookup reads the same bytes as ``[N, bytes]``.

_ROWS = 1024  # of two tables that are compared at a time


def is_tied(table: ir.Value, weight: ir.Value, transposed: bool) -> bool:
    """Whether a table ``[N, K]`` holds what a product reads as its weight, ``[N, K]`` if transposed."""
    source, origin = weight_of(weight), weight_of(table)
    if source is None or origin is None or origin[1] is not None:
        return False
    if source[1] is not None:
        transposed = not transposed
    if source[0] is origin[0]:
        return transposed
    one, other = query.constant(origin[0]), query.constant(source[0])
    if one is None or other is None or one.dtype != other.dtype:
        return False
    dims = tuple(other.shape.numpy()) if transposed else tuple(other.shape.numpy())[::-1]
    if tuple(one.shape.numpy()) != dims or len(dims) != 2:
        return False
    rows = np.asarray(other.numpy()) if transposed else np.asarray(other.numpy()).T
    return _are_equal(np.asarray(one.numpy()), rows)


def _are_equal(one: Array, other: Array) -> bool:
    """Compare two tables; a few rows from all over tell most of them apart at once."""
    some = np.linspace(0, len(one) - 1, min(len(one), 8)).astype(int)
    if not np.array_equal(one[some], other[some]):
        return False
    return all(
        np.array_equal(one[first : first + _ROWS], other[first : first + _ROWS])
        for first in range(0, len(one), _ROWS)
    )


def are_alike(table: Entry, weight: Entry, width: int) -> bool:
    """Whether two entries ask for the same integers: bits, zero points, and whole blocks along each row."""
    if not isinstance(table, Constant) or not isinstance(weight, Constant):
        return False
    one, other = table.scheme, weight.scheme
    if not isinstance(one.granularity, PerBlock) or not isinstance(other.granularity, PerBlock):
        return False
    size = one.granularity.size
    return (
        one.qtype == other.qtype
        and one.symmetric == other.symmetric
        and size == other.granularity.size
        and width % size == 0
    )
