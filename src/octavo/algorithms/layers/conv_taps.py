"""Which input positions each tap of a convolution's kernel reads, as matrices of zeros and ones.

Along one axis tap ``t`` reads position ``h = o · stride + t · dilation - pad`` for output ``o``, a different
one for each output. The sum of what it reads over all outputs is therefore a product with ``R[t, h]``, and
for a feature map ``R_h · x · R_w`` gives that sum for every tap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.algorithms.layers.layer import F64, Layer
from octavo.model.graph import query

F32 = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ConvTaps:
    """The matrix ``R`` for each spatial axis, and the number of outputs for each feature map."""

    axes: tuple[F32, ...]
    outputs: int

    @property
    def taps(self) -> int:
        """Return the number of taps of the kernel."""
        return math.prod(len(one) for one in self.axes)

    @property
    def shares(self) -> F64:
        """Return the share of a feature map's positions that each tap reads."""
        found = np.ones(())
        for one in self.axes:
            found = found[..., None] * one.mean(axis=1, dtype=np.float64)
        return found.reshape(-1)

    @property
    def positions(self) -> int:
        """Return the number of positions of an input feature map."""
        return math.prod(one.shape[1] for one in self.axes)


def conv_taps(layer: Layer) -> ConvTaps | None:
    """Return the taps of a convolution; None for more than two axes, or where sizes or pads are unknown."""
    axes, node = len(layer.kernel), layer.node
    dims = [dim for dim in (query.shape(layer.x) or ())[2:] if dim]
    padding = query.attribute(node, "auto_pad", "NOTSET")
    if axes not in (1, 2) or len(dims) != axes or padding not in ("NOTSET", "VALID"):
        return None
    strides = query.attribute(node, "strides", ()) or (1,) * axes
    dilations = query.attribute(node, "dilations", ()) or (1,) * axes
    pads = (query.attribute(node, "pads", ()) if padding == "NOTSET" else ()) or (0,) * 2 * axes
    if (len(strides), len(dilations), len(pads)) != (axes, axes, 2 * axes):
        return None
    read = [
        _positions(dims[i], layer.kernel[i], strides[i], dilations[i], (pads[i], pads[i + axes]))
        for i in range(axes)
    ]
    return ConvTaps(
        tuple(_matrix(positions, dim) for positions, dim in zip(read, dims, strict=True)),
        math.prod(positions.shape[1] for positions in read),
    )


def _positions(size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> Positions:
    """Return ``[tap, output]``, the position that is read; it is outside the map where that is padded."""
    outputs = (size + sum(pads) - dilation * (kernel - 1) - 1) // stride + 1
    return np.arange(max(outputs, 0)) * stride + np.arange(kernel)[:, None] * dilation - pads[0]


def _matrix(positions: Positions, size: int) -> F32:
    found = np.zeros((len(positions), size), np.float32)
    taps, outputs = np.nonzero((positions >= 0) & (positions < size))
    found[taps, positions[taps, outputs]] = 1.0
    return found
