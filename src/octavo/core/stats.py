"""What calibration has seen: a state for each tensor. Stats are a monoid: merging is exact in any order.

Saved, they are a header and one record per tensor, little-endian, lengths before contents::

    b"OCTSTAT" version:u8  samples:u64  tensors:u32   then per tensor   name  kind  state   (each u32 + bytes)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from octavo.errors import TableError


class Range(NamedTuple):
    """The interval that a tensor's quantized values have to cover, and its spread if a method gives one."""

    low: float
    high: float
    std: float | None = None


@dataclass(frozen=True)
class Need:
    """What calibration is asked to find out about one tensor."""

    histogram: bool = False


@runtime_checkable
class State(Protocol):
    """What was seen of one tensor."""

    @property
    def kind(self) -> str:
        """The name under which it is saved."""
        ...

    @property
    def low(self) -> float:
        """The smallest value."""
        ...

    @property
    def high(self) -> float:
        """The largest value."""
        ...

    @property
    def count(self) -> int:
        """The number of samples in which the tensor had any value."""
        ...

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values."""
        ...

    def to_bytes(self) -> bytes:
        """All of it; equal states give equal bytes."""
        ...


def merged(left: State, right: State) -> State:
    """One state for what both have seen."""
    if left.kind != right.kind:
        raise TableError(
            f"Statistics of kinds {left.kind!r} and {right.kind!r} can't be merged; collect both alike."
        )
    result: State = left.merge(right)  # type: ignore[attr-defined]
    return result


_MAGIC = b"OCTSTAT\x01"


class Stats(Mapping[str, State]):
    """States by tensor name, and how many samples they were made from."""

    def __init__(self, states: Mapping[str, State] | None = None, samples: int = 0) -> None:
        self._states = dict(states or {})
        self.samples = samples

    def __getitem__(self, tensor: str) -> State:
        return self._states[tensor]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __repr__(self) -> str:
        return f"Stats({len(self)} tensors, {self.samples} samples)"

    def merge(self, other: Stats) -> Stats:
        """What both have seen; neither is changed."""
        states = dict(self._states)
        for tensor, state in other.items():
            try:
                states[tensor] = merged(states[tensor], state) if tensor in states else state
            except TableError as error:
                raise TableError(f"Tensor {tensor!r}: {error}") from error
        return Stats(states, self.samples + other.samples)

    def to_bytes(self) -> bytes:
        """Everything, in the order of the tensors' names: equal statistics give equal bytes."""
        parts = [_MAGIC, struct.pack("<QI", self.samples, len(self))]
        for tensor in sorted(self._states):
            state = self._states[tensor]
            for content in (tensor.encode(), state.kind.encode(), state.to_bytes()):
                parts += [struct.pack("<I", len(content)), content]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes, kinds: Mapping[str, Callable[[bytes], State]]) -> Stats:
        """What :meth:`to_bytes` gave; ``kinds`` reads the states."""
        if data[: len(_MAGIC)] != _MAGIC:
            raise TableError("These are no statistics of version 1; collect them again.")
        try:
            at = len(_MAGIC)
            samples, count = struct.unpack_from("<QI", data, at)
            at += struct.calcsize("<QI")
            states: dict[str, State] = {}
            for _ in range(count):
                name, at = _field(data, at)
                kind, at = _field(data, at)
                content, at = _field(data, at)
                states[name.decode()] = kinds[kind.decode()](content)
        except (struct.error, KeyError, UnicodeDecodeError, ValueError) as error:
            raise TableError(f"The statistics are damaged ({error}); collect them again.") from error
        if at != len(data):
            raise TableError("The statistics are damaged (something follows their end); collect them again.")
        return cls(states, samples)


def _field(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<I", data, at)
    at += 4
    if at + length > len(data):
        raise ValueError("a field runs past the end")
    return data[at : at + length], at + length
