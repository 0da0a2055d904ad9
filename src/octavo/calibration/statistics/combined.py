"""Several statistics of one tensor: its extremes or histogram first, then the further ones."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy.typing as npt

from octavo.calibration.statistics.exact_sums import GramState, SumState
from octavo.calibration.statistics.extremes import ChannelState, ExtremesState, SampleExtremesState
from octavo.calibration.statistics.histograms import HistogramState
from octavo.calibration.statistics.magnitude import MagnitudeState
from octavo.calibration.statistics.moments import MomentsState
from octavo.calibration.statistics.state_parts import WithExtremes, damaged
from octavo.core.stats import State, merged
from octavo.errors import TableError

_VERSION = 1  # of the stored bytes


class FurtherStatistic(Protocol):
    """A further statistic, which says nothing of extremes and samples."""

    kind: ClassVar[str]

    def update(self, x: npt.ArrayLike, index: int = 0) -> None:
        """Take in the values that the tensor has in one sample."""
        ...

    def merge(self, other: Any) -> FurtherStatistic:
        """Return the state of the samples of both."""
        ...

    def to_bytes(self) -> bytes:
        """Return all of it; equal states give equal bytes."""
        ...


STATES: Mapping[str, Callable[[bytes], State]] = {
    state.kind: state.from_bytes
    for state in (ExtremesState, SampleExtremesState, HistogramState, MagnitudeState)
}
PARTS: Mapping[str, Callable[[bytes], FurtherStatistic]] = {
    state.kind: state.from_bytes for state in (ChannelState, MomentsState, GramState, SumState)
}


class CombinedState(WithExtremes):
    """A first state, which answers for extremes and samples, and one for each further statistic."""

    kind: ClassVar[str] = "many"

    def __init__(self, first: State, parts: Mapping[str, FurtherStatistic]) -> None:
        self.first = self.extremes = first
        self.parts = dict(parts)

    def merge(self, other: CombinedState) -> CombinedState:
        """Return the state of the samples of both; neither is changed."""
        if self.parts.keys() != other.parts.keys():
            raise TableError("Different statistics of a tensor can't be merged; collect both alike.")
        parts = {kind: part.merge(other.parts[kind]) for kind, part in self.parts.items()}
        return CombinedState(merged(self.first, other.first), parts)

    def to_bytes(self) -> bytes:
        """Return version, number of states, and for each its kind and content, lengths ahead."""
        parts: list[State | FurtherStatistic] = [
            self.first,
            *(self.parts[kind] for kind in sorted(self.parts)),
        ]
        result = [struct.pack("<BB", _VERSION, len(parts))]
        for part in parts:
            for content in (part.kind.encode(), part.to_bytes()):
                result += [struct.pack("<Q", len(content)), content]
        return b"".join(result)

    @classmethod
    def from_bytes(cls, data: bytes) -> CombinedState:
        """Return the state that :meth:`to_bytes` wrote."""
        fields: list[bytes] = []
        at = 2
        while at + 8 <= len(data) and data[0] == _VERSION:
            (length,) = struct.unpack_from("<Q", data, at)
            fields.append(data[at + 8 : at + 8 + length])
            at += 8 + length
        try:
            kinds = [kind.decode() for kind in fields[::2]]
            if at != len(data) or not fields or len(fields) != 2 * data[1]:
                raise ValueError("a field is cut off")
            first = STATES[kinds[0]](fields[1])
            parts = {kind: PARTS[kind](fields[2 * i + 3]) for i, kind in enumerate(kinds[1:])}
        except (KeyError, ValueError) as error:
            raise damaged("a tensor", error) from error
        return cls(first, parts)

    def __repr__(self) -> str:
        return f"CombinedState({self.first!r}, {', '.join(map(repr, self.parts.values()))})"


def first_of(state: State) -> State:
    """Return the state that answers for extremes: the first of a combined one, or the state itself."""
    return state.first if isinstance(state, CombinedState) else state
