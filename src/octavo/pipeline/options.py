"""How a run is carried out: where sessions run, how calibration observes, where the result goes.

What comes out is decided by a recipe or a plan, never here. Verbs take these settings as keywords
(:class:`Options`) and group them into one :class:`Run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import onnx_ir as ir

from octavo.calibration.engines import Engine, engine_of
from octavo.core.arguments import check_arguments
from octavo.core.progress import Progress, silent
from octavo.core.stats import Stats
from octavo.errors import RecipeError, closest
from octavo.model.prepare import PrepareOptions

if TYPE_CHECKING:
    from octavo.pipeline.calibrate import KnownStatistics


class Options(TypedDict, total=False):
    """The keywords that every verb takes beside its own.

    ===============  ===================================================================================
    threads          the threads of a session; they are also those that the model will be used with
    providers        execution providers of the sessions that calibrate
    custom_ops       libraries of custom operators
    engine           where samples run: ``serial``, ``processes``, ``ray`` or ``auto``
    workers          how many processes or Ray workers
    address          the address of a Ray cluster
    prepare          what preparation does; None: as little as possible
    verify           whether a result is checked, loaded and run before it is handed over
    external_data    weights beside the model; None: only where one file can't hold them
    stride           histograms count every ``stride``-th value; None: every value of small tensors
    histograms       keep a histogram of every tensor, for reports
    progress         called with a phase, how much of it is done, and how much there is
    ===============  ===================================================================================
    """

    threads: int | None
    providers: Sequence[str] | None
    custom_ops: Sequence[str | Path]
    engine: Engine | str
    workers: int | None
    address: str | None
    prepare: PrepareOptions | None
    verify: bool
    external_data: bool | None
    stride: int | None
    histograms: bool
    progress: Progress | None


@dataclass(frozen=True)
class Execution:
    """Where sessions run, and with what."""

    threads: int | None = None
    providers: Sequence[str] | None = None
    custom_ops: Sequence[str | Path] = ()
    engine: Engine | str = "auto"
    workers: int | None = None
    address: str | None = None

    def start(self) -> Engine:
        """Return the engine that runs samples."""
        return engine_of(self.engine, self.workers, self.address, self.threads)


@dataclass(frozen=True)
class Observation:
    """Which samples calibration runs, and what it keeps of them."""

    samples: int | None = None  # the first so many; None: all
    stride: int | None = None  # histograms count every so many-th value
    histograms: bool = False  # keep one of every tensor, for reports
    stats: Stats | None = None  # of a calibration made before, in the place of data
    known: KnownStatistics | None = None  # what other runs on the same model and data have found


@dataclass(frozen=True)
class Destination:
    """Where a result goes, and whether it is checked before."""

    path: Path | None = None
    external_data: bool | None = None
    verify: bool = True
    sample: Mapping[str, Any] | None = None  # that a result is run on where it is not calibrated
    accept: Callable[[ir.Model, int], None] | None = None  # raises for a model, beside the bytes of float


@dataclass(frozen=True)
class Run:
    """All settings of one run."""

    prepare: PrepareOptions | None = field(default_factory=PrepareOptions)
    execution: Execution = field(default_factory=Execution)
    observation: Observation = field(default_factory=Observation)
    destination: Destination = field(default_factory=Destination)
    progress: Progress = silent


def run_of(
    options: Options,
    *,
    output: str | Path | None = None,
    samples: int | None = None,
    stats: Stats | None = None,
) -> Run:
    """Group the keywords of a verb."""
    check_arguments(samples=samples)
    given: dict[str, Any] = dict(options)
    for name in given:
        if name not in Options.__annotations__:
            known = (*Options.__annotations__, "output", "samples", "stats")
            raise RecipeError(f"There is no option {name!r}{closest(name, known) or '.'}")
    execution = {name: given.pop(name) for name in Execution.__dataclass_fields__ if name in given}
    for name in ("providers", "custom_ops"):  # a single one needs no brackets
        if isinstance(execution.get(name), str | Path):
            execution[name] = (execution[name],)
    progress = given.pop("progress", None)
    return Run(
        prepare=given.pop("prepare", PrepareOptions()),
        execution=Execution(**execution),
        observation=Observation(samples, given.pop("stride", None), given.pop("histograms", False), stats),
        destination=Destination(Path(output) if output is not None else None, **given),
        progress=progress if progress is not None else silent,
    )
