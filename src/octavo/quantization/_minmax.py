"""The calibrator of extremes, averages of extremes and extremes of channels."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from octavo.calibration import read
from octavo.calibration.observe.output_models import REDUCTIONS, with_extremes
from octavo.calibration.statistics import ChannelState, SampleExtremesState
from octavo.core.qtypes import UINT8
from octavo.core.scheme import MinMax, Scheme
from octavo.core.stats import Stats
from octavo.model.files import io
from octavo.model.runtime.session import Session
from octavo.quantization import _select
from octavo.quantization._calibrater import CalibraterBase
from octavo.quantization._collector import finite, symmetric_range
from octavo.quantization._tensors_data import TensorData, TensorsData
from octavo.quantization._types import CalibrationMethod


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
        known = _select.value_infos(self.model)
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
