"""One pass over the data: every need of every tensor is served by the same runs of the model."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from octavo.calibration.augment import PARTS, Augmented, Wanted, augment
from octavo.calibration.data import Data, Feeds
from octavo.calibration.observers import HistogramState, MinMaxState
from octavo.core.stats import Need, State, Stats
from octavo.errors import DataError, ModelError, closest
from octavo.model import handover, io, query
from octavo.model.serialize import skeleton
from octavo.model.session import InputSpec, Session, runtime_ir_limit
from octavo.model.tensors import MappedTensor

Progress = Callable[[int, int | None], None]
_FEW = 100  # nodes for a sample: in a graph of more, optimizing takes longer than it saves
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
) -> Stats:
    """Run the model on the data and note what the tensors' values were.

    The model is in its normal form (:func:`octavo.model.normalize.normalize`) and stays as it is. ``first``
    is the index of the first sample, for a caller who hands out the data in portions. A tensor that never had
    a value is not in the result. NaN raises :class:`DataError`; an infinity is noted in the state.
    """
    known = data.length if isinstance(data, Feeds) else None
    few = known is not None and known * _FEW < len(model.graph)
    options = {"providers": providers, "threads": threads, "custom_ops": custom_ops, "optimize": not few}
    with Collector(model, needs, **options) as collector:
        if not collector:
            return Stats()
        source = data if isinstance(data, Feeds) else Feeds(data, collector.inputs, limit=limit)
        total = source.length if limit is None or source.length is None else min(limit, source.length)
        return collector.collect(
            itertools.islice(source, limit),
            first,
            None if progress is None else lambda done: progress(done, total),
        )


class Collector:
    """A model in a session that observes its tensors: opened once, used for any number of portions of data.

    It is false where none of the tensors can be observed. Options are those of :meth:`Session.open`.
    """

    def __init__(self, model: ir.Model, needs: Mapping[str, Need], **options: Any) -> None:
        self._wanted = _wanted(model, needs)
        self._files = contextlib.ExitStack()
        with contextlib.ExitStack() as on_failure:
            on_failure.push(self._files)
            self._opened = _open(model, self._wanted, self._files, **options) if self._wanted else None
            on_failure.pop_all()

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
        notes = _Notes(asked, first)
        for feed in feeds:
            notes.add(session.run(feed))
            if progress is not None:
                progress(notes.samples)
        return Stats(notes.states(list(self._wanted)), notes.samples)


def _wanted(model: ir.Model, needs: Mapping[str, Need]) -> dict[str, Wanted]:
    """The needs in the order of the graph, with what the model knows of each tensor."""
    found: dict[str, Wanted] = {}

    def look(value: ir.Value) -> None:
        need = needs.get(value.name or "")
        if need is not None and value.name:
            shape = query.shape(value)
            found[value.name] = Wanted(
                values=need.histogram,
                is_float=query.element_type(value) == ir.DataType.FLOAT,
                is_static=shape is not None and None not in shape,
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


def _open(
    model: ir.Model, wanted: Mapping[str, Wanted], files: contextlib.ExitStack, **options: Any
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
        asked = augment(proto, wanted)
        if not asked:
            return None
        config: dict[str, str] = {}
        used = {name: value for name, value in initializers.items() if name in asked.used}
        handover.fill(proto, used, config)
        return Session.open(proto.SerializeToString(), config=config, **options), asked
    folder = Path(files.enter_context(tempfile.TemporaryDirectory(prefix="octavo-")))
    path = io.save(model, folder / "model.onnx", external_data=True)[0]
    proto = onnx.load(str(path), load_external_data=False)
    asked = augment(proto, wanted)
    if not asked:
        return None
    path.write_bytes(proto.SerializeToString())
    return Session.open(path, **options), asked


class _Notes:
    """What the runs so far gave."""

    def __init__(self, asked: Augmented, first: int) -> None:
        self._asked = asked
        self._first = first
        self.samples = 0
        self._rows: list[npt.NDArray[np.float32]] = []  # for each sample: parts × tensors
        self._histograms = {tensor: HistogramState() for tensor in asked.values}

    def add(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        index = self._first + self.samples
        flat = [outputs[name].reshape(-1) for name in self._asked.parts]
        row = np.concatenate([*flat, np.empty(0, np.float32)]).reshape(-1, len(PARTS))
        bad = np.isnan(row).any(axis=1)
        if bad.any():
            _refuse_nan(self._asked.reduced[int(np.argmax(bad))], index)
        for tensor, name in self._asked.values.items():
            try:
                self._histograms[tensor].update(outputs[name], index)
            except DataError:
                _refuse_nan(tensor, index)
        self._rows.append(row[:, :2].copy())
        self.samples += 1

    def states(self, order: Sequence[str]) -> dict[str, State]:
        """A state for each tensor that had any value."""
        found: dict[str, State] = {}
        samples = np.arange(self._first, self._first + self.samples)
        table = np.stack(self._rows, axis=-1) if self._rows else np.zeros((0, 2, 0), np.float32)
        for tensor, (low, high) in zip(self._asked.reduced, table, strict=True):
            found[tensor] = MinMaxState.of(samples, low, high)
        found.update(self._histograms)
        return {tensor: found[tensor] for tensor in order if tensor in found and found[tensor].count}


def _refuse_nan(tensor: str, index: int) -> None:
    raise DataError(
        f"The tensor {tensor!r} has NaN among its values in sample {index} of the calibration data; look at "
        "that sample, and at the float model, which computes NaN from it too."
    )
