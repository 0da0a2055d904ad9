"""The calibrators that read ranges off the distribution of values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from octavo.calibration.observe.output_models import with_outputs
from octavo.core.scheme import Method
from octavo.quantization import _select
from octavo.quantization._calibrater import CalibraterBase
from octavo.quantization._collector import HistogramCollector
from octavo.quantization._tensors_data import TensorData, TensorsData


class HistogramCalibrater(CalibraterBase):
    """Ranges from the distribution of each tensor's values, of which only counts are kept."""

    def __init__(
        self,
        model_path: str | Path | ModelProto | ir.Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 2048,
        percentile: float = 99.999,
        scenario: str = "same",
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, symmetric, use_external_data_format
        )
        self.collector = HistogramCollector(
            method, symmetric, num_bins, num_quantized_bins, percentile, scenario
        )

    def _method(self) -> Method:
        return self.collector.reading()

    def _augmented(self) -> ModelProto:
        return with_outputs(self.model, self._tensors, _select.value_infos(self.model))

    def clear_collected_data(self) -> None:
        """Forget all data."""
        self.collector.clear()
        self._samples = 0

    def collect_data(self, data_reader: Any) -> None:
        """Run the model on all samples of a reader; further calls add to what was seen."""
        self.collector.add(self._collect(self._read(data_reader)))

    def compute_data(self) -> TensorsData:
        """Ranges and histograms of all tensors."""
        if not self._samples:
            raise ValueError("No data is collected; call collect_data with a reader first.")
        found = self.collector.compute_collection_result()
        constants = {} if self._collector is None else self._constants()
        data: dict[str, TensorData | tuple[Any, ...]] = {
            name: TensorData(lowest=np.float32(r.low), highest=np.float32(r.high))
            for name, r in constants.items()
        }
        data.update(found)
        return TensorsData(self.collector.calibration_method, data)


class EntropyCalibrater(HistogramCalibrater):
    """The threshold at which the quantized distribution diverges least."""

    def __init__(
        self,
        model_path: str | Path | ModelProto | ir.Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "entropy",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 128,
    ) -> None:
        model = (model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format)
        super().__init__(*model, method, symmetric, num_bins, num_quantized_bins)


class PercentileCalibrater(HistogramCalibrater):
    """The range that holds a given part of the values."""

    def __init__(
        self,
        model_path: str | Path | ModelProto | ir.Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 2048,
        percentile: float = 99.999,
    ) -> None:
        model = (model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format)
        super().__init__(*model, method, symmetric, num_bins, percentile=percentile)


class DistributionCalibrater(HistogramCalibrater):
    """Mean and standard deviation, for float8."""

    def __init__(
        self,
        model_path: str | Path | ModelProto | ir.Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "distribution",
        num_bins: int = 128,
        scenario: str = "same",
    ) -> None:
        model = (model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format)
        super().__init__(*model, method, num_bins=num_bins, scenario=scenario)
