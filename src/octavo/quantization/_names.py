"""Names that stock's modules have because they import them from each other, from ONNX or from the runtime.

Users import such names from wherever they found them: ``QuantizationMode`` from ``quantize``, or the
runtime's ``quantize_matmul_4bits`` from ``matmul_nbits_quantizer``. A module of this package that lacks
a name therefore looks for it in the others, and then in the packages that stock's modules import from.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

PACKAGE = __name__.rpartition(".")[0]
_HOMES = (
    "quant_utils", "calibrate", "onnx_model", "tensor_quant_overrides", "operators", "registry",
    "base_quantizer", "onnx_quantizer", "qdq_quantizer", "quantize", "shape_inference", "fusions",
    "neural_compressor",
)  # fmt: skip
_IMPORTED = (
    "onnx",
    "onnx.helper",
    "onnxruntime",
    "onnxruntime.capi._pybind_state",
    "onnx.reference",
    "ml_dtypes",
)
_TRANSFORMERS = ("extract_raw_data_from_model", "has_external_data")  # of onnxruntime.transformers.onnx_utils


def elsewhere(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module: it finds what the package's other modules export."""

    def find(name: str) -> Any:
        if name == "logger":
            return logging.getLogger(PACKAGE)
        if not name.startswith("_"):
            for home in _HOMES:
                found = importlib.import_module(f"{PACKAGE}.{home}")
                if name in found.__all__:
                    return getattr(found, name)
            more = ("onnxruntime.transformers.onnx_utils",) if name in _TRANSFORMERS else ()
            for home in (*_IMPORTED, *more):
                found = importlib.import_module(home)
                if callable(getattr(found, name, None)):
                    return getattr(found, name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find
