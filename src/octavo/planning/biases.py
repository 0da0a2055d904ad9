"""Biases in int32: their scale is that of the layer's input times that of its weight.

Such a bias has to fit into 32 bits; where it does not, :mod:`octavo.planning.resolve` raises the scale of the
weight until it does, which does not show beside a bias so large.
"""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.plan import Derived
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.model.graph import query
from octavo.planning.state import State


def are_int32(recipe: Recipe) -> bool:
    """Whether a recipe makes biases int32."""
    return (
        recipe.quantize_bias
        and isinstance(recipe.activations, Scheme)
        and not recipe.activations.qtype.is_float
        and recipe.style is not Style.INTEGER
        and not isinstance(recipe.weights.granularity, PerBlock)
    )


def place(
    state: State,
    bias: ir.Value,
    consumer: ir.Node,
    layer: ir.Node,
    *,
    make_room: bool = True,
) -> bool:
    """Make a constant bias int32 for the node that adds it, and say whether that can be.

    The input and the weight of ``layer`` have to be quantized, with scales that can be laid along the bias.
    """
    x, w = (state.key(value, layer) for value in layer.inputs[:2])
    if x is None or w is None or query.constant(bias) is None or state.avoided(bias):
        return False
    read, weight = state.scheme(x), state.scheme(w)
    if read is not None and (read.qtype.is_float or not isinstance(read.granularity, PerTensor)):
        return False
    if weight is None or not _has_channels(bias, layer.inputs[1], weight):
        return False
    state.place(bias, Derived((x.tensor, x.consumer), (w.tensor, w.consumer), make_room), consumer)
    return True


def _has_channels(bias: ir.Value, weight: ir.Value | None, scheme: Scheme) -> bool:
    """Whether scales can be laid along a bias: one for all, or one for each channel."""
    match scheme.granularity:
        case PerTensor():
            return True
        case PerChannel(axis):
            values, channels = query.shape(bias), query.shape(weight)
            return bool(values and channels and axis is not None and values[-1] == channels[axis])
        case PerBlock():
            return False
