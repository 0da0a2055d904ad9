"""The parameters of fake quantization, in whatever form it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core.granularity import Granularity, PerChannel, PerTensor
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT4, INT8, INT16, UINT4, UINT8, UINT16, QType

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class FakeQuant:
    """Nodes that round a value to what a quantized type can hold, and give it back as float."""

    source: ir.Value
    results: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]  # the first reads the source; each before those that read it
    params: QParams
    limits: tuple[int, int] | None = None  # the integers used, where they are fewer than the type has
    stored: bool = False  # the source holds the integers already

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal where two do the same to a value."""
        return (*self.params.identity, self.limits, self.stored)


def usable(scale: Array) -> bool:
    """Whether these can be scales: positive and finite."""
    return bool(scale.size) and bool(np.all(np.isfinite(scale)) and np.all(scale > 0))


def grain_of(scale: Array, axis: int | None) -> Granularity:
    """One scale for the tensor, or one for each index along an axis."""
    return PerTensor() if scale.size == 1 or axis is None else PerChannel(axis)


def parameters(scale: Array, zero: Array, qtype: QType, grain: Granularity) -> QParams:
    """Parameters in the shapes that ONNX stores."""
    scale, zero = np.asarray(scale, np.float32), np.asarray(zero)
    if isinstance(grain, PerTensor):
        return QParams(scale.reshape(()), zero.reshape(()).astype(qtype.dtype), qtype, grain)
    if isinstance(grain, PerChannel):
        scale = scale.reshape(-1)
        zero = np.broadcast_to(zero.reshape(-1), scale.shape)
    return QParams(scale, zero.astype(qtype.dtype), qtype, grain)


def typed(
    scale: Array, zero: Array, low: Array, high: Array, axis: int | None
) -> tuple[QParams, tuple[int, int] | None] | None:
    """Parameters in the smallest type that holds the integers from ``low`` to ``high``.

    Where no type does, or channels use different integers, all of them are moved to start at zero.
    """
    low, high, zero = (np.asarray(a, np.int64) for a in (low, high, zero))
    if not usable(np.asarray(scale)) or np.any(high <= low) or np.unique(high - low).size != 1:
        return None
    kind = _holding(low, high)
    if kind is None:
        zero, high, low = zero - low, high - low, np.zeros_like(low)
        kind = _holding(low, high)
    if kind is None or np.any(zero < kind.qmin) or np.any(zero > kind.qmax):
        return None
    limits = (int(low.reshape(-1)[0]), int(high.reshape(-1)[0]))
    params = parameters(np.asarray(scale), zero, kind, grain_of(np.asarray(scale), axis))
    return params, None if limits == (kind.qmin, kind.qmax) else limits


def _holding(low: Array, high: Array) -> QType | None:
    """Return the type of the fewest bits for so many integers, if it holds these very ones."""
    if np.unique(low).size != 1 or np.unique(high).size != 1:
        return None
    count = int((high - low).max()) + 1
    bits = next((b for b in (4, 8, 16) if count <= 1 << b), None)
    kinds = (kind for kind in (UINT4, INT4, UINT8, INT8, UINT16, INT16) if kind.bits == bits)
    return next((kind for kind in kinds if kind.qmin <= low.min() and high.max() <= kind.qmax), None)
