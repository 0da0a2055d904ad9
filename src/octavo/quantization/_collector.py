"""Histograms of tensors by name, and the ranges that a method reads off them."""

from __future__ import annotations

import abc
import logging
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.calibration import narrow_ranges, narrow_ranges_note, read
from octavo.calibration.centred import Centred, centred, merge, threshold
from octavo.calibration.methods.spread import moments
from octavo.calibration.statistics import HistogramState
from octavo.core.qtypes import INT8, UINT8, QType
from octavo.core.scheme import Distribution, Entropy, Method, Percentile, Scheme
from octavo.core.stats import Range, State, Stats, merged
from octavo.quantization._errors import QuantizationWarning
from octavo.quantization._tensors_data import TensorData
from octavo.quantization._types import CalibrationMethod
from octavo.reporting.text import some

Array = npt.NDArray[Any]

_LOG = logging.getLogger("octavo.quantization")
_METHODS = {
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
    "distribution": CalibrationMethod.Distribution,
}
_POWERS = {"same": 1.0, "p3": 1.0 / 3.0}


def symmetric_range(low: Any, high: Any) -> tuple[Array, Array]:
    """Return the range from minus to plus the larger magnitude, channel by channel."""
    top = np.maximum(np.abs(low), np.abs(high))
    return -top, top


def finite(states: Mapping[str, State]) -> dict[str, State]:
    """The states that give a range; tensors that had an infinity are left out, and named in a warning."""
    without = [name for name, state in states.items() if state.non_finite]
    if without:
        _LOG.warning(
            "Infinite values in calibration, so without a range: %s; exclude the nodes around them.",
            some(without, 10),
        )
    return {name: state for name, state in states.items() if not state.non_finite}


class CalibrationDataCollector(metaclass=abc.ABCMeta):
    """Takes in values of tensors and gives a result for each."""

    @abc.abstractmethod
    def collect(self, name_to_arr: Mapping[str, Any]) -> None:
        """Take in values: ``{tensor: array, or list of arrays}``."""
        raise NotImplementedError

    @abc.abstractmethod
    def compute_collection_result(self) -> dict[str, Any]:
        """Return the result for each tensor."""
        raise NotImplementedError


class HistogramCollector(CalibrationDataCollector):
    """Counts values and reads ranges by a method: entropy, percentile or distribution."""

    def __init__(
        self,
        method: str,
        symmetric: bool,
        num_bins: int,
        num_quantized_bins: int,
        percentile: float,
        scenario: str,
    ) -> None:
        if method not in _METHODS:
            raise ValueError(f"There is no histogram method {method!r}; there are {', '.join(_METHODS)}.")
        if scenario not in _POWERS:
            raise ValueError(f"There is no scenario {scenario!r}; there are {', '.join(_POWERS)}.")
        if not 0 <= percentile <= 100:
            raise ValueError(f"A percentile lies between 0 and 100, and {percentile} does not.")
        self.method = method
        self.symmetric = symmetric
        self.num_bins = num_bins
        self.num_quantized_bins = num_quantized_bins
        self.percentile = percentile
        self.scenario = scenario
        self.qtype: QType | None = None  # what the values will be quantized to, where that is known
        self.within_extremes = False  # whether a symmetric range ends at the extremes
        self._states: dict[str, State] = {}

    @property
    def calibration_method(self) -> CalibrationMethod:
        """Return the method as an enum."""
        return _METHODS[self.method]

    def reading(self) -> Method:
        """Return the method as the core knows it; bins are counted from zero on there."""
        match self.calibration_method:
            case CalibrationMethod.Entropy:
                return Entropy(max(self.num_bins // 2, 1), max(self.num_quantized_bins // 2, 1))
            case CalibrationMethod.Percentile:
                return Percentile(self.percentile)
        return Distribution()

    def scheme(self) -> Scheme:
        """Return the method beside the type that a range is for; 8 bits unless the caller knows better."""
        kind = self.qtype or (INT8 if self.symmetric else UINT8)
        return Scheme(kind, symmetric=self.symmetric, method=self.reading())

    def clear(self) -> None:
        """Forget all values."""
        self._states = {}

    def add(self, stats: Stats) -> None:
        """Take in what a calibration run has seen."""
        for name, state in stats.items():
            self._states[name] = merged(self._states[name], state) if name in self._states else state

    def collect(self, name_to_arr: Mapping[str, Any]) -> None:
        """Take in values: ``{tensor: array, or list of arrays of any shapes}``."""
        for name, arrays in name_to_arr.items():
            state = self._states.setdefault(name, HistogramState())
            for array in _several(arrays):
                state.update(array)  # type: ignore[attr-defined]

    collect_value = collect_absolute_value = collect  # magnitudes are read off the counts of both sides

    def get_histogram_dict(self) -> dict[str, Centred]:
        """``(counts, edges, lowest, highest, threshold)`` of each tensor, centred on zero."""
        return {
            name: centred(state, self.num_bins)
            for name, state in self._states.items()
            if isinstance(state, HistogramState)
        }

    def merge_histogram(
        self, old_histogram: Centred, data_arr: Array, new_min: float, new_max: float, new_threshold: float
    ) -> Centred:
        """Return a histogram with more values counted in; the number of bins stays bounded."""
        return merge(old_histogram, np.asarray(data_arr), new_min, new_max, new_threshold)

    def compute_collection_result(self) -> dict[str, TensorData | tuple[Any, ...]]:
        """``(lowest, highest, counts, edges)`` of each tensor, or by distribution its :class:`TensorData`."""
        if not self._states:
            raise ValueError("No data is collected: no histogram was made. Call collect with values first.")
        states = finite(self._states)
        found = {name: read(state, self.scheme()) for name, state in states.items()}
        narrow = narrow_ranges(states, found)
        if narrow:
            warnings.warn(narrow_ranges_note(narrow), QuantizationWarning, stacklevel=2)
        return {name: self._result(state, found[name]) for name, state in states.items()}

    def compute_percentile(self) -> dict[str, TensorData | tuple[Any, ...]]:
        """Return the results by percentile."""
        return self._by("percentile")

    def compute_entropy(self) -> dict[str, TensorData | tuple[Any, ...]]:
        """Return the results by entropy."""
        return self._by("entropy")

    def compute_distribution(self) -> dict[str, TensorData | tuple[Any, ...]]:
        """Return the results by distribution."""
        return self._by("distribution")

    def _by(self, method: str) -> dict[str, TensorData | tuple[Any, ...]]:
        if method != self.method:
            raise ValueError(f"This collector was made for {self.method!r}; make one for {method!r}.")
        return self.compute_collection_result()

    def get_entropy_threshold(self, histogram: Centred, num_quantized_bins: int) -> tuple[float, float]:
        """Return the range of a histogram whose quantized form diverges least."""
        low, high, _ = threshold(histogram, num_quantized_bins)
        return low, high

    def _result(self, state: State, found: Range) -> TensorData | tuple[Any, ...]:
        if not isinstance(state, HistogramState):
            return np.float32(found.low), np.float32(found.high)
        hist, edges, *_ = centred(state, self.num_bins)
        if self.calibration_method is CalibrationMethod.Distribution:
            mean, std = moments(state, _POWERS[self.scenario])
            return TensorData(
                avg=np.float32(mean),
                std=np.float32(std),
                hist=hist,
                hist_edges=edges.astype(np.float32),
                lowest=np.float32(found.low),
                highest=np.float32(found.high),
            )
        return (*self._ends(found), hist, edges.astype(np.float32))

    def _ends(self, found: Range) -> tuple[np.float32, np.float32]:
        """Return the range in float32; where it is to be symmetric, from minus to plus the threshold."""
        if self.symmetric and not self.within_extremes:
            low, high = symmetric_range(found.low, found.high)
            return np.float32(low), np.float32(high)
        return np.float32(found.low), np.float32(found.high)


def _several(arrays: Any) -> Iterable[Array]:
    return arrays if isinstance(arrays, list | tuple) else [np.asarray(arrays)]
