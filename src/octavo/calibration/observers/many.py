"""Several observations of one tensor: its extremes or histogram first, then what else was asked for."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from octavo.calibration.observers.channels import ChannelState
from octavo.calibration.observers.extremes import ExtremesState
from octavo.calibration.observers.gram import GramState
from octavo.calibration.observers.histogram import HistogramState
from octavo.calibration.observers.loudness import LoudnessState
from octavo.calibration.observers.minmax import MinMaxState
from octavo.calibration.observers.moments import MomentsState
from octavo.calibration.observers.totals import TotalState
from octavo.core.stats import State, merged
from octavo.errors import TableError

_VERSION = 1
_FIRST: Mapping[str, Callable[[bytes], State]] = {
    state.kind: state.from_bytes for state in (ExtremesState, MinMaxState, HistogramState, LoudnessState)
}


class Part(Protocol):
    """A further observation."""

    kind: ClassVar[str]

    def to_bytes(self) -> bytes:
        """All of it."""
        ...


PARTS: Mapping[str, Callable[[bytes], Part]] = {
    state.kind: state.from_bytes for state in (ChannelState, MomentsState, GramState, TotalState)
}


class ManyState:
    """One state for each kind of observation; the first answers for extremes and counts."""

    kind: ClassVar[str] = "many"

    def __init__(self, first: State, parts: Mapping[str, Part]) -> None:
        self.first = first
        self.parts = dict(parts)

    @property
    def low(self) -> float:
        """The smallest value."""
        return self.first.low

    @property
    def high(self) -> float:
        """The largest value."""
        return self.first.high

    @property
    def count(self) -> int:
        """The number of samples in which the tensor had any value."""
        return self.first.count

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values."""
        return self.first.non_finite

    def merge(self, other: ManyState) -> ManyState:
        """What both have seen; neither is changed."""
        if self.parts.keys() != other.parts.keys():
            raise TableError("Statistics of different observations can't be merged; collect both alike.")
        parts: dict[str, Part] = {
            kind: part.merge(other.parts[kind])  # type: ignore[attr-defined]
            for kind, part in self.parts.items()
        }
        return ManyState(merged(self.first, other.first), parts)

    def to_bytes(self) -> bytes:
        """Version, their number, and for each the kind and content, lengths ahead."""
        parts: list[State | Part] = [self.first, *(self.parts[kind] for kind in sorted(self.parts))]
        result = [struct.pack("<BB", _VERSION, len(parts))]
        for part in parts:
            for content in (part.kind.encode(), part.to_bytes()):
                result += [struct.pack("<Q", len(content)), content]
        return b"".join(result)

    @classmethod
    def from_bytes(cls, data: bytes) -> ManyState:
        """What :meth:`to_bytes` gave."""
        fields: list[bytes] = []
        at = 2
        while at < len(data) and data[0] == _VERSION:
            if at + 8 > len(data):
                break
            (length,) = struct.unpack_from("<Q", data, at)
            fields.append(data[at + 8 : at + 8 + length])
            at += 8 + length
        try:
            kinds = [kind.decode() for kind in fields[::2]]
            if at != len(data) or not fields or len(fields) != 2 * data[1]:
                raise ValueError("a field is cut off")
            first = _FIRST[kinds[0]](fields[1])
            parts = {kind: PARTS[kind](fields[2 * i + 3]) for i, kind in enumerate(kinds[1:])}
        except (KeyError, ValueError) as error:
            raise TableError(f"The record of a tensor is damaged ({error}); collect it again.") from error
        return cls(first, parts)

    def __repr__(self) -> str:
        return f"ManyState({self.first!r}, {', '.join(map(repr, self.parts.values()))})"
