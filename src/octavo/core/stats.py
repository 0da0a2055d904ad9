"""What calibration has seen: a state for each tensor. Stats are a monoid: merging is exact in any order.

Saved, they are a header, one record per tensor, and a digest of it all; little-endian, lengths first::

    b"OCTSTAT" version:u8  header  tensors:u32   then per tensor   name  kind  state   (each u32 + bytes)
    blake2b, 16 bytes

The header is JSON: the number of samples, and where the statistics come from (:class:`~.origin.Origin`).
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from octavo.core.origin import Origin
from octavo.errors import TableError


class Range(NamedTuple):
    """The interval that a tensor's quantized values have to cover, and its spread if a method gives one."""

    low: float
    high: float
    std: float | None = None


@runtime_checkable
class State(Protocol):
    """What was seen of one tensor."""

    @property
    def kind(self) -> str:
        """Return the name under which it is saved."""
        ...

    @property
    def low(self) -> float:
        """Return the smallest value."""
        ...

    @property
    def high(self) -> float:
        """Return the largest value."""
        ...

    @property
    def count(self) -> int:
        """Return the number of samples in which the tensor had any value."""
        ...

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values."""
        ...

    def to_bytes(self) -> bytes:
        """Return all of it; equal states give equal bytes."""
        ...


def merged(left: State, right: State) -> State:
    """Return one state for what both have seen."""
    if left.kind != right.kind:
        raise TableError(
            f"Statistics of kinds {left.kind!r} and {right.kind!r} can't be merged; collect both alike."
        )
    result: State = left.merge(right)  # type: ignore[attr-defined]
    return result


_MAGIC, _VERSION = b"OCTSTAT", 2
_DIGEST = 16  # bytes of the checksum at the end of a file
_DAMAGE = (struct.error, KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError,
           RecursionError, MemoryError)  # fmt: skip


class Stats(Mapping[str, State]):
    """Statistics by tensor name, the number of samples, and which model and data they come from."""

    def __init__(
        self, states: Mapping[str, State] | None = None, samples: int = 0, origin: Origin | None = None
    ) -> None:
        self._states = dict(states or {})
        self.samples = samples
        self.origin = origin

    def __getitem__(self, tensor: str) -> State:
        return self._states[tensor]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __repr__(self) -> str:
        return f"Stats({len(self)} tensors, {self.samples} samples)"

    def merge(self, other: Stats) -> Stats:
        """Return what both have seen; neither is changed.

        Where both say where they come from, it must be the same model and data, and no sample may be in both;
        the same statistics once more add nothing.
        """
        if self.origin is None or other.origin is None:
            origin = (self.origin if not other else None) or (other.origin if not self else None)
        elif self.origin == other.origin and self.to_bytes() == other.to_bytes():
            return self
        else:
            origin = self.origin.merge(other.origin)
        states = dict(self._states)
        for tensor, state in other.items():
            try:
                states[tensor] = merged(states[tensor], state) if tensor in states else state
            except TableError as error:
                raise TableError(f"Tensor {tensor!r}: {error}") from error
        return Stats(states, self.samples + other.samples, origin)

    def to_bytes(self) -> bytes:
        """Everything, in the order of the tensors' names: equal statistics give equal bytes."""
        origin = self.origin.to_dict() if self.origin is not None else None
        about = {"samples": self.samples, "origin": origin}
        header = json.dumps(about, sort_keys=True, separators=(",", ":")).encode()
        parts = [_MAGIC, bytes([_VERSION]), struct.pack("<I", len(header)), header]
        parts.append(struct.pack("<I", len(self)))
        for tensor in sorted(self._states):
            state = self._states[tensor]
            for content in (tensor.encode(), state.kind.encode(), state.to_bytes()):
                parts += [struct.pack("<I", len(content)), content]
        digest = hashlib.blake2b(digest_size=_DIGEST)
        for part in parts:
            digest.update(part)
        return b"".join([*parts, digest.digest()])

    @classmethod
    def from_bytes(cls, data: bytes, kinds: Mapping[str, Callable[[bytes], State]]) -> Stats:
        """Read what :meth:`to_bytes` gave; ``kinds`` reads the states."""
        _check(data)
        try:
            header, at = _field(data, len(_MAGIC) + 1)
            about = json.loads(header)
            origin = Origin.from_dict(about["origin"]) if about["origin"] is not None else None
            (count,) = struct.unpack_from("<I", data, at)
            at += 4
            states: dict[str, State] = {}
            for _ in range(count):
                name, at = _field(data, at)
                kind, at = _field(data, at)
                content, at = _field(data, at)
                state = states[name.decode()] = kinds[kind.decode()](content)
                if not state.count:
                    raise ValueError(f"nothing was seen of the tensor {name.decode()!r}")
            samples = int(about["samples"])
            if samples < 0:
                raise ValueError(f"{samples} samples")
            return cls(states, samples, origin)
        except _DAMAGE as error:
            raise TableError(f"The statistics are damaged ({error}); collect them again.") from error


def _check(data: bytes) -> None:
    """Refuse data that is not statistics, of another version, or damaged."""
    if data[: len(_MAGIC)] != _MAGIC or len(data) <= len(_MAGIC) + _DIGEST:
        raise TableError("These are not statistics of octavo; create them with 'octavo calibrate'.")
    if data[len(_MAGIC)] != _VERSION:
        raise TableError(
            f"These statistics have version {data[len(_MAGIC)]}, and this octavo reads version {_VERSION}; "
            "collect them again, or use the octavo that made them."
        )
    if hashlib.blake2b(memoryview(data)[:-_DIGEST], digest_size=_DIGEST).digest() != data[-_DIGEST:]:
        raise TableError("The statistics are damaged (their digest does not match); collect them again.")


def _field(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<I", data, at)
    at += 4
    if at + length > len(data):
        raise ValueError("a field runs past the end")
    return data[at : at + length], at + length
