"""The samples of calibration data cut into shards: passed on one by one here, or told by number elsewhere.

In this process a shard is a window on the one pass over the data. For other processes it is a span of
indices where they can open the data themselves, and else a list of samples that this process has read.
"""

from __future__ import annotations

import io
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy.typing as npt

from octavo.calibration.data import Feeds, copied
from octavo.calibration.readers.calls import Call
from octavo.calibration.readers.objects import OneWay, Repeatable
from octavo.calibration.watched import Watched, mark
from octavo.core.origin import Span, missing

Sample: TypeAlias = dict[str, npt.NDArray[Any]]

MOST, MOST_OF_MANY = 32, 128  # samples of a shard; with many workers the one who merges has less to do
_UNKNOWN = 8  # samples of a shard where nobody knows how many there are
_EACH = 4  # shards for each worker, so that none waits long for the last
_LIGHT = 128 << 20  # bytes; data that takes more to send is read here


@dataclass(frozen=True)
class Portion:
    """Samples that are there, or come as they are asked for; marks come with them."""

    first: int
    samples: Iterable[Sample]
    marks: list[int] = field(default_factory=list)


Shard: TypeAlias = Span | Portion


class Shards:
    """The samples of some spans of the data, as shards."""

    def __init__(
        self,
        feeds: Watched,
        first: int,
        stop: int | None,
        done: Sequence[Span],
        workers: int,
        tell: Callable[[], None] | None = None,
    ) -> None:
        """``tell`` is called whenever the work here, in this process, asks for one more sample."""
        self._feeds, self._tell = feeds, tell
        self._end = stop
        self._gaps = missing(first, stop, done)
        left = sum(end - begin for begin, end in self._gaps if end is not None)
        most = max(MOST, min(MOST_OF_MANY, workers))
        self._size = _UNKNOWN if stop is None else max(1, min(most, -(-left // (workers * _EACH))))
        self._pass = self._samples()
        self._at = 0  # the index of the next sample of the pass
        self._drawn = 0

    def __len__(self) -> int:
        if self._end is None:
            raise TypeError("the number of samples is known only after going through them")
        return sum(1 for _ in self._spans()) - self._drawn

    def _spans(self) -> Iterator[Span]:
        """All shards as spans; without end where nobody knows it."""
        for first, stop in self._gaps:
            for at in itertools.count(first, self._size) if stop is None else range(first, stop, self._size):
                yield at, at + self._size if stop is None else min(at + self._size, stop)

    def __iter__(self) -> Iterator[Shard]:
        for first, stop in itertools.islice(self._spans(), self._drawn, None):
            marks: list[int] = []
            window = self._window(first, stop, marks)
            sample = next(window, None)
            if sample is None:
                return
            self._drawn += 1
            yield Portion(first, itertools.chain([sample], window), marks)

    def fewer_than(self, many: int) -> bool:
        """Whether the data, all of it, has fewer samples; where nobody knows, that many are read ahead."""
        if self._feeds.length is not None:
            return self._feeds.length < many
        ahead = [(copied(sample), digest) for sample, digest in itertools.islice(self._pass, many)]
        self._pass = itertools.chain(ahead, self._pass)
        return len(ahead) < many

    def elsewhere(self) -> Iterable[Shard]:
        """The shards that are left, for other processes."""
        self._tell = None
        if self._end is not None and can_travel(self._feeds):
            self._feeds.peek()
            return list(itertools.islice(self._spans(), self._drawn, None))
        return _Read(self)

    def _samples(self) -> Iterator[tuple[Sample, bytes]]:
        """The one pass: each sample with its digest."""
        for sample in self._feeds:
            yield sample, self._feeds.digests[-1]

    def _window(self, first: int, stop: int, marks: list[int]) -> Iterator[Sample]:
        """The samples of a span; those of the pass before it are left out."""
        while self._at < stop and (found := next(self._pass, None)) is not None:
            sample, digest = found
            self._at += 1
            if self._at > first:
                marks.append(mark(self._at - 1, digest))
                yield sample
                if self._tell is not None:
                    self._tell()


@dataclass(frozen=True)
class _Read:
    """Shards whose samples this process reads."""

    shards: Shards

    def __len__(self) -> int:
        return len(self.shards)

    def __iter__(self) -> Iterator[Portion]:
        for portion in self.shards:
            if isinstance(portion, Portion):
                yield Portion(portion.first, [copied(one) for one in portion.samples], portion.marks)


def can_travel(feeds: Feeds) -> bool:
    """Whether another process can open the data itself: any part of it at once, with little to be sent."""
    source: Any = feeds.source
    while source is not None:
        if isinstance(source, Call | OneWay | Repeatable):
            return False
        source = getattr(source, "inner", None)
    try:
        content = _Light()
        pickle.dump(feeds, content, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError, _TooMuch):
        return False
    return not content.of_script


class _TooMuch(Exception):  # noqa: N818 - a signal
    """The data is large."""


class _Light(io.RawIOBase):
    """Takes what is pickled, and looks whether it is small and nothing of the caller's own script."""

    def __init__(self) -> None:
        self._size = 0
        self.of_script = False

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._size += size
        if self._size > _LIGHT:
            raise _TooMuch
        self.of_script |= size < 1 << 20 and b"__main__" in bytes(data)
        return size
