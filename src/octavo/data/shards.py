"""Samples divided into shards: windows on one pass in this process, or numbers that are sent to others.

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

from octavo.core.origin import Span, missing
from octavo.data.feeds import Feeds, copied
from octavo.data.fingerprints import FingerprintedSamples, mark
from octavo.data.readers.functions import FunctionSource
from octavo.data.readers.python_objects import OneWay, Repeatable
from octavo.data.source import innermost

Sample: TypeAlias = dict[str, npt.NDArray[Any]]

_MAX_SAMPLES = 32  # of a shard, with a few workers
_MAX_SAMPLES_OF_MANY = 128  # of a shard with many workers, so that whoever merges has less to do
_SAMPLES_UNCOUNTED = 8  # of a shard where the number of samples is not known
_SHARDS_A_WORKER = 4  # so that no worker waits long for the last
_MAX_SENT = 128 << 20  # bytes; data that takes more to send is read here


@dataclass(frozen=True)
class Portion:
    """Samples in memory, or read as they are taken; their marks come with them."""

    first: int
    samples: Iterable[Sample]
    marks: list[int] = field(default_factory=list)


Shard: TypeAlias = Span | Portion


class Shards:
    """The samples of the data from ``first`` up to ``stop``, without those that are ``done``, as shards."""

    def __init__(
        self,
        samples: FingerprintedSamples,
        first: int,
        stop: int | None,
        done: Sequence[Span],
        workers: int,
        progress: Callable[[], None] | None = None,
    ) -> None:
        """``progress`` is called whenever the work in this process takes one more sample."""
        self._samples, self._progress = samples, progress
        self._end = stop
        self._gaps = missing(first, stop, done)
        left = sum(end - begin for begin, end in self._gaps if end is not None)
        most = max(_MAX_SAMPLES, min(_MAX_SAMPLES_OF_MANY, workers))
        even = max(1, min(most, -(-left // (workers * _SHARDS_A_WORKER))))
        self._size = _SAMPLES_UNCOUNTED if stop is None else even
        self._pass: Iterator[tuple[Sample, bytes]] = ((one, samples.digests[-1]) for one in samples)
        self._at = 0  # the index of the next sample of the pass
        self._drawn = 0

    def __len__(self) -> int:
        if self._end is None:
            raise TypeError("the number of samples is known only after iterating over them")
        return sum(1 for _ in self._spans()) - self._drawn

    def _spans(self) -> Iterator[Span]:
        """Give all shards as spans; without end where the number of samples is not known."""
        for first, stop in self._gaps:
            for at in itertools.count(first, self._size) if stop is None else range(first, stop, self._size):
                yield at, at + self._size if stop is None else min(at + self._size, stop)

    def __iter__(self) -> Iterator[Portion]:
        for first, stop in itertools.islice(self._spans(), self._drawn, None):
            marks: list[int] = []
            window = self._window(first, stop, marks)
            sample = next(window, None)
            if sample is None:
                return
            self._drawn += 1
            yield Portion(first, itertools.chain([sample], window), marks)

    def fewer_than(self, many: int) -> bool:
        """Return whether the whole data has fewer samples; where it can't tell, that many are read ahead."""
        if self._samples.length is not None:
            return self._samples.length < many
        ahead = [(copied(sample), digest) for sample, digest in itertools.islice(self._pass, many)]
        self._pass = itertools.chain(ahead, self._pass)
        return len(ahead) < many

    def elsewhere(self) -> Iterable[Shard]:
        """Return the shards that are left, for other processes."""
        self._progress = None
        if self._end is not None and can_be_sent(self._samples):
            self._samples.peek()
            return list(itertools.islice(self._spans(), self._drawn, None))
        return _ReadHere(self)

    def _window(self, first: int, stop: int, marks: list[int]) -> Iterator[Sample]:
        """Give the samples of a span; those of the pass before it are skipped."""
        while self._at < stop and (found := next(self._pass, None)) is not None:
            sample, digest = found
            self._at += 1
            if self._at > first:
                marks.append(mark(self._at - 1, digest))
                yield sample
                if self._progress is not None:
                    self._progress()


@dataclass(frozen=True)
class _ReadHere:
    """Shards whose samples this process reads."""

    shards: Shards

    def __len__(self) -> int:
        return len(self.shards)

    def __iter__(self) -> Iterator[Portion]:
        for portion in self.shards:
            yield Portion(portion.first, [copied(one) for one in portion.samples], portion.marks)


def can_be_sent(feeds: Feeds) -> bool:
    """Return whether another process can open any part of the data itself, with little to be sent."""
    if isinstance(innermost(feeds.source), FunctionSource | OneWay | Repeatable):
        return False
    try:
        content = _SentBytes()
        pickle.dump(feeds, content, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError, _TooLarge):
        return False
    return not content.of_script


class _TooLarge(Exception):  # noqa: N818 - a signal
    """Raised where data is too large to be held."""


class _SentBytes(io.RawIOBase):
    """Takes what is pickled, and finds out whether it is small and nothing of the caller's own script."""

    def __init__(self) -> None:
        self._size = 0
        self.of_script = False

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._size += size
        if self._size > _MAX_SENT:
            raise _TooLarge
        self.of_script |= size < 1 << 20 and b"__main__" in bytes(data)
        return size
