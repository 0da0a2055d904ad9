"""What QNN wants of a model: inputs and outputs with channels last, and two compositions as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.errors import RecipeError, closest
from octavo.model.graph import query
from octavo.model.graph.edit import Editor, prepend, return_instead
from octavo.model.graph.query import is_op
from octavo.model.prepare.graph_patterns import Composition, made_by, read_by, reduced_axes

# ---- Borders of a model: inputs and outputs with their channels last, and shapes that are numbers

_FIRST = "_channel_first"


def inputs_channels_last(model: ir.Model, names: Sequence[str]) -> None:
    """Let these inputs be fed with channels last; a Transpose behind each brings them back."""
    edit = Editor(model)
    for name in names:
        value = _named(model.graph.inputs, name, "input")
        uses, rank = tuple(value.uses()), _rank(value)
        perm, output = [0, rank - 1, *range(1, rank - 1)], f"{name}{_FIRST}_0"
        turned = _transposed(edit, value, perm, output, value.shape)
        if value.shape is not None:
            value.shape = ir.Shape([value.shape[0], *list(value.shape)[2:], value.shape[1]])
        for node, index in uses:
            node.replace_input_with(index, turned.outputs[0])
        prepend(edit.model.graph, [turned])


def outputs_channels_last(model: ir.Model, names: Sequence[str]) -> None:
    """Let these outputs come with channels last, under their names."""
    edit = Editor(model)
    for name in names:
        value = _named(model.graph.outputs, name, "output")
        rank, dims = _rank(value), value.shape
        value.name = edit.values.claim(f"{name}{_FIRST}_0")
        shape = ir.Shape([dims[0], *list(dims)[2:], dims[1]]) if dims is not None else None
        turned = _transposed(edit, value, [0, *range(2, rank), 1], value.name, shape)
        turned.outputs[0].name = name
        model.graph.append(turned)
        return_instead(model.graph, value, turned.outputs[0])


def _transposed(
    edit: Editor, value: ir.Value, perm: list[int], output: str, shape: ir.Shape | None
) -> ir.Node:
    name, dtype = "Transpose_channel_0", value.dtype
    return edit.node("Transpose", [value], {"perm": perm}, name=name, output=output, dtype=dtype, shape=shape)


def fix_shapes(model: ir.Model, shapes: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Give inputs shapes of numbers; a symbol that a number takes the place of is that number everywhere."""
    known: dict[str, int] = {}
    for name, dims in shapes:
        value = _named(model.graph.inputs, name, "input")
        if value.shape is not None and len(value.shape) != len(dims):
            raise RecipeError(
                f"Input {name!r} has {len(value.shape)} dimensions, and the shape given has {len(dims)}."
            )
        for old, new in zip(value.shape or (), dims, strict=False):
            if isinstance(old, int) and old != new:
                raise RecipeError(f"Input {name!r} has a dimension of {old}, which can't be made {new}.")
            if isinstance(old, ir.SymbolicDim) and old.value is not None:
                known[str(old.value)] = new
        value.shape = ir.Shape(dims)
    values = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape([_fixed(dim, known) for dim in value.shape])


def _fixed(dim: int | ir.SymbolicDim, known: dict[str, int]) -> int | ir.SymbolicDim:
    return dim if isinstance(dim, int) else known.get(str(dim.value), dim)


def _named(values: Sequence[ir.Value], name: str, what: str) -> ir.Value:
    for value in values:
        if value.name == name:
            return value
    raise RecipeError(
        f"The model has no {what} {name!r}{closest(name, [v.name or '' for v in values]) or '.'}"
    )


def _rank(value: ir.Value) -> int:
    if value.shape is None or len(value.shape) < 3:
        raise RecipeError(
            f"{value.name!r} needs to be of rank >= 3 for its channels to be put last; its rank is"
            f" {'unknown' if value.shape is None else len(value.shape)}. Leave it out."
        )
    return len(value.shape)


# ---- ``x / max(‖x‖₂, ε)`` along one axis, composed around a ReduceL2, as LpNormalization

EPSILON = 1e-12  # the lower bound of a norm that PyTorch's normalize writes


def lp_norm(node: ir.Node, epsilon: float = EPSILON) -> Composition | None:
    """Return the unit around a ReduceL2; the lower bound of its Clip has to be this ε."""
    axes = reduced_axes(node) if is_op(node, "ReduceL2") else None
    if axes is None or len(axes) != 1 or not query.attribute(node, "keepdims", 1):
        return None
    nodes, here = [node], node.outputs[0]
    clip = read_by(here, "Clip", "Max")
    if clip is not None:
        bound = query.scalar(clip.inputs[1]) if len(clip.inputs) > 1 else query.attribute(clip, "min")
        upper = len(clip.inputs) > 2 and clip.inputs[2] is not None
        if bound is None or upper or abs(float(bound) - epsilon) > 1e-3 * epsilon + 1e-18:
            return None
        nodes.append(clip)
        here = clip.outputs[0]
    expand = read_by(here, "Expand")
    if expand is not None:
        nodes.append(expand)
        here = expand.outputs[0]
    divide = read_by(here, "Div")
    x = node.inputs[0]
    if divide is None or x is None or divide.inputs[0] is not x or divide.inputs[1] is not here:
        return None
    if expand is not None and query.shape(divide.outputs[0]) != query.shape(x):
        return None
    return Composition("LpNormalization", 1, (*nodes, divide), (x,), {"axis": axes[0], "p": 2})


# ---- Reshape, Transpose, Reshape that move blocks of an image to channels, as SpaceToDepth
#
# ``[N, C, H, W] → [N, C, H/b, b, W/b, b] → [N, b, b, C, H/b, W/b] → [N, b²·C, H/b, W/b]``. Some exporters
# keep ``C`` before the blocks; then a Gather puts the channels of SpaceToDepth into that order.

_BLOCKS_FIRST, _CHANNELS_FIRST = (0, 3, 5, 1, 2, 4), (0, 1, 3, 5, 2, 4)


@dataclass(frozen=True, eq=False)
class BlockShuffle:
    """The nodes, what they read, the size of a block, and the order of channels if not the usual one."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    size: int
    order: npt.NDArray[np.int64] | None = None


def space_to_depth(node: ir.Node) -> BlockShuffle | None:
    """Return the composition around a Transpose."""
    perm = tuple(query.attribute(node, "perm", None) or ())
    if not is_op(node, "Transpose") or perm not in (_BLOCKS_FIRST, _CHANNELS_FIRST):
        return None
    first, last = made_by(node.inputs[0], "Reshape"), read_by(node.outputs[0], "Reshape")
    if first is None or last is None or query.only_reader(first.outputs[0]) is not node:
        return None
    x = first.inputs[0]
    before, split, after = (query.shape(v) for v in (x, first.outputs[0], last.outputs[0]))
    if x is None or before is None or split is None or after is None or len(before) != 4 or len(split) != 6:
        return None
    size, channels = split[3], split[1]
    if not size or size < 2 or split[5] != size or channels is None or channels != before[1]:
        return None
    if None in (split[2], split[4]) or before[2:] != (split[2] * size, split[4] * size):  # type: ignore[operator]
        return None
    if after[1:] != (channels * size * size, split[2], split[4]):
        return None
    order = None
    if perm == _CHANNELS_FIRST:
        order = (
            np.arange(channels * size * size).reshape(size * size, channels).T.reshape(-1).astype(np.int64)
        )
    return BlockShuffle((first, node, last), x, size, order)
