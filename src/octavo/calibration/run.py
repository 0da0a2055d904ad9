"""One pass over the data: every need of every tensor is served by the same runs of the model."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt
import onnx_ir as ir

from octavo.calibration.data import Data, Feeds, copied
from octavo.calibration.engines.engine import cores
from octavo.calibration.lanes import Lanes
from octavo.calibration.lens import Lens
from octavo.calibration.sampling import all_closely, number_of, strided
from octavo.core.stats import Need, Stats
from octavo.model import io, query
from octavo.model.samples import specs_of
from octavo.model.session import InputSpec

Progress: TypeAlias = Callable[[int, int | None], None]
Feed: TypeAlias = Mapping[str, npt.NDArray[Any]]
_FEW = 100  # nodes for a sample: in a graph of more, optimizing takes longer than it saves
_AHEAD = 8  # samples that are looked at ahead to find out whether there are few
_TWICE_MOST = 1 << 28  # bytes of weights; a model with more is not held in two sessions


def collect(
    model: ir.Model,
    needs: Mapping[str, Need],
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
    """Run the model on the data and note what the tensors' values were.

    The model is in its normal form (:func:`octavo.model.normalize.normalize`) and stays as it is. ``first``
    is the index of the first sample, for a caller who hands out the data in portions. With a ``stride``
    histograms count every so many-th value; extremes stay exact. A tensor that never had a value is not in
    the result. NaN raises :class:`~octavo.errors.DataError`; an infinity is noted in the state.
    """
    source = data if isinstance(data, Feeds) else Feeds(data, specs_of(model), limit=limit)
    total = source.length if limit is None or source.length is None else min(limit, source.length)
    feeds = itertools.islice(source, limit)
    many = few_below(model)
    ahead = [copied(feed) for feed in itertools.islice(feeds, many)] if total is None else []
    few = len(ahead) < many if total is None else total < many
    options = {"providers": providers, "threads": threads, "custom_ops": custom_ops}
    with Collector(model, strided(needs, stride), total=total, few=few, **options) as collector:
        if not collector:
            return Stats()
        return collector.collect(
            itertools.chain(ahead, feeds),
            first,
            None if progress is None else lambda done: progress(done, total),
        )


def few_below(model: ir.Model) -> int:
    """The number of samples below which opening the session is what costs."""
    return min(len(model.graph) // _FEW, _AHEAD)


class Collector:
    """A model in a session that observes its tensors: opened once, used for any number of portions of data.

    It is false where none of the tensors can be observed. ``total`` is the number of samples that there are,
    if anybody knows; what is needed of some of them only (:attr:`Need.some`) is looked at in those, and the
    others go through a session without it. ``few`` says that there are few samples for the size of the graph,
    so that opening the session is what costs. Options are those of :meth:`Session.open`.
    """

    def __init__(
        self,
        model: ir.Model,
        needs: Mapping[str, Need],
        *,
        total: int | None = None,
        few: bool = False,
        **options: Any,
    ) -> None:
        self._total = total
        self._files = contextlib.ExitStack()
        always = {tensor: need for tensor, need in needs.items() if not need.some}
        differ = len(always) < len(needs) and not (few or all_closely(total))
        differ = differ and io.held_bytes(model) <= _TWICE_MOST
        self._lanes = Lanes(wide=_is_wide(**options) and not query.has_random(model))
        self._closely = Lens(model, needs, few, self._files, self._lanes, options)
        self._briefly = Lens(model, always, few, self._files, self._lanes, options) if differ else None
        with contextlib.ExitStack() as on_failure:
            on_failure.push(self._files)
            self._is_open = self._closely.open()
            on_failure.pop_all()

    def __bool__(self) -> bool:
        return self._is_open

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        with self._files:
            self._lanes.forget()
            self._closely.close()
            if self._briefly is not None:
                self._briefly.close()

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """The inputs of the model."""
        return self._closely.inputs

    def collect(
        self,
        feeds: Iterable[Feed],
        first: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> Stats:
        """What the tensors' values are on these samples, the first of which has the index ``first``."""
        if not self:
            return Stats()
        self._lanes.forget()
        self._closely.forget()
        if self._briefly is not None:
            self._briefly.forget()
        done = 0
        for index, feed in enumerate(self._in_order(feeds), first):
            at = number_of(index, self._total)
            lens = self._closely if at is not None or self._briefly is None else self._briefly
            lens.look(feed, index, at)
            done += 1
            if progress is not None:
                progress(done)
        self._lanes.settle()
        found = Stats(self._closely.states())
        if self._briefly is not None:
            found = found.merge(Stats(self._briefly.states()))
        return Stats(found, done)

    def _in_order(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """The samples; an error of one that is under way comes before that of reading the next."""
        stream = iter(feeds)
        while True:
            try:
                feed = next(stream)
            except StopIteration:
                return
            except Exception:
                self._lanes.settle()
                raise
            yield feed


def _is_wide(
    threads: int | None = None, providers: Sequence[str] | None = None, custom_ops: Sequence[object] = ()
) -> bool:
    """Whether two runs at a time are any use, and safe whatever a custom operator does."""
    return (threads or cores()) > 1 and not custom_ops and set(providers or ()) <= {"CPUExecutionProvider"}
