"""What the runs so far gave, tensor by tensor."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.calibration.augment import Augmented, Pack
from octavo.calibration.observers import (
    ChannelState,
    ExtremesState,
    GramState,
    HistogramState,
    LoudnessState,
    ManyState,
    MinMaxState,
    MomentsState,
    TotalState,
)
from octavo.calibration.observers.seen import Seen
from octavo.calibration.trust import OVERFLOWING
from octavo.core.stats import Need, State
from octavo.errors import DataError

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]


class Columns:
    """Extremes of many tensors at once, in arrays; memory grows with gaps between the samples alone."""

    def __init__(self, size: int) -> None:
        self._low = np.full(size, np.inf)
        self._high = np.full(size, -np.inf)
        self._since = np.full(size, -1, np.int64)  # where the run of samples with a value began
        self._runs: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        self._samples = 0
        self._shifts: list[tuple[int, int]] = []  # from which sample on its index is larger than its number

    def add(self, index: int, low: Array, high: Array) -> None:
        """Note the extremes of one sample; a tensor without a value has low > high."""
        np.minimum(self._low, low, out=self._low)
        np.maximum(self._high, high, out=self._high)
        number = self._samples
        self._samples += 1
        if not self._shifts or index - number != self._shifts[-1][1]:
            self._shifts.append((number, index - number))
        there = low <= high
        for column in np.flatnonzero(there != (self._since >= 0)):
            if there[column]:
                self._since[column] = number
            else:
                self._runs[column].append((int(self._since[column]), number))
                self._since[column] = -1

    def states(self) -> list[ExtremesState]:
        """A state for each tensor."""
        found = []
        for low, high, since, runs in zip(self._low, self._high, self._since, self._runs, strict=True):
            last = [(int(since), self._samples)] if since >= 0 else []
            seen = Seen(self._indices([*runs, *last]))
            found.append(ExtremesState(float(low) + 0.0, float(high) + 0.0, seen))
        return found

    def _indices(self, runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Runs of samples by their indices."""
        ends = [*(number for number, _ in self._shifts[1:]), self._samples]
        return [
            (max(start, begin) + shift, min(stop, end) + shift)
            for start, stop in runs
            for (begin, shift), end in zip(self._shifts, ends, strict=True)
            if max(start, begin) < min(stop, end)
        ]


class Notes:
    """Takes the outputs of the augmented model, sample by sample."""

    def __init__(self, asked: Augmented, needs: Mapping[str, Need]) -> None:
        together = [tensor for members in asked.together.values() for tensor, _ in members]
        self._tensors = list(dict.fromkeys([*(item.tensor for item in asked.numbers), *together]))
        self._place = {tensor: i for i, tensor in enumerate(self._tensors)}
        self._grouped = np.array([self._place[tensor] for tensor in together], np.intp)
        self._columns = Columns(len(self._tensors))
        self._watched = [_Watcher(tensor, needs[tensor]) for tensor in asked.values]
        self._each = {t: MinMaxState() for t in self._tensors if needs[t].samples and t not in asked.values}
        self.with_outputs(asked)

    def with_outputs(self, asked: Augmented) -> Notes:
        """The same for a session that returns other numbers about the same tensors."""
        self._asked = asked
        self._single = _Places([pack for pack in asked.packs if pack.images is None], self._place)
        kinds = dict.fromkeys(pack.images for pack in asked.packs if pack.images is not None)
        self._pooled = [_Places([p for p in asked.packs if p.images == kind], self._place) for kind in kinds]
        sampled = [item.tensor for item in asked.numbers if item.sampled] + asked.lowest
        self._sampled = np.array([self._place[tensor] for tensor in sampled], np.intp)
        return self

    def read(self, outputs: Outputs) -> Array:
        """``low, high, mass`` of each tensor in one sample."""
        row = np.zeros((3, len(self._tensors)))
        if self._single.names:
            found = np.concatenate([outputs[name].reshape(-1) for name in self._single.names])
            row[self._single.kinds, self._single.columns] = found
        for places in self._pooled:
            row[places.kinds, places.columns] = places.pooled(outputs)
        for tensor in self._asked.lowest:
            row[0, self._place[tensor]] = outputs[self._asked.values[tensor]].min(initial=np.inf)
        lows: list[Array] = []
        highs: list[Array] = []
        for name, members in self._asked.together.items():
            values = outputs[name].reshape(len(outputs[name]), -1)
            starts = list(itertools.accumulate((rows for _, rows in members[:-1]), initial=0))
            lows.append(np.minimum.reduceat(values.min(axis=1), starts))
            highs.append(np.maximum.reduceat(values.max(axis=1), starts))
        if lows:
            row[0, self._grouped], row[1, self._grouped] = np.concatenate(lows), np.concatenate(highs)
        return row

    def is_overflown(self, row: Array) -> bool:
        """Whether something may have overflowed, and NaN be anywhere."""
        there = row[0] <= row[1]
        return not np.all(np.abs(row[:2, there]) < OVERFLOWING)

    def unknown(self, row: Array) -> list[str]:
        """The tensors whose minimum the sample does not tell."""
        return [self._tensors[column] for column in self._sampled[row[0, self._sampled] != 0]]

    def add(self, outputs: Outputs, row: Array, index: int, at: int | None) -> None:
        """Note one sample; indices grow, and so do numbers ``at`` of samples that are looked at closely."""
        bad = np.isnan(row).any(axis=0)
        if bad.any():
            refuse_nan(self._tensors[int(np.argmax(bad))], index)
        self._columns.add(index, row[0], row[1])
        for tensor, each in self._each.items():
            low, high = row[:2, self._place[tensor]]
            if low <= high:
                each.add(index, float(low), float(high))
        for watcher in self._watched:
            if watcher.some and at is None:
                continue
            values = outputs[self._asked.values[watcher.tensor]]
            if watcher.tensor in self._place:
                low, high = row[:2, self._place[watcher.tensor]]
                watcher.look_at_some(values, index, float(low), float(high))
            else:
                watcher.look(values, index, at if watcher.some and at is not None else index)

    def states(self, order: Sequence[str]) -> dict[str, State]:
        """A state for each tensor that had any value."""
        plain = self._columns.states()
        found: dict[str, State] = dict(zip(self._tensors, plain, strict=True))
        found.update(self._each)
        found.update({watcher.tensor: watcher.state() for watcher in self._watched})
        return {tensor: found[tensor] for tensor in order if tensor in found and found[tensor].count}


_KINDS = {"low": 0, "high": 1, "mass": 2}


class _Places:
    """Where the numbers of some outputs of the same form belong."""

    def __init__(self, packs: Sequence[Pack], place: Mapping[str, int]) -> None:
        members = [member for pack in packs for member in pack.members]
        self.names = [pack.name for pack in packs]
        self.kinds = np.array([_KINDS[item.part.name] for item in members if item.part], np.intp)
        self.columns = np.array([place[item.tensor] for item in members], np.intp)
        widths = [item.images[1] for item in members if item.images is not None]
        self._starts = np.array(list(itertools.accumulate(widths[:-1], initial=0)), np.intp)
        self._least = np.array([item.sampled for item in members], bool)
        self._sign = np.array([-1.0 if item.negated else 1.0 for item in members])

    def pooled(self, outputs: Outputs) -> Array:
        """The number for each tensor out of one for each channel of each image."""
        values = np.concatenate([outputs[name] for name in self.names], axis=1)
        one = len(values) == 1
        most = np.maximum.reduceat(values[0] if one else values.max(axis=0, initial=-np.inf), self._starts)
        least = np.minimum.reduceat(values[0] if one else values.min(axis=0, initial=np.inf), self._starts)
        found: Array = np.where(self._least, least, most * self._sign)
        return found


class _Watcher:
    """Shows the values of one tensor to its observers."""

    def __init__(self, tensor: str, need: Need) -> None:
        self.tensor, self.some = tensor, need.some
        extremes = MinMaxState() if need.samples else ExtremesState()
        self._histogram = HistogramState(extremes, need.stride or 1, need.lattice or 1)
        self._first = self._histogram if need.histogram else LoudnessState() if need.loudness else extremes
        self._more: list[ChannelState | MomentsState | GramState | TotalState] = []
        if need.channels is not None:
            self._more.append(ChannelState(need.channels))
        if need.moments:
            self._more.append(MomentsState())
        if need.gram:
            self._more.append(GramState())
        if need.totals:
            self._more.append(TotalState())

    def look(self, values: Array, index: int, place: int) -> None:
        """Take in one sample, which has this place among those that are seen."""
        try:
            self._first.update(values, place)
            for state in self._more:
                state.update(values, place)
        except DataError as error:
            if np.isnan(values).any():
                refuse_nan(self.tensor, index)
            where = f"The tensor {self.tensor!r} can't be observed in sample {index}"
            raise DataError(f"{where}: {error}") from error

    def look_at_some(self, values: Array, index: int, low: float, high: float) -> None:
        """Take in some values of one sample, and the extremes of all."""
        if low <= high:
            self._histogram.take(values, index, low, high)

    def state(self) -> State:
        """All that was seen."""
        if not self._more:
            return self._first
        return ManyState(self._first, {state.kind: state for state in self._more})


def refuse_nan(tensor: str, index: int) -> None:
    """Raise for a tensor that holds NaN."""
    raise DataError(
        f"The tensor {tensor!r} has NaN among its values in sample {index} of the calibration data; look at "
        "that sample, and at the float model, which computes NaN from it too."
    )
