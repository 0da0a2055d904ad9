"""Calibrators under their stock names, on top of Octavo's observers: one pass, constant memory, any shapes.

As a module it calibrates a model on a folder of images or a file of tensors and writes the tables::

    python -m octavo.quantization.calibrate --model_path model.onnx --dataset_path images --calib_mode naive
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from octavo.calibration import read
from octavo.calibration.centred import entropy, rel_entr
from octavo.calibration.observe.output_models import REDUCTIONS, with_extremes, with_outputs
from octavo.calibration.statistics import ChannelState, SampleExtremesState
from octavo.core.qtypes import UINT8
from octavo.core.scheme import Method, MinMax, Scheme
from octavo.core.stats import Stats
from octavo.model.files import io
from octavo.model.runtime.session import Session
from octavo.quantization import translate
from octavo.quantization._calibrate_cli import load_quantization_params, main, run
from octavo.quantization._calibrater import CPU, CalibraterBase, value_infos
from octavo.quantization._collector import (
    CalibrationDataCollector,
    HistogramCollector,
    finite,
    symmetric_range,
)
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


class MinMaxCalibrater(CalibraterBase):
    """The smallest and the largest value; averaged over samples and smoothed between calls on request.

    ``max_intermediate_outputs`` is the number of samples in a step of the moving average; none is lost.
    """

    def __init__(
        self,
        model_path: str | Path | ModelProto | ir.Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        moving_average: bool = False,
        averaging_constant: float = 0.01,
        max_intermediate_outputs: int | None = None,
        per_channel: bool = False,
    ) -> None:
        model = (model_path, op_types_to_calibrate, augmented_model_path)
        super().__init__(*model, symmetric, use_external_data_format, per_channel)
        if moving_average and not 0 <= averaging_constant <= 1:
            raise ValueError(
                f"An averaging constant of {averaging_constant} is out of range; choose one between 0 and 1."
            )
        self.moving_average = moving_average
        self.averaging_constant = averaging_constant
        self.max_intermediate_outputs = max_intermediate_outputs
        self.clear_collected_data()

    def clear_collected_data(self) -> None:
        """Forget all data."""
        self._stats = Stats()
        self._steps: dict[str, SampleExtremesState] = {}
        self._step = 0
        self._channels: dict[str, ChannelState] = {}

    def _method(self) -> MinMax:
        return MinMax(average=self.moving_average)

    def _augmented(self) -> ModelProto:
        known = value_infos(self.model)
        return with_extremes(self.model, self._tensors, known, per_channel=self.per_channel)

    def collect_data(self, data_reader: Any) -> None:
        """Run the model on all samples of a reader; further calls add to what was seen."""
        samples = self._read(data_reader)
        if self.per_channel:
            self._collect_channels(samples)
        elif not self.moving_average:
            self._stats = self._stats.merge(self._collect(samples))
        else:
            for part in _parts(samples, self.max_intermediate_outputs):
                self._add_step(self._collect(part))

    def _add_step(self, stats: Stats) -> None:
        """One step of the moving average: the mean over the samples of a part."""
        for name, state in stats.items():
            low, high, _ = read(state, Scheme(UINT8, method=MinMax(average=True)))
            self._steps.setdefault(name, SampleExtremesState()).add(self._step, low, high)
        self._step += 1

    def _collect_channels(self, samples: Iterable[dict[str, Any]]) -> None:
        model = io.load(self.get_augment_model())
        session = Session.open(model, providers=self.execution_providers, optimize=False)
        names = list(self._tensors)
        wanted = [f"{name}_{part}" for name in names for part in REDUCTIONS]
        for sample in samples:
            values = session.run(sample, wanted)
            for name in names:
                ends = (values[f"{name}_{part}"].astype(np.float64) for part in REDUCTIONS)
                seen = self._channels.get(name, ChannelState(0))
                self._channels[name] = seen.merge(ChannelState(0, *ends))

    def merge_range(self, old_range: TensorsData | None, new_range: TensorsData) -> TensorsData:
        """One range for each tensor out of two, smoothed where a moving average is requested."""
        if not old_range:
            return new_range
        data: dict[str, TensorData | tuple[Any, ...]] = dict(old_range.items())
        method = MinMax(momentum=self.averaging_constant) if self.moving_average else MinMax()
        for name, entry in new_range.items():
            if name in old_range:
                pairs = (old_range[name].range_value, entry.range_value)
                data[name] = _merged(pairs, method, self._dtype(name))
            else:
                data[name] = entry
        return TensorsData(CalibrationMethod.MinMax, data)

    def compute_data(self) -> TensorsData:
        """Lowest and highest value of each tensor, as arrays: of one element, or one for each channel."""
        if not self._samples:
            raise ValueError("No data is collected; call collect_data with a reader first.")
        if self.per_channel:
            arrays = {name: (state.low, state.high) for name, state in self._channels.items()}
        else:
            method = MinMax(momentum=self.averaging_constant) if self.moving_average else MinMax()
            states = finite(self._steps if self.moving_average else self._stats)
            found = {name: read(state, Scheme(UINT8, method=method)) for name, state in states.items()}
            arrays = {
                n: (np.array([r.low]), np.array([r.high])) for n, r in (self._constants() | found).items()
            }
        return TensorsData(
            CalibrationMethod.MinMax, {name: self._entry(name, *ends) for name, ends in arrays.items()}
        )

    def _entry(self, name: str, low: Any, high: Any) -> TensorData:
        if self.symmetric:
            low, high = symmetric_range(low, high)
        dtype = self._dtype(name)
        return TensorData(lowest=low.astype(dtype), highest=high.astype(dtype))


def _parts(samples: Iterator[dict[str, Any]], size: int | None) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the samples in parts of a size."""
    for first in samples:
        yield itertools.chain([first], itertools.islice(samples, None if size is None else max(size - 1, 0)))


def _merged(pairs: Iterable[tuple[Any, Any]], method: MinMax, dtype: Any) -> TensorData:
    """Two ranges as one by a method, channel by channel."""
    (old_low, old_high), (new_low, new_high) = ([np.atleast_1d(end) for end in pair] for pair in pairs)
    found = [
        read(SampleExtremesState.of([0, 1], lows, highs), Scheme(UINT8, method=method))
        for lows, highs in zip(
            zip(old_low, new_low, strict=True), zip(old_high, new_high, strict=True), strict=True
        )
    ]
    low, high = np.array([r.low for r in found], dtype), np.array([r.high for r in found], dtype)
    return TensorData(lowest=low, highest=high)


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
        return with_outputs(self.model, self._tensors, value_infos(self.model))

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
