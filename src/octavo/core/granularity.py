"""How many scales one tensor has: one, one per channel, or one per block along an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.errors import RecipeError


@dataclass(frozen=True)
class PerTensor:
    """One scale for the whole tensor."""

    def __str__(self) -> str:
        return "tensor"


@dataclass(frozen=True)
class PerChannel:
    """One scale for each index along ``axis``.

    In a recipe, None stands for the operator's own channel axis.
    """

    axis: int | None = None

    def __str__(self) -> str:
        return "channel" if self.axis is None else f"channel:{self.axis}"


@dataclass(frozen=True)
class PerBlock:
    """One scale for each run of ``size`` values along ``axis``, at every other index.

    In a recipe, None stands for the axis that the operator sums over.
    """

    size: int
    axis: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise RecipeError(
                f"A block of {self.size} values is not possible; choose a power of two such as 32."
            )

    def __str__(self) -> str:
        return f"block:{self.size}" if self.axis is None else f"block:{self.size}:{self.axis}"


Granularity: TypeAlias = PerTensor | PerChannel | PerBlock
Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = npt.NDArray[Any]


def parse(text: str) -> Granularity:
    """Read a granularity: ``tensor``, ``channel``, ``channel:1``, ``block:32`` or ``block:32:0``."""
    kind, *numbers = str(text).split(":")
    try:
        values = [int(n) for n in numbers]
        if kind == "tensor" and not values:
            return PerTensor()
        if kind == "channel" and len(values) <= 1:
            return PerChannel(*values)
        if kind == "block" and 1 <= len(values) <= 2:
            return PerBlock(*values)
    except ValueError:
        pass
    raise RecipeError(
        f"{str(text)!r} is not a granularity; write tensor, channel, channel:AXIS, block:SIZE or"
        " block:SIZE:AXIS."
    )


def normal_axis(axis: int | None, rank: int, what: str = "a tensor") -> int:
    """Return the axis counted from the front; an axis outside the rank is an error."""
    if axis is None:
        raise RecipeError(
            f"No axis was chosen for the scales of {what}; write channel:AXIS or block:SIZE:AXIS."
        )
    if not rank:
        raise RecipeError(f"Axis {axis} does not exist in {what} of rank 0, a single number; write tensor.")
    if not -rank <= axis < rank:
        raise RecipeError(
            f"Axis {axis} does not exist in {what} of rank {rank}; choose one of {-rank}…{rank - 1}."
        )
    return axis % rank


def parameter_shape(shape: Shape, granularity: Granularity) -> Shape:
    """Return the shape of scale and zero point of a tensor of this shape, as ONNX stores them."""
    match granularity:
        case PerTensor():
            return ()
        case PerChannel(axis):
            return (shape[normal_axis(axis, len(shape))],)
        case PerBlock(size, axis):
            axis = normal_axis(axis, len(shape))
            return (*shape[:axis], -(-shape[axis] // size), *shape[axis + 1 :])


def checked(values: Array, shape: Shape, granularity: Granularity) -> Array:
    """Return parameters in the shape that ONNX stores; more or fewer than the tensor needs are an error."""
    wanted = parameter_shape(shape, granularity)
    if values.shape == wanted:
        return values
    if values.size != math.prod(wanted) or len(wanted) > 1:
        raise RecipeError(
            f"Scale or zero point of shape {list(values.shape)} does not fit a tensor of shape {list(shape)}"
            f" quantized per {granularity}; give the shape {list(wanted)}."
        )
    return values.reshape(wanted)


def spread(values: Array, shape: Shape, granularity: Granularity) -> Array:
    """Return parameters laid out so that they broadcast against the tensor."""
    values = checked(values, shape, granularity)
    match granularity:
        case PerTensor():
            return values
        case PerChannel(axis):
            axis = normal_axis(axis, len(shape))
            return values.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        case PerBlock(size, axis):
            axis = normal_axis(axis, len(shape))
            whole = np.repeat(values, min(size, shape[axis]), axis=axis)
            return whole[(slice(None),) * axis + (slice(0, shape[axis]),)]


def moved(granularity: Granularity, perm: tuple[int, ...]) -> Granularity:
    """Return the granularity after a Transpose with ``perm`` (output axis i is input axis perm[i])."""
    match granularity:
        case PerTensor():
            return granularity
        case PerChannel(axis):
            return PerChannel(perm.index(normal_axis(axis, len(perm))))
        case PerBlock(size, axis):
            return PerBlock(size, perm.index(normal_axis(axis, len(perm))))
