"""Trials as files in one folder: made, judged, examined and timed."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from octavo import api, pipeline
from octavo.calibration.engines import Engine
from octavo.core.plan import Plan
from octavo.core.scheme import Method
from octavo.core.stats import Stats
from octavo.errors import OctavoError
from octavo.evaluation.latency import taking_turns
from octavo.measuring import Memo, Progress, Run
from octavo.model import io, query
from octavo.model.session import Session
from octavo.result import Result
from octavo.targets import Target
from octavo.tuning.candidates import Candidate
from octavo.tuning.exam import Examiner
from octavo.tuning.judging import Reference, speeds
from octavo.tuning.sensitivity import Layer, sensitivity
from octavo.tuning.split import Split
from octavo.tuning.trial import Trial

FEW = 4  # models that are timed in the seconds given; more take longer


@dataclass
class Workshop:
    """The workshop of one search."""

    model: io.ModelSource
    split: Split
    target: Target
    folder: Path
    engine: Engine
    threads: int | None
    tell: Progress
    ends: float | None = None
    stride: int | None = None
    histograms: bool = False  # for reports
    samples: int | None = None  # that every trial calibrates with; None: all
    examiner: Examiner | None = None
    float_bytes: int = 0  # of the weights
    trials: list[Trial] = field(default_factory=list)
    stats: Stats | None = None
    memo: Memo = field(default_factory=Memo)  # what steps have found out

    def __post_init__(self) -> None:
        self.session = _float_session(self.model, self.threads)
        self.reference = Reference(self.session, self.split.held, self.folder)

    @property
    def is_over(self) -> bool:
        """Whether the time for further trials is up; the first one always has time."""
        made = any(trial.error is None for trial in self.trials)
        return made and self.ends is not None and time.monotonic() > self.ends

    def file(self, trial: Trial) -> Path:
        """Where a trial's model lies."""
        return self.folder / self._name(self.trials.index(self.now(trial)))

    def _name(self, index: int) -> str:
        return f"{index}.onnx"

    def now(self, trial: Trial) -> Trial:
        """The trial with all that has been measured of it since."""
        return next(one for one in self.trials if one.candidate is trial.candidate)

    def calibrate(self, needs: Plan | Mapping[str, Method]) -> None:
        """One pass over the data, for the methods of all trials; what is known already stays."""
        fresh = api.calibrate(
            self.model,
            needs,
            self.split.calibration,
            every_method=True,
            samples=self.samples,
            threads=self.threads,
            engine=self.engine,
            stride=self.stride,
            progress=self.tell,
        )
        self.stats = fresh if self.stats is None else _joined(self.stats, fresh)
        self.memo.rely_on(self.stats)

    def try_all(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """Make, judge and examine some candidates; gives those that came out."""
        first = len(self.trials)
        for number, candidate in enumerate(candidates):
            self.tell("try", number, len(candidates))
            self.trials.append(self._made(candidate))
        fresh = [i for i in range(first, len(self.trials)) if self.trials[i].error is None]
        if fresh:
            found = self.reference.fidelity([self._name(i) for i in fresh], self.engine, self.tell)
            for i in fresh:
                fidelity = found[self._name(i)]
                self.trials[i] = replace(
                    self.trials[i],
                    sqnr_db=fidelity.sqnr_db,
                    agreement=fidelity.agreement,
                    places=fidelity.places,
                    parts=fidelity.parts,
                    score=self.examiner.score(self.folder / self._name(i)) if self.examiner else None,
                )
        return [self.trials[i] for i in fresh]

    def _made(self, candidate: Candidate) -> Trial:
        if self.is_over:
            return Trial(candidate, error="the time was over before it was tried")
        began = time.monotonic()
        try:
            result = self._quantized(candidate)
        except OctavoError as error:
            return Trial(candidate, error=str(error))
        except Exception as error:  # a defect in one way must not cost the others; the table names it
            return Trial(candidate, error=f"unexpected error: {type(error).__name__}: {error}")
        size = result.bytes / self.float_bytes if self.float_bytes else None
        return Trial(candidate, result, bytes=result.bytes, size=size, seconds=time.monotonic() - began)

    def _quantized(self, candidate: Candidate) -> Result:
        """A candidate, written to its file; all use the same statistics, and what steps add is kept."""
        recipe = candidate.recipe
        run = Run(
            output=self.folder / self._name(len(self.trials)),
            samples=recipe.calibration_samples,
            threads=self.threads,
            engine=self.engine,
        )
        if not candidate.static:
            return pipeline.quantize(self.model, None, recipe, self.target, run)
        if recipe.steps:
            run = replace(run, stride=self.stride, histograms=self.histograms, memo=self.memo)
        else:
            self._complete(candidate)
            run = replace(run, stride=self.stride, stats=self.stats)
        return pipeline.quantize(self.model, self.split.calibration, recipe, self.target, run)

    def _complete(self, candidate: Candidate) -> None:
        """Measure tensors that no trial has asked for before: one that stays float moves where ranges sit."""
        needs = api.plan(self.model, candidate.recipe, target=self.target).needs()
        known = self.stats if self.stats is not None else {}
        lacking = {name: method for name, method in needs.items() if name not in known}
        if lacking:
            self.calibrate(lacking)

    def measure(self, trials: Sequence[Trial], seconds: float) -> None:
        """Time some trials beside float, alone; those that differ in nothing but numbers as one."""
        asked = {_kernels(self.now(trial)) for trial in trials if trial.error is None}
        twins: dict[Hashable, list[int]] = {}
        for i, trial in enumerate(self.trials):
            if trial.error is None and (kernels := _kernels(trial)) in asked:
                twins.setdefault(kernels, []).append(i)
        if not twins:
            return
        self.tell("measure", 0, 1)
        found = speeds(
            self.session,
            [self.folder / self._name(same[0]) for same in twins.values()],
            self.split.held[0],
            threads=self.threads,
            seconds=seconds * max(1.0, len(twins) / FEW),
        )
        for same, speed in zip(twins.values(), found, strict=True):
            for i in same:
                self.trials[i] = replace(self.trials[i], speed=speed)

    def layers(self, trial: Trial) -> tuple[Layer, ...]:
        """What each quantized layer of a trial loses by itself."""
        if trial.result is None:
            return ()
        self.tell("layers", 0, 1)
        return sensitivity(self.model, self.file(trial), trial.result.plan, self.split.held, self.threads)


def _kernels(trial: Trial) -> Hashable:
    """What decides about a trial's speed: its nodes and the types that they read and give."""
    if trial.result is None:
        return trial.name
    return tuple(
        (node.name, node.op_type, *(None if v is None else v.dtype for v in (*node.inputs, *node.outputs)))
        for node in query.nodes(trial.result.model)
    )


def _joined(known: Stats, fresh: Stats) -> Stats:
    """Statistics of different tensors on the same samples."""
    origin = known.origin
    if origin is not None and fresh.origin is not None:
        origin = replace(origin, needs={**origin.needs, **fresh.origin.needs})
    return Stats({**known, **fresh}, known.samples, origin)


def _float_session(model: io.ModelSource, threads: int | None) -> Session:
    source = model if isinstance(model, str | Path) else io.load(model)
    return Session.open(source, threads=threads, config=taking_turns(threads))
