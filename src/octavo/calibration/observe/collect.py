"""One pass over the data: all statistics requests are served by the same runs of the model."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import onnx_ir as ir

from octavo.calibration.observe.observing_session import Feed, ObservingSession
from octavo.calibration.observe.run_queue import RunQueue
from octavo.calibration.observe.sampling import are_all_some, number_among_some, strided
from octavo.core.cpu import cores
from octavo.core.requests import Request
from octavo.core.stats import Stats
from octavo.data.feeds import Data, Feeds, copied
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.runtime.samples import specs_of
from octavo.model.runtime.session import InputSpec

Progress: TypeAlias = Callable[[int, int | None], None]

_NODES_FOR_A_SAMPLE = 100  # in a graph with more nodes for each sample, optimizing takes longer than it saves
_MAX_AHEAD = 8  # samples that are read ahead to find out whether there are few
_MAX_IN_TWO_SESSIONS = 1 << 28  # bytes of weights of a model that is held in two sessions


def collect(
    model: ir.Model,
    requests: Mapping[str, Request],
    data: Data | Feeds,
    *,
    limit: int | None = None,
    providers: Sequence[str] | None = None,
    threads: int | None = None,
    custom_ops: Sequence[str | Path] = (),
    progress: Progress | None = None,
    first: int = 0,
    stride: int | None = None,
) -> Stats:
    """Run the model on the data and return the requested statistics of its tensors.

    The model is in its normal form (:func:`octavo.model.graph.normalize.normalize`) and stays as it is.
    ``first`` is the index of the first sample, for a caller who hands out the data in portions. With a
    ``stride`` of N histograms count every N-th value; extremes stay exact. A tensor that never had a value is
    not in the result. NaN raises :class:`~octavo.errors.DataError`; an infinity is noted in the state.
    """
    source = data if isinstance(data, Feeds) else Feeds(data, specs_of(model), limit=limit)
    total = source.length if limit is None or source.length is None else min(limit, source.length)
    feeds = itertools.islice(source, limit)
    many = few_samples_below(model)
    ahead = [copied(feed) for feed in itertools.islice(feeds, many)] if total is None else []
    few = len(ahead) < many if total is None else total < many
    options = {"providers": providers, "threads": threads, "custom_ops": custom_ops}
    with Collector(model, strided(requests, stride), total=total, few_samples=few, **options) as collector:
        if not collector:
            return Stats()
        return collector.collect(
            itertools.chain(ahead, feeds),
            first,
            None if progress is None else lambda done: progress(done, total),
        )


def few_samples_below(model: ir.Model) -> int:
    """Return the number of samples below which opening the session takes most of the time."""
    return min(len(model.graph) // _NODES_FOR_A_SAMPLE, _MAX_AHEAD)


class Collector:
    """A model in a session that observes its tensors: opened once, used for any number of portions of data.

    It is false where none of the tensors can be observed. ``total`` is the number of samples that there are,
    where it is known; requests for some of the samples (:attr:`Request.some_samples`) are served by those,
    and the others go through a session without them. ``few_samples`` says that there are few for the size of
    the graph, so that opening the session takes most of the time. Options are those of :meth:`Session.open`.
    """

    def __init__(
        self,
        model: ir.Model,
        requests: Mapping[str, Request],
        *,
        total: int | None = None,
        few_samples: bool = False,
        **options: Any,
    ) -> None:
        self._total = total
        self._files = contextlib.ExitStack()
        concurrent = _can_be_concurrent(**options) and not query.has_random(model)
        self._queue = RunQueue(concurrent=concurrent, few_runs=few_samples)
        shared = (few_samples, self._files, self._queue, options)
        self._for_some = ObservingSession(model, requests, *shared)
        of_all = {tensor: request for tensor, request in requests.items() if not request.some_samples}
        differ = len(of_all) < len(requests) and not (few_samples or are_all_some(total))
        differ = differ and io.held_bytes(model) <= _MAX_IN_TWO_SESSIONS
        self._for_others = ObservingSession(model, of_all, *shared) if differ else None
        with contextlib.ExitStack() as on_failure:
            on_failure.push(self._files)
            self._is_open = self._for_some.open()
            on_failure.pop_all()

    def __bool__(self) -> bool:
        return self._is_open

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        with self._files:
            self._queue.cancel()
            for session in self._sessions:
                session.close()

    @property
    def _sessions(self) -> list[ObservingSession]:
        return [self._for_some] if self._for_others is None else [self._for_some, self._for_others]

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """Return the inputs of the model."""
        return self._for_some.inputs

    def collect(
        self,
        feeds: Iterable[Feed],
        first: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> Stats:
        """Return the statistics of these samples, the first of which has the index ``first``."""
        if not self:
            return Stats()
        self._queue.cancel()
        for session in self._sessions:
            session.forget()
        done = 0
        for index, feed in enumerate(self._in_order(feeds), first):
            number = number_among_some(index, self._total)
            session = self._for_some if number is not None else self._for_others or self._for_some
            session.observe(feed, index, number)
            done += 1
            if progress is not None:
                progress(done)
        self._queue.finish()
        found, *others = (Stats(session.states()) for session in self._sessions)
        for other in others:
            found = found.merge(other)
        return Stats(found, done)

    def _in_order(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Give the samples; an error of one that is under way comes before that of reading the next."""
        stream = iter(feeds)
        while True:
            try:
                feed = next(stream)
            except StopIteration:
                return
            except Exception:
                self._queue.finish()
                raise
            yield feed


def _can_be_concurrent(
    threads: int | None = None, providers: Sequence[str] | None = None, custom_ops: Sequence[object] = ()
) -> bool:
    """Return whether two runs at a time are faster, and safe whatever a custom operator does."""
    return (threads or cores()) > 1 and not custom_ops and set(providers or ()) <= {"CPUExecutionProvider"}
