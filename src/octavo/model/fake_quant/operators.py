"""Operators that fake-quantize in one piece, under the names that frameworks gave them.

=====================================  =========================================================
FakeQuant, FakeQuantize                scale and zero point as inputs or attributes, or min and max
fake_quantize_per_tensor_affine        x, scale, zero point, quant_min, quant_max (also as ATen)
fake_quantize_per_channel_affine       x, scale, zero point, axis, quant_min, quant_max
FakeQuantWithMinMaxVars and similar    x, min, max; ``num_bits``, ``narrow_range``; zero nudged to the grid
FakeQuantize with ``levels``           x, input low, input high, output low, output high
=====================================  =========================================================
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.model.fake_quant.found import Array, FakeQuant, typed
from octavo.model.graph import query


def operator(node: ir.Node) -> FakeQuant | None:
    """Return the fake quantization that this node is, if its parameters are constants that can be read."""
    name = re.sub(r"[^a-z]", "", _name(node).lower()).removeprefix("aten")
    if not name.startswith("fakequant") or not node.inputs or node.inputs[0] is None:
        return None
    if any(v.name and (v.uses() or v.is_graph_output()) for v in node.outputs[1:]):
        return None
    if "minmax" in name:
        found = _between(node, name)
    elif "levels" in node.attributes:
        found = _levels(node)
    elif "affine" in name:
        found = _affine(node, by_channel="channel" in name)
    else:
        found = _scaled(node)
        found = found if found is not None else _between(node, name)
    if found is None:
        return None
    made = typed(*found)
    if made is None:
        return None
    return FakeQuant(node.inputs[0], (node.outputs[0],), (node,), *made)


def _name(node: ir.Node) -> str:
    return str(query.attribute(node, "operator", "")) if node.op_type == "ATen" else node.op_type


_Found = tuple[Array, Array, Array, Array, int | None]


def _affine(node: ir.Node, *, by_channel: bool) -> _Found | None:
    scale, zero = _given(node, 1, "scale"), _given(node, 2, "zero_point")
    axis = _given(node, 3, "axis") if by_channel else None
    at = 4 if by_channel else 3
    low, high = _given(node, at, "quant_min"), _given(node, at + 1, "quant_max")
    if scale is None or zero is None or low is None or high is None:
        return None
    return scale, np.rint(zero), low, high, _axis(node, axis)


def _scaled(node: ir.Node) -> _Found | None:
    scale, zero = _given(node, 1, "scale"), _given(node, 2, "zero_point")
    if scale is None or ("scale" not in node.attributes and len(node.inputs) < 2):
        return None
    zero = np.zeros_like(scale) if zero is None else np.rint(zero)
    low, high = _integers(node)
    axis = _given(node, 99, "axis")
    return scale, zero, low, high, _axis(node, axis if axis is not None else np.asarray(0))


def _integers(node: ir.Node) -> tuple[Array, Array]:
    """Return the integers that are used: said, or those of a type of so many bits."""
    low, high = _given(node, 99, "quant_min"), _given(node, 99, "quant_max")
    if low is not None and high is not None:
        return low, high
    bits = int(query.attribute(node, "num_bits", query.attribute(node, "bits", 8)))
    narrow = int(query.attribute(node, "narrow_range", 0))
    if query.attribute(node, "signed", 0):
        return np.asarray(-(1 << (bits - 1)) + narrow), np.asarray((1 << (bits - 1)) - 1)
    return np.asarray(narrow), np.asarray((1 << bits) - 1)


def _between(node: ir.Node, name: str) -> _Found | None:
    """Return a range; its ends are moved until zero is one of the steps."""
    low, high = _given(node, 1, "min"), _given(node, 2, "max")
    if low is None or high is None or np.any(high <= low):
        return None
    qmin, qmax = _integers(node)
    low, high = low.astype(np.float64), high.astype(np.float64)
    scale = (high - low) / (qmax - qmin)
    zero = np.clip(np.floor(qmin - low / scale + 0.5), qmin, qmax)
    rank = query.rank(node.inputs[0])
    axis = np.asarray(rank - 1) if "channel" in name and rank else _given(node, 99, "axis")
    return scale.astype(np.float32), zero, qmin, qmax, _axis(node, axis)


def _levels(node: ir.Node) -> _Found | None:
    ends = [_given(node, i, "") for i in range(1, 5)]
    levels = int(query.attribute(node, "levels"))
    if any(end is None for end in ends):
        return None
    low, high, out_low, out_high = (np.asarray(end, np.float64) for end in ends)
    if not (np.array_equal(low, out_low) and np.array_equal(high, out_high)) or np.any(high <= low):
        return None
    scale = (high - low) / (levels - 1)
    zero = -low / scale
    if np.any(np.abs(zero - np.rint(zero)) > 1e-2):
        return None
    long = [i for i, n in enumerate(scale.shape) if n > 1]
    if len(long) > 1:
        return None
    rank = query.rank(node.inputs[0]) or scale.ndim
    axis = long[0] + rank - scale.ndim if long else None
    return (
        scale.reshape(-1).astype(np.float32),
        np.rint(zero).reshape(-1),
        np.asarray(0),
        np.asarray(levels - 1),
        axis,
    )


def _axis(node: ir.Node, axis: Array | None) -> int | None:
    if axis is None:
        return None
    number, rank = int(np.asarray(axis).reshape(-1)[0]), query.rank(node.inputs[0])
    return number % rank if rank else number


def _given(node: ir.Node, index: int, name: str) -> Array | None:
    """Return an input or an attribute, as numbers."""
    if index < len(node.inputs) and node.inputs[index] is not None:
        return query.array(node.inputs[index])
    value: Any = query.attribute(node, name) if name in node.attributes else None
    if value is None:
        return None
    return np.asarray(value.numpy() if isinstance(value, ir.TensorProtocol) else value)
