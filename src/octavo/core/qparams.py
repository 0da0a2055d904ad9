"""Scale and zero point: what quantization needs to know of a tensor, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from octavo.core.granularity import Granularity, PerTensor
from octavo.core.qtypes import FLOAT8_MAX, QType

if TYPE_CHECKING:
    from octavo.core.blocks import BlockMatrix


@dataclass(frozen=True, eq=False)
class QParams:
    """``real = scale * (quantized - zero_point)``; arrays have the shape that ONNX stores."""

    scale: npt.NDArray[Any]  # in the tensor's own float type
    zero_point: npt.NDArray[Any]  # in qtype.dtype
    qtype: QType
    granularity: Granularity = field(default_factory=PerTensor)
    matrix: BlockMatrix | None = None  # the integers that a weight algorithm chose; None: rounded to nearest

    def same_as(self, other: QParams) -> bool:
        """Whether both describe the same mapping, bit for bit."""
        return self.identity == other.identity

    @property
    def identity(self) -> tuple[QType, Granularity, np.dtype[Any], bytes, bytes, int]:
        """Equal where the mapping is the same, bit for bit; what dictionaries find parameters by."""
        scale = self.scale
        numbers = scale.tobytes(), self.zero_point.tobytes()
        return self.qtype, self.granularity, scale.dtype, *numbers, id(self.matrix)

    @property
    def real_range(self) -> tuple[float, float]:
        """Return the smallest and largest real value that can be represented (over all channels)."""
        info = self.qtype
        scale = self.scale.astype(np.float64)
        if info.is_float:
            top = float(np.max(scale, initial=0.0)) * FLOAT8_MAX
            return -top, top
        zero = self.zero_point.astype(np.float64)
        low, high = (info.qmin - zero) * scale, (info.qmax - zero) * scale
        return float(np.min(low, initial=0.0)), float(np.max(high, initial=0.0))

    def __str__(self) -> str:
        if isinstance(self.granularity, PerTensor):
            zero = int(self.zero_point.astype(np.int64).item())
            return f"{self.qtype} scale {float(self.scale.item()):.6g} zero point {zero}"
        if not self.scale.size:
            return f"{self.qtype}/{self.granularity} no scale"
        low, high = float(self.scale.min()), float(self.scale.max())
        return f"{self.qtype}/{self.granularity} scale {low:.4g}…{high:.4g}"
