"""One pass over the data: every need of every tensor is served by the same runs of the model."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir as ir

from octavo.calibration import trust
from octavo.calibration.augment import Augmented, augment
from octavo.calibration.blocked import blocked
from octavo.calibration.data import Data, Feeds
from octavo.calibration.notes import Notes
from octavo.calibration.observation import Wanted
from octavo.calibration.sampling import strided
from octavo.core import scratch
from octavo.core.stats import Need, Stats
from octavo.errors import ModelError, closest
from octavo.model import handover, io, query
from octavo.model.samples import specs_of
from octavo.model.serialize import skeleton
from octavo.model.session import NO_SPINNING, InputSpec, Session, runtime_ir_limit
from octavo.model.tensors import MappedTensor

Progress = Callable[[int, int | None], None]
_FEW = 100  # nodes for a sample: in a graph of more, optimizing takes longer than it saves
_AHEAD = 8  # samples that are looked at ahead to find out whether there are few
_INLINE_MOST = 1_900_000_000  # bytes; protobuf stops at 2 GiB


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
    ahead = list(itertools.islice(feeds, many)) if total is None else []
    few = len(ahead) < many if total is None else total < many
    options = {"providers": providers, "threads": threads, "custom_ops": custom_ops}
    with Collector(model, strided(needs, stride), few=few, **options) as collector:
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

    It is false where none of the tensors can be observed. ``few`` says that there are few samples for the
    size of the graph, so that opening the session is what costs. Options are those of :meth:`Session.open`.
    """

    def __init__(
        self,
        model: ir.Model,
        needs: Mapping[str, Need],
        *,
        few: bool = False,
        **options: Any,
    ) -> None:
        self._model, self._needs = model, needs
        self._few, self._options = few, {**options, "optimize": not few}
        self._wanted = _wanted(model, needs)
        self._trusting = not few
        if self._trusting:
            self._wanted = _trusted(model, self._wanted)
        self._files = contextlib.ExitStack()
        self._opened = self._open()

    def _open(self) -> tuple[Session, Augmented] | None:
        with contextlib.ExitStack() as on_failure:
            on_failure.push(self._files)
            opened = None
            if self._wanted:
                opened = _open(self._model, self._wanted, self._files, together=self._few, **self._options)
            on_failure.pop_all()
        return opened

    def __bool__(self) -> bool:
        return self._opened is not None

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened = None
        self._files.close()

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """The inputs of the model."""
        return self._opened[0].inputs if self._opened is not None else ()

    def collect(
        self,
        feeds: Iterable[Mapping[str, npt.NDArray[Any]]],
        first: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> Stats:
        """What the tensors' values are on these samples, the first of which has the index ``first``."""
        if self._opened is None:
            return Stats()
        session, asked = self._opened
        notes = Notes(asked, self._needs, first)
        for feed in feeds:
            outputs = session.run(feed)
            row = notes.read(outputs)
            while self._trusting and self._look_closer(notes, row):
                session = self._opened[0]
                outputs = session.run(feed)
                row = notes.read(outputs)
            notes.add(outputs, row)
            del outputs  # the next run gets their memory, which is there already
            if progress is not None:
                progress(notes.samples)
        return Stats(notes.states(list(self._wanted)), notes.samples)

    def _look_closer(self, notes: Notes, row: npt.NDArray[Any]) -> bool:
        """From now on look at more, where something is not as was to be expected; says whether it was."""
        if notes.is_overflown(row):
            self._trusting = False
            self._wanted = _wanted(self._model, self._needs)
        elif unknown := notes.unknown(row):
            self._wanted |= {tensor: replace(self._wanted[tensor], is_map=False) for tensor in unknown}
        else:
            return False
        self._opened = self._open()
        if self._opened is not None:
            notes.with_outputs(self._opened[1])
        return self._opened is not None


def _wanted(model: ir.Model, needs: Mapping[str, Need]) -> dict[str, Wanted]:
    """The needs in the order of the graph, with what the model knows of each tensor."""
    found: dict[str, Wanted] = {}
    in_main = {value.name for value in model.graph.inputs}
    in_main |= {value.name for node in model.graph for value in node.outputs}

    def look(value: ir.Value) -> None:
        need = needs.get(value.name or "")
        if need is not None and value.name:
            shaped = need.channels is not None or need.gram or need.totals
            if shaped and value.name not in in_main:
                raise ModelError(
                    f"The tensor {value.name!r} lies inside a subgraph, where channels, sums and Gram "
                    "matrices can't be observed; leave them out for this tensor."
                )
            found[value.name] = Wanted(
                values=shaped or need.moments or need.histogram or need.loudness,
                is_float=query.element_type(value) == ir.DataType.FLOAT,
                shape=query.static_shape(value),
                lattice=need.lattice if value.name in in_main else None,
            )

    for graph in query.graphs(model):
        for value in graph.inputs:
            look(value)
        for node in graph:
            for value in node.outputs:
                look(value)
    for name in needs:
        if name not in found:
            raise ModelError(
                f"There is no tensor {name!r} to calibrate in {io.describe(model)}"
                f"{closest(name, [v.name or '' for n in model.graph for v in n.outputs]) or '.'}"
            )
    return found


def _trusted(model: ir.Model, wanted: Mapping[str, Wanted]) -> dict[str, Wanted]:
    """What is wanted, with what need not be looked at as long as nothing overflows."""
    calm = trust.calm(model)
    maps = trust.maps(model) & calm
    found = {t: replace(w, may_be_nan=t not in calm, is_map=t in maps) for t, w in wanted.items()}
    return blocked(model, found)


def _open(
    model: ir.Model,
    wanted: Mapping[str, Wanted],
    files: contextlib.ExitStack,
    *,
    together: bool = False,
    **options: Any,
) -> tuple[Session, Augmented] | None:
    """The augmented model in a session, and what its outputs are; None where nothing can be observed.

    Mapped weights are not copied.
    """
    initializers = model.graph.initializers
    inline = sum(
        value.const_value.nbytes
        for value in initializers.values()
        if value.const_value is not None and not isinstance(value.const_value, MappedTensor)
    )
    if inline <= _INLINE_MOST:
        proto = skeleton(model, runtime_ir_limit())
        asked = augment(proto, wanted, together=together)
        if not asked:
            return None
        config = dict(NO_SPINNING) if together else {}  # the time is in opening it
        used = {name: value for name, value in initializers.items() if name in asked.used}
        handover.fill(proto, used, config)
        return Session.open(proto.SerializeToString(), config=config, **options), asked
    folder = Path(files.enter_context(scratch.folder()))
    path = io.save(model, folder / "model.onnx", external_data=True)[0]
    proto = onnx.load(str(path), load_external_data=False)
    asked = augment(proto, wanted, together=together)
    if not asked:
        return None
    path.write_bytes(proto.SerializeToString())
    return Session.open(path, **options), asked
