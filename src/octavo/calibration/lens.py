"""A model in a session that shows what some of its tensors are, sample by sample."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir as ir

from octavo.calibration import trust
from octavo.calibration.augment import Augmented, augment
from octavo.calibration.blocked import blocked
from octavo.calibration.data import copied
from octavo.calibration.lanes import Lanes, Outputs, bytes_of
from octavo.calibration.notes import Notes
from octavo.calibration.observation import Wanted
from octavo.core import scratch
from octavo.core.stats import Need, State
from octavo.errors import ModelError, closest
from octavo.model import handover, io, query
from octavo.model.serialize import skeleton
from octavo.model.session import NO_SPINNING, InputSpec, Session, runtime_ir_limit
from octavo.model.tensors import MappedTensor

_INLINE_MOST = 1_900_000_000  # bytes; protobuf stops at 2 GiB


class Lens:
    """A session that observes some tensors, opened when it is needed, and what it has seen since it told."""

    def __init__(
        self,
        model: ir.Model,
        needs: Mapping[str, Need],
        few: bool,
        files: contextlib.ExitStack,
        lanes: Lanes,
        options: Mapping[str, Any],
    ) -> None:
        self._model, self._needs, self._files, self._lanes = model, needs, files, lanes
        self._few, self._options = few, {**options, "optimize": not few}
        self._wanted = wanted_of(model, needs)
        self._trusting = not few
        if self._trusting:
            self._wanted = _trusted(model, self._wanted)
        self._opened: tuple[Session, Augmented] | None = None
        self._notes: Notes | None = None

    def open(self) -> bool:
        """Open the session; says whether anything can be observed."""
        if self._wanted:
            self._opened = _open(self._model, self._wanted, self._files, together=self._few, **self._options)
        return self._opened is not None

    def close(self) -> None:
        """Let go of the session."""
        self._opened = None

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """The inputs of the model."""
        return self._opened[0].inputs if self._opened is not None else ()

    def look(self, feed: Mapping[str, npt.NDArray[Any]], index: int, at: int | None) -> None:
        """Take in one sample; ``at`` is its number among those that are looked at closely, if it is one."""
        if self._opened is None and not self.open():
            return
        session = self._opened[0]  # type: ignore[index]
        if self._lanes.is_ahead:
            feed = copied(feed)  # its arrays may be used again for the next
        then = partial(self._note, session, feed, index, at)
        self._lanes.put(partial(session.run, feed), then, bytes_of(feed))

    def _note(
        self,
        session: Session,
        feed: Mapping[str, npt.NDArray[Any]],
        index: int,
        at: int | None,
        outputs: Outputs,
    ) -> None:
        """Note what a session gave; where another was opened meanwhile, what that one gives."""
        current, asked = self._opened  # type: ignore[misc]
        if session is not current:
            outputs = current.run(feed)
        notes = self._notes = self._notes or Notes(asked, self._needs)
        row = notes.read(outputs)
        while self._trusting and self._look_closer(notes, row):
            outputs = self._opened[0].run(feed)  # type: ignore[index]
            row = notes.read(outputs)
        notes.add(outputs, row, index, at)

    def forget(self) -> None:
        """Begin anew."""
        self._notes = None

    def states(self) -> dict[str, State]:
        """What was seen since the last time."""
        notes, self._notes = self._notes, None
        return notes.states(list(self._wanted)) if notes is not None else {}

    def _look_closer(self, notes: Notes, row: npt.NDArray[Any]) -> bool:
        """From now on look at more, where something is not as was to be expected; says whether it was."""
        if notes.is_overflown(row):
            self._trusting = False
            self._wanted = wanted_of(self._model, self._needs)
        elif unknown := notes.unknown(row):
            self._wanted |= {tensor: replace(self._wanted[tensor], is_map=False) for tensor in unknown}
        else:
            return False
        self.open()
        if self._opened is not None:
            notes.with_outputs(self._opened[1])
        return self._opened is not None


def wanted_of(model: ir.Model, needs: Mapping[str, Need]) -> dict[str, Wanted]:
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

    Mapped weights are not copied. Threads that wait for work sleep: other runs have something to do.
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
        config = dict(NO_SPINNING)
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
    return Session.open(path, config=NO_SPINNING, **options), asked
