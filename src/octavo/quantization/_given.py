"""Ranges that are given to a quantizer: what follows from them for single tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx

from octavo.core import affine
from octavo.core.scheme import Scheme
from octavo.ops import CLAMPS
from octavo.quantization._tensors_data import TensorData, TensorsData, as_range
from octavo.quantization._types import QuantType
from octavo.quantization._values import QuantizationParams
from octavo.quantization.onnx_model import ONNXModel


def activation_params(
    tensor_data: TensorData,
    own: Mapping[str, Any],
    default: QuantType,
    *,
    symmetric: bool,
    min_range: float | None,
    restricted: bool,
) -> QuantizationParams:
    """Scale and zero point of an activation; ``own`` are the overrides of this tensor."""
    qtype = own.get("quant_type", default).qtype
    if "scale" in own:
        return QuantizationParams(zero_point=own["zero_point"], scale=own["scale"], quant_type=qtype.onnx)
    scheme = Scheme(
        qtype,
        symmetric=own.get("symmetric", symmetric),
        reduce_range=own.get("reduce_range", False),
        min_range=min_range,
        restricted=restricted,
    )
    found = as_range(tensor_data)
    if qtype.is_float:
        params = affine.from_std(found.std if found.std is not None else 0.0, scheme)
    else:
        params = affine.from_range(own.get("rmin", found.low), own.get("rmax", found.high), scheme)
    return QuantizationParams(zero_point=params.zero_point, scale=params.scale, quant_type=qtype.onnx)


def clamped_ranges(
    model: ONNXModel, ranges: TensorsData, selected: Callable[[onnx.NodeProto], bool]
) -> TensorsData:
    """The ranges with what clamps and Softmax, where they are selected, know better than measuring does."""
    found: dict[str, Any] = dict(ranges.items())
    readers = model.input_name_to_nodes()
    for node in model.nodes():
        made = node.output[0] if node.output else ""
        if made not in found or not selected(node):
            continue
        if node.op_type == "Softmax":
            found[made] = TensorData(lowest=0.0, highest=1.0)
        elif node.op_type in CLAMPS and len(readers.get(node.input[0], ())) == 1 and node.input[0] in found:
            found[node.input[0]] = found[made]
    return TensorsData(ranges.calibration_method, found)
