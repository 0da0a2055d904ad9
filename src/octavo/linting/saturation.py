"""Which layers would saturate where pairs of uint8 × int8 products are added in 16 bits.

``vpmaddubsw`` gives ``clip(a0·w0 + a1·w1, -32768, 32767)`` for neighbours along the axis that is summed over.
With ``a`` up to 255, a pair is at risk where its positive or its negative weights add up to more than 128.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.model.graph import query
from octavo.ops.integer_operators import INTEGER_OPERATORS

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
    """Neighbours of each row, as (channels, pairs, 2); an odd row ends with a zero."""
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
