"""Calibrators under their stock names, on top of Octavo's observers: one pass, constant memory, any shapes.

As a module it calibrates a model on a folder of images or a file of tensors and writes the tables::

    python -m octavo.quantization.calibrate --model_path model.onnx --dataset_path images --calib_mode naive
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.calibration.centred import entropy, rel_entr
from octavo.quantization import translate
from octavo.quantization._calibrate_cli import load_quantization_params, main, run
from octavo.quantization._calibrater import CPU, CalibraterBase
from octavo.quantization._collector import CalibrationDataCollector, HistogramCollector
from octavo.quantization._histograms import (
    DistributionCalibrater,
    EntropyCalibrater,
    HistogramCalibrater,
    PercentileCalibrater,
)
from octavo.quantization._minmax import MinMaxCalibrater
from octavo.quantization._names import elsewhere
from octavo.quantization._readers import CalibrationDataReader
from octavo.quantization._tensors_data import (
    CalibrationCacheEncoder,
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
)
from octavo.quantization._types import CalibrationMethod

__all__ = [
    "CPU", "CalibraterBase", "CalibrationCacheEncoder", "CalibrationDataCollector",
    "CalibrationDataReader", "CalibrationMethod", "DistributionCalibrater", "EntropyCalibrater",
    "HistogramCalibrater", "HistogramCollector", "MinMaxCalibrater", "PercentileCalibrater",
    "TensorData", "TensorsData", "create_calibrator", "entropy", "load_quantization_params",
    "load_tensors_data", "main", "rel_entr", "save_tensors_data",
]  # fmt: skip

_OPTIONS: dict[CalibrationMethod, tuple[type[CalibraterBase], dict[str, Any]]] = {
    CalibrationMethod.MinMax: (
        MinMaxCalibrater,
        {
            "symmetric": False,
            "moving_average": False,
            "averaging_constant": 0.01,
            "max_intermediate_outputs": None,
            "per_channel": False,
        },
    ),
    CalibrationMethod.Entropy: (
        EntropyCalibrater,
        {"symmetric": False, "num_bins": 128, "num_quantized_bins": 128},
    ),
    CalibrationMethod.Percentile: (
        PercentileCalibrater,
        {"symmetric": True, "num_bins": 2048, "percentile": 99.999},
    ),
    CalibrationMethod.Distribution: (DistributionCalibrater, {"num_bins": 2048, "scenario": "same"}),
}
_KNOWN = frozenset(key for _, options in _OPTIONS.values() for key in options)


def create_calibrator(
    model: str | Path,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: str | Path = "augmented_model.onnx",
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,
    providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> CalibraterBase:
    """Return a calibrator that is ready for ``collect_data``.

    Options of other methods are left aside; an option that no method has gets a warning.
    """
    translate.warn_of_unknown(extra_options, _KNOWN, stacklevel=2)
    calibrator = calibrator_of(
        CalibrationMethod.of(calibrate_method),
        extra_options or {},
        model,
        op_types_to_calibrate,
        augmented_model_path=augmented_model_path,
        use_external_data_format=use_external_data_format,
    )
    calibrator.augment_graph()
    calibrator.set_execution_providers(providers or CPU)
    return calibrator


def calibrator_of(
    method: CalibrationMethod,
    options: Mapping[str, Any],
    model: Any,
    op_types: Sequence[str] | None = None,
    **more: Any,
) -> CalibraterBase:
    """Return the calibrator of a method, with those of the options that it has.

    Percentiles cut off the largest magnitudes; unless ``symmetric`` is given, ranges end at the extremes.
    """
    kind, defaults = _OPTIONS[method]
    chosen = {key: options.get(key, default) for key, default in defaults.items()}
    calibrator = kind(model, op_types, **{**more, **chosen})
    if isinstance(calibrator, HistogramCalibrater):
        calibrator.collector.within_extremes = options.get("symmetric") is None
    return calibrator


__getattr__ = elsewhere(__name__)


if __name__ == "__main__":
    sys.exit(run())
