"""An observing session: a model in a session that shows the values of some tensors, sample by sample."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy.typing as npt
import onnx_ir as ir

from octavo.calibration.observe.accumulators import Accumulators, without_nan
from octavo.calibration.observe.augment import Augmented, augment, by_pooling
from octavo.calibration.observe.observations import Observation, Reduced
from octavo.calibration.observe.run_queue import Outputs, RunQueue, bytes_of
from octavo.core import scratch
from octavo.core.requests import Extremes, Histogram, Lattice, Request
from octavo.core.stats import State
from octavo.data.feeds import copied
from octavo.errors import ModelError, closest
from octavo.model.files import io
from octavo.model.files.serialize import skeleton
from octavo.model.graph import query
from octavo.model.runtime import session_inputs
from octavo.model.runtime.session import NO_SPINNING, InputSpec, Session, runtime_ir_limit

Feed: TypeAlias = Mapping[str, npt.NDArray[Any]]


class ObservingSession:
    """A session that observes some tensors, opened when it is first used, and what it has seen so far.

    It assumes at first that nothing overflows and that sampled minima are zero, so that less has to be
    computed; a sample that shows otherwise is run again in a session that computes more.
    """

    def __init__(
        self,
        model: ir.Model,
        requests: Mapping[str, Request],
        few_samples: bool,
        files: contextlib.ExitStack,
        queue: RunQueue,
        options: Mapping[str, Any],
    ) -> None:
        self._model, self._requests, self._files, self._queue = model, requests, files, queue
        self._few_samples, self._options = few_samples, {**options, "optimize": not few_samples}
        self._observations = observations_of(model, requests)
        self._assumes_no_overflow = not few_samples
        if self._assumes_no_overflow:
            self._observations = _without_overflow(model, self._observations)
        self._opened: tuple[Session, Augmented] | None = None
        self._accumulators: Accumulators | None = None

    def open(self) -> bool:
        """Open the session; says whether anything can be observed."""
        if self._observations:
            self._opened = _open(
                self._model,
                self._observations,
                self._files,
                group_small=self._few_samples,
                **self._options,
            )
        return self._opened is not None

    def close(self) -> None:
        """Let go of the session."""
        self._opened = None

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """Return the inputs of the model."""
        return self._opened[0].inputs if self._opened is not None else ()

    def observe(self, feed: Feed, index: int, number: int | None) -> None:
        """Take in one sample; ``number`` is its place among those that all statistics are collected from."""
        if self._opened is None and not self.open():
            return
        session = self._opened[0]  # type: ignore[index]
        if self._queue.is_concurrent:
            feed = copied(feed)  # its arrays may be used again for the next
        then = partial(self._accumulate, session, feed, index, number)
        self._queue.put(partial(session.run, feed), then, bytes_of(feed))

    def _accumulate(
        self, session: Session, feed: Feed, index: int, number: int | None, outputs: Outputs
    ) -> None:
        """Take in the outputs of a session; where another was opened meanwhile, those of that one."""
        current, augmented = self._opened  # type: ignore[misc]
        if session is not current:
            outputs = current.run(feed)
        found = self._accumulators = self._accumulators or Accumulators(augmented, self._requests)
        row = found.read(outputs)
        while self._assumes_no_overflow and self._compute_more(found, row):
            outputs = self._opened[0].run(feed)  # type: ignore[index]
            row = found.read(outputs)
        found.add(outputs, row, index, number)

    def forget(self) -> None:
        """Discard what was observed."""
        self._accumulators = None

    def states(self) -> dict[str, State]:
        """Return what was seen since the last call."""
        found, self._accumulators = self._accumulators, None
        return found.states(list(self._observations)) if found is not None else {}

    def _compute_more(self, found: Accumulators, row: npt.NDArray[Any]) -> bool:
        """Open a session that computes more where a sample contradicts an assumption, and say whether."""
        if found.may_have_overflowed(row):
            self._assumes_no_overflow = False
            self._observations = observations_of(self._model, self._requests)
        elif unknown := found.with_unknown_minimum(row):
            plain = Reduced(may_be_nan=False)
            self._observations |= {
                tensor: replace(self._observations[tensor], extremes=plain) for tensor in unknown
            }
        else:
            return False
        self.open()
        if self._opened is not None:
            found.use_outputs(self._opened[1])
        return self._opened is not None


def observations_of(model: ir.Model, requests: Mapping[str, Request]) -> dict[str, Observation]:
    """Return how each requested tensor is observed, in the order of the graph."""
    found: dict[str, Observation] = {}
    for graph in query.graphs(model):
        values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
        for value in values:
            if value.name and value.name in requests:
                found[value.name] = _observation(value, requests[value.name], graph is model.graph)
    for name in requests:
        if name not in found:
            raise ModelError(
                f"There is no tensor {name!r} to calibrate in {io.describe(model)}"
                f"{closest(name, [v.name or '' for n in model.graph for v in n.outputs]) or '.'}"
            )
    return found


def _observation(value: ir.Value, request: Request, in_main: bool) -> Observation:
    if request.needs_shape and not in_main:
        raise ModelError(
            f"The tensor {value.name!r} lies inside a subgraph, where channels, sums and Gram matrices can't "
            "be observed; leave them out for this tensor."
        )
    step = None if isinstance(request.kept, Extremes) and not request.has_parts else 1
    if isinstance(request.subset, Lattice) and in_main:
        step = request.subset.step
    is_float32 = query.element_type(value) == ir.DataType.FLOAT
    as_rows = in_main and query.rank(value) == 4 and isinstance(request.kept, Histogram)
    return Observation(
        step=step,
        is_float32=is_float32,
        shape=query.static_shape(value),
        as_rows=as_rows and not request.has_parts,
    )


def _without_overflow(model: ir.Model, observations: Mapping[str, Observation]) -> dict[str, Observation]:
    """Return how tensors are observed as long as nothing overflows."""
    no_nan = without_nan(model)
    finite = {
        tensor: replace(how, extremes=Reduced(may_be_nan=False))
        for tensor, how in observations.items()
        if tensor in no_nan
    }
    return {**observations, **by_pooling(model, finite)}


def _open(
    model: ir.Model,
    observations: Mapping[str, Observation],
    files: contextlib.ExitStack,
    *,
    group_small: bool = False,
    **options: Any,
) -> tuple[Session, Augmented] | None:
    """Open the augmented model, and tell what its outputs are; None where nothing can be observed.

    Mapped weights are not copied. Threads that wait for work sleep: other runs need the cores.
    """
    model = session_inputs.with_mapped_weights(model, lambda: files.enter_context(scratch.folder()))
    proto = skeleton(model, runtime_ir_limit())
    augmented = augment(proto, observations, group_small=group_small)
    if not augmented:
        return None
    return session_inputs.open_message(proto, model, augmented.used, config=NO_SPINNING, **options), augmented
