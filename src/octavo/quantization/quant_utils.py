"""Helpers under their stock names: types, parameters, packing, names, model files, calibration tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from octavo.calibration.centred import smooth_distribution
from octavo.calibration.tables import FORMATS, stock_cache
from octavo.core import files
from octavo.core.qtypes import FLOAT8E4M3FN, QTYPES
from octavo.quantization._models import (
    add_infer_metadata,
    add_pre_process_metadata,
    get_opset_version,
    load_model_with_shape_infer,
    model_has_external_data,
    model_has_infer_metadata,
    model_has_pre_process_metadata,
    optimize_model,
    save_and_reload_model_with_shape_infer,
    update_opset_version,
)
from octavo.quantization._names import elsewhere
from octavo.quantization._numbers import (
    compute_data_quant_params,
    compute_scale_zp,
    compute_scale_zp_blocked,
    compute_scale_zp_float8,
    get_qmin_qmax_for_qType,
    get_qrange_for_qType,
    normalize_axis,
    pack_bytes_to_4bit,
    quantize_data,
    quantize_nparray,
    quantize_onnx_initializer,
    snap_zero_point_to_uint8,
    tensor_proto_to_array,
)
from octavo.quantization._tensors_data import TensorsData, as_cache
from octavo.quantization._types import (
    CalibrationMethod,
    QuantFormat,
    QuantizationMode,
    QuantizedValueType,
    QuantType,
)
from octavo.quantization._values import (
    DEQUANT_OP_NAME,
    DEQUANT_OUTPUT_SUFFIX,
    MODEL_SIZE_THRESHOLD,
    QUANT_INPUT_SUFFIX,
    QUANT_OP_NAME,
    TENSOR_NAME_QUANT_SUFFIX,
    BiasToQuantize,
    QuantizedInitializer,
    QuantizedValue,
    add_dequant_input_suffix,
    add_dequant_output_suffix,
    add_dequant_suffix,
    add_quant_input_suffix,
    add_quant_output_suffix,
    add_quant_suffix,
    attribute_to_kwarg,
    find_by_name,
    generate_identified_filename,
    get_elem_index,
    get_mul_node,
)

__all__ = [
    "DEQUANT_OP_NAME", "DEQUANT_OUTPUT_SUFFIX", "FLOAT8_DISTRIBUTIONS", "FLOAT8_TYPES",
    "MODEL_SIZE_THRESHOLD", "ONNX_INT_TYPE_RANGE", "ONNX_INT_TYPE_REDUCED_RANGE",
    "ONNX_INT_TYPE_SYMMETRIC_RANGE", "ONNX_TYPE_TO_NP_TYPE", "QUANT_INPUT_SUFFIX", "QUANT_OP_NAME",
    "TENSOR_NAME_QUANT_SUFFIX", "BiasToQuantize", "QuantFormat", "QuantType", "QuantizationMode",
    "QuantizedInitializer", "QuantizedValue", "QuantizedValueType", "add_dequant_input_suffix",
    "add_dequant_output_suffix", "add_dequant_suffix", "add_infer_metadata", "add_pre_process_metadata",
    "add_quant_input_suffix", "add_quant_output_suffix", "add_quant_suffix", "apply_plot",
    "attribute_to_kwarg", "compute_data_quant_params", "compute_scale_zp", "compute_scale_zp_blocked",
    "compute_scale_zp_float8", "find_by_name", "generate_identified_filename", "get_elem_index",
    "get_mul_node", "get_opset_version", "get_qmin_qmax_for_qType", "get_qrange_for_qType",
    "load_model_with_shape_infer", "model_has_external_data", "model_has_infer_metadata",
    "model_has_pre_process_metadata", "ms_domain", "normalize_axis", "onnx_domain", "optimize_model",
    "pack_bytes_to_4bit", "quantize_data", "quantize_nparray", "quantize_onnx_initializer",
    "save_and_reload_model_with_shape_infer", "smooth_distribution", "snap_zero_point_to_uint8",
    "tensor_proto_to_array", "type_to_name", "update_opset_version", "write_calibration_table",
]  # fmt: skip

ms_domain, onnx_domain = "com.microsoft", "ai.onnx"
type_to_name = {value: name for name, value in TensorProto.DataType.items()}
__producer__ = "onnx.quantize"  # for whoever compares; what is written keeps the producer of its model
FLOAT8_TYPES = (17, 18, 19, 20)  # ONNX's numbers of float8 types
FLOAT8_DISTRIBUTIONS: dict[int, npt.NDArray[Any]] = {}  # filled by stock as it goes; nothing is kept here
ONNX_TYPE_TO_NP_TYPE: dict[int, npt.DTypeLike] = {kind.onnx: kind.dtype for kind in QTYPES.values()}

_INTEGERS = [kind for kind in QTYPES.values() if kind != FLOAT8E4M3FN]
ONNX_INT_TYPE_RANGE = {kind.onnx: get_qmin_qmax_for_qType(kind.onnx) for kind in _INTEGERS}
ONNX_INT_TYPE_SYMMETRIC_RANGE = {
    kind.onnx: get_qmin_qmax_for_qType(kind.onnx, symmetric=True)
    for kind in _INTEGERS
    if kind.limits(symmetric=True) != kind.limits()
}
ONNX_INT_TYPE_REDUCED_RANGE = {
    kind.onnx: get_qmin_qmax_for_qType(kind.onnx, reduce_range=True) for kind in _INTEGERS
}


def write_calibration_table(
    calibration_cache: TensorsData | Mapping[str, Any], dir: str | Path = "."
) -> list[Path]:
    """Write ``calibration.json``, ``.flatbuffers`` and ``.cache``: the ranges, and the largest magnitudes."""
    data = (
        calibration_cache
        if isinstance(calibration_cache, TensorsData)
        else TensorsData(CalibrationMethod.MinMax, calibration_cache)
    )
    ranges = data.ranges()
    content = {
        Path(dir).absolute() / entry.file_name: (
            stock_cache.dump(as_cache(data, None)) if entry.name == "json" else entry.dump(ranges)
        )
        for entry in FORMATS.values()
    }
    with files.replacing(list(content)) as handles:
        for handle, part in zip(handles, content.values(), strict=True):
            handle.write(part)
    return list(content)


def apply_plot(hist: Any, hist_edges: Any) -> None:
    """Show a histogram; needs matplotlib."""
    try:
        import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ImportError("Plots need matplotlib; install it with: pip install matplotlib.") from None
    edges = np.asarray(hist_edges)
    plt.bar(edges[:-1], np.asarray(hist), width=np.diff(edges), align="edge", edgecolor="black")
    plt.xlabel("value")
    plt.ylabel("count")
    plt.show()


__getattr__ = elsewhere(__name__)
