"""The names of ``onnxruntime.quantization``, translated to recipes, plans and observers.

Change one import: ``from octavo.quantization import quantize_static, QuantType``.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from octavo.core.lazy import uncollected

_HOMES = {
    "calibrate": (
        "CalibraterBase", "CalibrationDataReader", "CalibrationMethod", "MinMaxCalibrater", "TensorData",
        "TensorsData", "create_calibrator", "load_tensors_data", "save_tensors_data",
    ),
    "cuda_quantizer": ("CudaQuantizer",),
    "qat": ("quantize_qat",),
    "qdq_quantizer": ("QDQQuantizer",),
    "quant_utils": ("QuantFormat", "QuantType", "QuantizationMode", "write_calibration_table"),
    "quantize": (
        "DynamicQuantConfig", "StaticQuantConfig", "get_qdq_config", "quantize", "quantize_dynamic",
        "quantize_static",
    ),
    "shape_inference": ("quant_pre_process",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from octavo.quantization.calibrate import CalibraterBase as CalibraterBase
    from octavo.quantization.calibrate import CalibrationDataReader as CalibrationDataReader
    from octavo.quantization.calibrate import CalibrationMethod as CalibrationMethod
    from octavo.quantization.calibrate import MinMaxCalibrater as MinMaxCalibrater
    from octavo.quantization.calibrate import TensorData as TensorData
    from octavo.quantization.calibrate import TensorsData as TensorsData
    from octavo.quantization.calibrate import create_calibrator as create_calibrator
    from octavo.quantization.calibrate import load_tensors_data as load_tensors_data
    from octavo.quantization.calibrate import save_tensors_data as save_tensors_data
    from octavo.quantization.cuda_quantizer import CudaQuantizer as CudaQuantizer
    from octavo.quantization.qat import quantize_qat as quantize_qat
    from octavo.quantization.qdq_quantizer import QDQQuantizer as QDQQuantizer
    from octavo.quantization.quant_utils import QuantFormat as QuantFormat
    from octavo.quantization.quant_utils import QuantizationMode as QuantizationMode
    from octavo.quantization.quant_utils import QuantType as QuantType
    from octavo.quantization.quant_utils import write_calibration_table as write_calibration_table
    from octavo.quantization.quantize import DynamicQuantConfig as DynamicQuantConfig
    from octavo.quantization.quantize import StaticQuantConfig as StaticQuantConfig
    from octavo.quantization.quantize import get_qdq_config as get_qdq_config
    from octavo.quantization.quantize import quantize as quantize
    from octavo.quantization.quantize import quantize_dynamic as quantize_dynamic
    from octavo.quantization.quantize import quantize_static as quantize_static
    from octavo.quantization.shape_inference import quant_pre_process as quant_pre_process

__all__ = sorted(_HOME_OF)


class _Package(types.ModuleType):
    """The package, in which ``quantize`` is the function and not the module of that name, as in stock."""

    def __getattr__(self, name: str) -> Any:
        module = _HOME_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with uncollected():
            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "quantize" or not isinstance(value, types.ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return list(__all__)


sys.modules[__name__].__class__ = _Package
