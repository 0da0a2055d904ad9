"""Which places of its input each tap of a convolution's kernel reads, as matrices of zeros and ones.

Along one axis tap ``t`` reads the place ``h = o · stride + t · dilation - pad`` for the output ``o``, and no
place for two of them. What it reads, summed over all outputs, is therefore one product with ``R[t, h]``, and
for a map ``R_h · x · R_w`` is the sum for every tap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.algorithms.layers import Layer
from octavo.model import query

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Reach:
    """What the taps of a kernel read: ``R`` for each axis of the map, and how many outputs a map has."""

    axes: tuple[F32, ...]
    outputs: int

    @property
    def taps(self) -> int:
        """Of the kernel."""
        return math.prod(len(one) for one in self.axes)

    @property
    def shares(self) -> F64:
        """The share of the places of a map that each tap reads."""
        found = np.ones(())
        for one in self.axes:
            found = found[..., None] * one.mean(axis=1, dtype=np.float64)
        return found.reshape(-1)

    @property
    def places(self) -> int:
        """Of the input, in one map."""
        return math.prod(one.shape[1] for one in self.axes)


def reach_of(layer: Layer) -> Reach | None:
    """What a convolution reads; None where it has more than two axes, or its size or pads are not told."""
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
        _read(dims[i], layer.kernel[i], strides[i], dilations[i], (pads[i], pads[i + axes]))
        for i in range(axes)
    ]
    return Reach(
        tuple(_matrix(places, dim) for places, dim in zip(read, dims, strict=True)),
        math.prod(places.shape[1] for places in read),
    )


def _read(size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> Places:
    """``[tap, output]``: the place that is read, which lies outside of the map where it is padded."""
    outputs = (size + sum(pads) - dilation * (kernel - 1) - 1) // stride + 1
    return np.arange(max(outputs, 0)) * stride + np.arange(kernel)[:, None] * dilation - pads[0]


def _matrix(places: Places, size: int) -> F32:
    found = np.zeros((len(places), size), np.float32)
    taps, outputs = np.nonzero((places >= 0) & (places < size))
    found[taps, places[taps, outputs]] = 1.0
    return found
