"""Names of the tensors and nodes that quantization adds to a model; users and tools read them."""

from __future__ import annotations

import numpy as np

from octavo.core.qparams import QParams

SCALE = "_scale"
ZERO_POINT = "_zero_point"
QUANTIZED = "_quantized"
QUANTIZE = "_QuantizeLinear"
DEQUANTIZE = "_DequantizeLinear"
OUTPUT = "_Output"
INPUT = "_Input"
CONVERTED = "_convert"
NODE = "_quant"
CAST = "_Cast"
RESTORED = "_Mul"
DIMS = "_dims"
JOINED = "_Reshape"


def zero_point(params: QParams) -> str | None:
    """Return the name of a zero point that many tensors share, by its value; None where channels differ."""
    values = params.zero_point.astype(np.int64).reshape(-1)
    if not len(values) or values.min() != values.max():
        return None
    count = f"_x{len(values)}" if params.zero_point.ndim else ""
    return f"{params.qtype}{ZERO_POINT}_{values[0]}{count}"
