"""Borders of a model: inputs and outputs with their channels last, and shapes that are numbers."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from octavo.errors import RecipeError, closest
from octavo.model.graph.edit import Editor

_FIRST = "_channel_first"


def inputs_channels_last(model: ir.Model, names: Sequence[str]) -> None:
    """Let these inputs be fed with channels last; a Transpose behind each brings them back."""
    edit = Editor(model)
    for name in names:
        value = _named(model.graph.inputs, name, "input")
        uses, rank = tuple(value.uses()), _rank(value)
        turned = edit.node(
            "Transpose",
            [value],
            {"perm": [0, rank - 1, *range(1, rank - 1)]},
            name="Transpose_channel_0",
            output=f"{name}{_FIRST}_0",
            dtype=value.dtype,
        )
        turned.outputs[0].shape = value.shape
        if value.shape is not None:
            value.shape = ir.Shape([value.shape[0], *list(value.shape)[2:], value.shape[1]])
        for node, index in uses:
            node.replace_input_with(index, turned.outputs[0])
        model.graph.insert_before(model.graph[0], [turned])


def outputs_channels_last(model: ir.Model, names: Sequence[str]) -> None:
    """Let these outputs come with channels last, under their names."""
    edit = Editor(model)
    for name in names:
        value = _named(model.graph.outputs, name, "output")
        rank, dims = _rank(value), value.shape
        value.name = edit.values.claim(f"{name}{_FIRST}_0")
        turned = edit.node(
            "Transpose",
            [value],
            {"perm": [0, *range(2, rank), 1]},
            name="Transpose_channel_0",
            output=value.name,
            dtype=value.dtype,
        )
        output = turned.outputs[0]
        output.name = name
        if dims is not None:
            output.shape = ir.Shape([dims[0], *list(dims)[2:], dims[1]])
        model.graph.append(turned)
        for index, found in enumerate(model.graph.outputs):
            if found is value:
                model.graph.outputs[index] = output


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
