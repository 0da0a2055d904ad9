"""Accumulators: what the runs so far gave, tensor by tensor."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.calibration.observe.augment import Augmented, Pack
from octavo.calibration.statistics import (
    ChannelState,
    CombinedState,
    ExtremesState,
    FurtherStatistic,
    GramState,
    HistogramState,
    MagnitudeState,
    MomentsState,
    SampleExtremesState,
    SumState,
)
from octavo.calibration.statistics.histograms import Waiting
from octavo.calibration.statistics.state_parts import SampleSet
from octavo.core.requests import EveryNth, Extremes, Histogram, Lattice, Request
from octavo.core.stats import State
from octavo.errors import DataError
from octavo.model.graph import query
from octavo.ops import Kind, names_of
from octavo.ops.patterns import CANNOT_MAKE_NAN

# ---- NaN analysis: which tensors can't hold NaN as long as nothing overflows
#
# Samples are finite. Most operators (``CANNOT_MAKE_NAN``) make no NaN from finite numbers, unless they
# overflow on the way, which the extremes around them show. Tensors behind any other operator, or behind a
# constant that is not finite, are checked for NaN.

MAY_OVERFLOW = 1e30  # magnitude of extremes beyond which a value near them may have overflowed
_READ_WEIGHTS = names_of(lambda rule: rule.is_linear or rule.kind is Kind.LOOKUP)


def without_nan(model: ir.Model) -> set[str]:
    """Return the tensors of the main graph that hold no NaN as long as nothing overflows."""
    found = {value.name or "" for value in model.graph.inputs}
    found |= {name for name, value in model.graph.initializers.items() if _is_finite(value)}
    found.add("")
    for node in model.graph:
        if node.op_type not in CANNOT_MAKE_NAN or node.domain not in ("", "ai.onnx"):
            continue
        if all(value is None or (value.name or "") in found for value in node.inputs):
            found.update(value.name or "" for value in node.outputs)
    return found


def _is_finite(value: ir.Value) -> bool:
    """Return whether a constant holds finite numbers; weights of layers are taken to, and not read."""
    tensor = value.const_value
    if tensor is None or not query.is_float(value):
        return True
    if all(use.node.op_type in _READ_WEIGHTS for use in value.uses()):
        return True
    return bool(np.all(np.isfinite(np.asarray(tensor.numpy(), np.float32))))


Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]


class ExtremesTable:
    """Extremes of many tensors at once, in arrays, and the samples in which each had a value.

    Nearly always the same tensors have a value in each sample, so those samples are kept once for all.
    """

    def __init__(self, size: int) -> None:
        self._low = np.full(size, np.inf)
        self._high = np.full(size, -np.inf)
        self._usual = np.zeros(0, bool)  # which tensors had a value in the first sample, …
        self._usual_samples = SampleSet()  # … and in which samples the same ones had
        self._other_samples: dict[int, SampleSet] = {}

    def add(self, index: int, low: Array, high: Array) -> None:
        """Take in the extremes of one sample; a tensor without a value has low > high."""
        np.minimum(self._low, low, out=self._low)
        np.maximum(self._high, high, out=self._high)
        has_value = low <= high
        if not self._usual.size:
            self._usual = has_value
        if np.array_equal(has_value, self._usual):
            self._usual_samples.add(index)
        else:
            for column in np.flatnonzero(has_value).tolist():
                self._other_samples.setdefault(column, SampleSet()).add(index)

    def states(self) -> list[ExtremesState]:
        """Return a state for each tensor."""
        found = []
        for column, (low, high) in enumerate(zip(self._low.tolist(), self._high.tolist(), strict=True)):
            samples = self._other_samples.get(column, SampleSet())
            if self._usual.size and self._usual[column]:
                samples = samples.merge(self._usual_samples)
            found.append(ExtremesState(low + 0.0, high + 0.0, samples))
        return found


class Accumulators:
    """Takes in the outputs of the augmented model, sample by sample."""

    def __init__(self, augmented: Augmented, requests: Mapping[str, Request]) -> None:
        grouped = [tensor for members in augmented.groups.values() for tensor, _ in members]
        self._tensors = list(dict.fromkeys([*(item.tensor for item in augmented.numbers), *grouped]))
        self._column = {tensor: i for i, tensor in enumerate(self._tensors)}
        self._grouped = np.array([self._column[tensor] for tensor in grouped], np.intp)
        self._table = ExtremesTable(len(self._tensors))
        self._of_values = [_ValueAccumulator(tensor, requests[tensor]) for tensor in augmented.values]
        self._of_samples = {
            tensor: SampleExtremesState()
            for tensor in self._tensors
            if tensor not in augmented.values and requests[tensor].extremes.each_sample
        }
        self.use_outputs(augmented)

    def use_outputs(self, augmented: Augmented) -> None:
        """Go on with a session that returns other numbers about the same tensors."""
        self._augmented = augmented
        self._single = _PackReader([pack for pack in augmented.packs if pack.images is None], self._column)
        kinds = dict.fromkeys(pack.images for pack in augmented.packs if pack.images is not None)
        self._pooled = [
            _PackReader([pack for pack in augmented.packs if pack.images == kind], self._column)
            for kind in kinds
        ]
        sampled = [item.tensor for item in augmented.numbers if item.is_sampled] + augmented.sampled
        self._sampled = np.array([self._column[tensor] for tensor in sampled], np.intp)

    def read(self, outputs: Outputs) -> Array:
        """Return ``low, high, l1`` of each tensor in one sample."""
        row = np.zeros((3, len(self._tensors)))
        if self._single.names:
            found = np.concatenate([outputs[name].reshape(-1) for name in self._single.names])
            row[self._single.kinds, self._single.columns] = found
        for reader in self._pooled:
            row[reader.kinds, reader.columns] = reader.pooled(outputs)
        for tensor in self._augmented.sampled:
            row[0, self._column[tensor]] = outputs[self._augmented.values[tensor]].min(initial=np.inf)
        lows: list[Array] = []
        highs: list[Array] = []
        for name, members in self._augmented.groups.items():
            values = outputs[name].reshape(len(outputs[name]), -1)
            starts = list(itertools.accumulate((rows for _, rows in members[:-1]), initial=0))
            lows.append(np.minimum.reduceat(values.min(axis=1), starts))
            highs.append(np.maximum.reduceat(values.max(axis=1), starts))
        if lows:
            row[0, self._grouped], row[1, self._grouped] = np.concatenate(lows), np.concatenate(highs)
        return row

    def may_have_overflowed(self, row: Array) -> bool:
        """Return whether a value may have overflowed, so that NaN may be anywhere."""
        has_value = row[0] <= row[1]
        return not np.all(np.abs(row[:2, has_value]) < MAY_OVERFLOW)

    def with_unknown_minimum(self, row: Array) -> list[str]:
        """Return the tensors whose sampled minimum is not zero, so that it tells nothing of the others."""
        return [self._tensors[column] for column in self._sampled[row[0, self._sampled] != 0]]

    def add(self, outputs: Outputs, row: Array, index: int, number: int | None) -> None:
        """Take in one sample; indices grow, and so do the numbers of those with all statistics."""
        bad = np.isnan(row).any(axis=0)
        if bad.any():
            raise _nan(self._tensors[int(np.argmax(bad))], index)
        self._table.add(index, row[0], row[1])
        for tensor, state in self._of_samples.items():
            low, high = row[:2, self._column[tensor]].tolist()
            if low <= high:
                state.add(index, low, high)
        lows, highs = row[0].tolist(), row[1].tolist()
        for one in self._of_values:
            if one.some_samples and number is None:
                continue
            values = outputs[self._augmented.values[one.tensor]]
            column = self._column.get(one.tensor)
            if column is not None:
                one.add_lattice(values, index, lows[column], highs[column])
            else:
                one.add(values, index, number if one.some_samples and number is not None else index)

    def states(self, order: Sequence[str]) -> dict[str, State]:
        """Return a state for each tensor that had any value."""
        found: dict[str, State] = dict(zip(self._tensors, self._table.states(), strict=True))
        found.update(self._of_samples)
        found.update({one.tensor: one.state() for one in self._of_values})
        return {tensor: found[tensor] for tensor in order if tensor in found and found[tensor].count}


_ROWS = {"low": 0, "high": 1, "l1": 2}


class _PackReader:
    """Reads the numbers of packs of the same form: which row and column of the table each belongs to."""

    def __init__(self, packs: Sequence[Pack], column: Mapping[str, int]) -> None:
        members = [member for pack in packs for member in pack.members]
        self.names = [pack.name for pack in packs]
        self.kinds = np.array([_ROWS[item.reduction.name] for item in members if item.reduction], np.intp)
        self.columns = np.array([column[item.tensor] for item in members], np.intp)
        widths = [item.images.channels for item in members if item.images is not None]
        self._starts = np.array(list(itertools.accumulate(widths[:-1], initial=0)), np.intp)
        self._is_minimum = np.array([item.is_sampled for item in members], bool)
        self._sign = np.array([-1.0 if item.is_negated else 1.0 for item in members])

    def pooled(self, outputs: Outputs) -> Array:
        """Return the number for each tensor out of one for each channel of each image."""
        values = np.concatenate([outputs[name] for name in self.names], axis=1)
        one = len(values) == 1
        most = np.maximum.reduceat(values[0] if one else values.max(axis=0, initial=-np.inf), self._starts)
        least = np.minimum.reduceat(values[0] if one else values.min(axis=0, initial=np.inf), self._starts)
        found: Array = np.where(self._is_minimum, least, most * self._sign)
        return found


class _ValueAccumulator:
    """Takes in the values of one tensor."""

    def __init__(self, tensor: str, request: Request) -> None:
        self.tensor, self.some_samples = tensor, request.some_samples
        self._first = _first_state(request)
        self._waiting = Waiting(self._first) if isinstance(self._first, HistogramState) else None
        self._parts: list[FurtherStatistic] = []
        if request.channels is not None:
            self._parts.append(ChannelState(request.channels))
        if request.moments:
            self._parts.append(MomentsState())
        if request.gram:
            self._parts.append(GramState())
        if request.sums:
            self._parts.append(SumState())
        self._all = (self._waiting or self._first, *self._parts)

    def add(self, values: Array, index: int, number: int) -> None:
        """Take in one sample, which has this number among those that are seen."""
        try:
            for state in self._all:
                state.update(values, number)
        except DataError as error:
            if np.isnan(values).any():
                raise _nan(self.tensor, index) from error
            where = f"The tensor {self.tensor!r} can't be observed in sample {index}"
            raise DataError(f"{where}: {error}") from error

    def add_lattice(self, values: Array, index: int, low: float, high: float) -> None:
        """Take in some values of one sample, and the extremes of all."""
        if low <= high and self._waiting is not None:
            self._waiting.take(values, index, low, high)

    def state(self) -> State:
        """Return the state of all samples."""
        if self._waiting is not None:
            self._waiting.count()
        if not self._parts:
            return self._first
        return CombinedState(self._first, {part.kind: part for part in self._parts})


def _first_state(
    request: Request,
) -> ExtremesState | SampleExtremesState | HistogramState | MagnitudeState:
    match request.kept:
        case Histogram(extremes, subset):
            stride = subset.step if isinstance(subset, EveryNth) else 1
            lattice = subset.step if isinstance(subset, Lattice) else 1
            return HistogramState(_extremes_state(extremes), stride, lattice)
        case Extremes():
            return _extremes_state(request.kept)
        case _:
            return MagnitudeState()


def _extremes_state(extremes: Extremes) -> ExtremesState | SampleExtremesState:
    return SampleExtremesState() if extremes.each_sample else ExtremesState()


def _nan(tensor: str, index: int) -> DataError:
    """Return the error for a tensor that holds NaN."""
    return DataError(
        f"The tensor {tensor!r} has NaN among its values in sample {index} of the calibration data; "
        "check that sample, and the float model, which computes NaN from it."
    )
