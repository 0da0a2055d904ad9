"""Runs trials: makes each as a file of one folder, compares it with float, checks its task and times it.

The model is read and prepared once; every trial works on a copy of the prepared model. Statistics, the float
model's answers and the speed of models that differ in numbers alone are found once as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo import pipeline
from octavo.calibration.engines import Engine
from octavo.comparison.exact_activations import with_exact_activations
from octavo.core.plan import Plan
from octavo.core.progress import Progress
from octavo.core.recipe import Recipe
from octavo.core.scheme import Method
from octavo.core.stats import Stats
from octavo.errors import ModelError, OctavoError
from octavo.evaluation.timing.latency import Ratio
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.prepare.widen import widen
from octavo.model.runtime.session import Session
from octavo.pipeline import Destination, KnownStatistics, PreparedModel, Run
from octavo.pipeline.calibrate import statistics
from octavo.pipeline.weight_inputs import reads_inputs
from octavo.result import Result
from octavo.targets import Target
from octavo.tuning import choice
from octavo.tuning.candidates import Candidate
from octavo.tuning.choice import Unchanged
from octavo.tuning.deadline import Deadline, OutOfTime
from octavo.tuning.fidelity import Fidelity
from octavo.tuning.forecast import TIMING, Forecast
from octavo.tuning.language import TokenSpeeds
from octavo.tuning.measure import Reference, speeds, timed_samples, token_speeds
from octavo.tuning.requirements import Requirements
from octavo.tuning.sensitivity import Layer, sensitivity
from octavo.tuning.split import Split
from octavo.tuning.task_check import TaskChecker
from octavo.tuning.trial import Trial

TIMED_TOGETHER = 4  # models that are timed in the seconds given; more take longer


@dataclass
class TrialRunner:
    """The trials of one search, and what they share."""

    prepared: PreparedModel
    split: Split
    target: Target
    folder: Path
    engine: Engine
    run: Run
    deadline: Deadline = field(default_factory=Deadline)
    checker: TaskChecker | None = None
    trials: list[Trial] = field(default_factory=list)
    stats: Stats | None = None
    known: KnownStatistics = field(default_factory=KnownStatistics)  # what steps have observed
    notes: list[str] = field(default_factory=list)  # on how speed was measured
    requirements: Requirements = field(default_factory=Requirements)
    forecast: Forecast = field(init=False)

    def __post_init__(self) -> None:
        source = self.prepared.source
        self.float_model = Path(source) if isinstance(source, str | Path) else io.load(source)
        session = self._float_session()
        self.reference = Reference(session, self.split.held, self.folder, self.split.calibration or ())
        self.forecast = Forecast(
            self.run.progress,
            samples=len(self.split.calibration or ()),
            held=len(self.split.held),
            run_seconds=self.reference.run_seconds,
            slowdown=self.deadline.slowdown,
            most=lambda: self.deadline.seconds_left,
            spent=lambda: self.deadline.elapsed,
            began=self.deadline.began,
        )
        self.run = replace(self.run, progress=self.forecast.progress)
        self.unchanged = Unchanged(self.float_bytes)
        self._candidates: list[Candidate] = []  # a trial's file has its candidate's number here

    def _float_session(self) -> Session:
        """Open the float model; one that the runtime has no kernels for is computed in float32."""
        try:
            return Session.open(self.float_model, threads=self.threads)
        except ModelError:
            wide = io.load(self.prepared.source)
            if not widen(wide):
                raise
            self.float_model = io.save(wide, self.folder / "float32.onnx")[0]
            self.notes.append("float is computed in float32: the runtime has no kernels for its type")
            return Session.open(self.float_model, threads=self.threads)

    @property
    def threads(self) -> int | None:
        """The threads that models run with."""
        return self.run.execution.threads

    @property
    def float_bytes(self) -> int:
        """The bytes of the float model's weights."""
        return self.prepared.float_bytes

    def plan(self, recipe: Recipe) -> Plan:
        """The plan of a recipe, before calibration."""
        return pipeline.planned(self.prepared.model, recipe, self.target).plan

    def file(self, trial: Trial) -> Path:
        """Where a trial's model lies."""
        return self.folder / self._name(trial.candidate)

    def _name(self, candidate: Candidate) -> str:
        return f"{next(i for i, one in enumerate(self._candidates) if one is candidate)}.onnx"

    def now(self, trial: Trial) -> Trial:
        """The trial with all that has been measured of it since."""
        return next(one for one in self.trials if one.candidate is trial.candidate)

    def calibrate(self, needs: Plan | Mapping[str, Method]) -> None:
        """Run the data once, for the methods of all trials; what is known already stays."""
        run = replace(self.run, progress=self.deadline.checked(self.run.progress))
        fresh = statistics(self.prepared, needs, self.split.calibration, run, every_method=True)
        self.stats = fresh if self.stats is None else _joined(self.stats, fresh)
        self.known.rely_on(self.stats)

    def try_all(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """Make some candidates, compare them with float and check their task; gives those that came out."""
        made = []
        for candidate in candidates:
            self.run.progress(candidate.name, 0, None)
            self._candidates.append(candidate)
            made.append(self._made(candidate))
        try:
            made = self._judged(made)
        except OutOfTime:
            made = [one if one.error is not None else _out_of_time(one.candidate) for one in made]
        self.trials += made
        return [trial for trial in made if trial.error is None]

    def _judged(self, made: Sequence[Trial]) -> list[Trial]:
        names = [self._name(trial.candidate) for trial in made if trial.error is None]
        if not names:
            return list(made)
        found = self.reference.fidelity(names, self.engine, self.deadline.checked(self.run.progress))
        judged = []
        for trial in made:
            if trial.error is None:
                fidelity = found[self._name(trial.candidate)]
                trial = replace(
                    trial,
                    sqnr_db=fidelity.sqnr_db,
                    sqnr_interval=fidelity.sqnr_interval,
                    agreement=fidelity.agreement,
                    places=fidelity.places,
                    parts=fidelity.parts,
                    predictions=fidelity.predictions,
                    score=self.checker.score(self.file(trial)) if self.checker else None,
                )
            judged.append(trial)
        return judged

    def fidelity_of_weights(self, trial: Trial) -> Fidelity | None:
        """Return how close a trial would be with exact activations; None where that can't be told."""
        name = f"{self._name(trial.candidate)}.weights"
        try:
            model = with_exact_activations(trial.result.model) if trial.result is not None else None
            if model is None or self.deadline.is_over:
                return None
            io.save(model, self.folder / name)
            report = self.deadline.checked(self.run.progress)
            return self.reference.fidelity([name], self.engine, report)[name]
        except (OctavoError, OutOfTime):
            return None
        except Exception as error:  # a defect here must not cost the trials; the result names it
            self.notes.append(f"what rounding loses is not known: {type(error).__name__}: {error}")
            return None

    def _made(self, candidate: Candidate) -> Trial:
        if self.deadline.is_over:
            return _out_of_time(candidate)
        began = time.monotonic()
        try:
            result = self._quantized(candidate)
        except OutOfTime:
            return _out_of_time(candidate)
        except OctavoError as error:
            return Trial(candidate, error=str(error))
        except Exception as error:  # a defect in one way must not cost the others; the table names it
            return Trial(candidate, error=f"unexpected error: {type(error).__name__}: {error}")
        size = result.bytes / self.float_bytes if self.float_bytes else None
        return Trial(candidate, result, bytes=result.bytes, size=size, seconds=time.monotonic() - began)

    def _quantized(self, candidate: Candidate) -> Result:
        """A candidate, written to its file; all use the same statistics, and what steps add is kept."""
        recipe = candidate.recipe
        sample = self.split.held[0] if self.split.calibration is not None else None
        file = Destination(self.folder / self._name(candidate), sample=sample)
        observation = replace(self.run.observation, samples=recipe.calibration_samples)
        data = self.split.calibration
        if not candidate.static and not reads_inputs(recipe):
            observation, data = replace(observation, histograms=False, stride=None), None
        elif recipe.steps or not candidate.static:
            observation = replace(observation, known=self.known)
        else:
            self._complete(candidate)
            observation = replace(observation, histograms=False, stats=self.stats)
        progress = self.deadline.checked(_prefixed(candidate.name, self.run.progress))
        run = replace(self.run, destination=file, observation=observation, progress=progress)
        return pipeline.quantize(self.prepared, data, recipe, self.target, run)

    def _complete(self, candidate: Candidate) -> None:
        """Measure tensors that no trial has requested before: one that stays float moves where ranges sit."""
        needs = self.plan(candidate.recipe).needs()
        known = self.stats if self.stats is not None else {}
        lacking = {name: method for name, method in needs.items() if name not in known}
        if lacking:
            self.calibrate(lacking)

    def measure(self, trials: Sequence[Trial], seconds: float) -> None:
        """Time some trials beside float, alone; those that differ in nothing but numbers as one.

        The first time the prepared float model is timed too: what it gains is no merit of quantizing.
        """
        asked = {_kernels(self.now(trial)) for trial in trials if trial.error is None}
        twins: dict[Hashable, list[int]] = {}
        for i, trial in enumerate(self.trials):
            if trial.error is None and (kernels := _kernels(trial)) in asked:
                twins.setdefault(kernels, []).append(i)
        if not twins or self.deadline.is_over:
            return
        self.run.progress(TIMING, 0, None)
        files = [self.file(self.trials[same[0]]) for same in twins.values()]
        first = [self.prepared.model] if self.unchanged.prepared is None else []
        self.forecast.taking_turns = 1 + len(first) + len(files)
        kinds = list(twins.values())

        def is_settled(found: Sequence[Ratio]) -> bool:
            unchanged = replace(self.unchanged, prepared=found[0]) if first else self.unchanged
            timed = self._with_speeds(kinds, [(one, None) for one in found[len(first) :]])
            return choice.is_settled(timed, self.requirements, unchanged)

        limit = min(seconds * max(1.0, len(files) / TIMED_TOGETHER), self.deadline.seconds_left)
        try:
            found = self._speeds([*first, *files], limit, is_settled)
        except OutOfTime:
            return
        if first:
            self.unchanged = replace(self.unchanged, prepared=found[0][0])
        self.trials = self._with_speeds(kinds, found[len(first) :])

    def _with_speeds(
        self, kinds: Sequence[Sequence[int]], found: Sequence[tuple[Ratio, TokenSpeeds | None]]
    ) -> list[Trial]:
        """Return the trials with speeds that were measured, each that of some of them, by number."""
        trials = list(self.trials)
        for same, (speed, tokens) in zip(kinds, found, strict=True):
            for i in same:
                trials[i] = replace(trials[i], speed=speed, tokens=tokens)
        return trials

    def _speeds(
        self,
        models: Sequence[Path | ir.Model],
        seconds: float,
        is_settled: Callable[[Sequence[Ratio]], bool],
    ) -> list[tuple[Ratio, TokenSpeeds | None]]:
        """Return the speed of some models, and how they read and write where they are language models."""
        language = self.reference.language
        more: dict[str, Any] = {
            "threads": self.threads,
            "seconds": seconds,
            "progress": partial(self.deadline.checked(self.run.progress), TIMING),
            "note": self._note,
        }
        if language is None:
            more["is_settled"] = is_settled
            found = speeds(self.float_model, models, timed_samples(self.split.held), **more)
            return [(one, None) for one in found]
        told = token_speeds(language, self.float_model, models, self.split.held, **more)
        return [
            (
                self.requirements.optimize.speed(one.prefill.ratio, one.decode.ratio if one.decode else None),
                one,
            )
            for one in told
        ]

    def untimed(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those of some trials whose speed is not known; it may be that of others with the same kernels."""
        known = {_kernels(trial): trial for trial in self.trials if trial.speed is not None}
        for i, trial in enumerate(self.trials):
            if (
                trial.error is None
                and trial.speed is None
                and (twin := known.get(_kernels(trial))) is not None
            ):
                self.trials[i] = replace(trial, speed=twin.speed, tokens=twin.tokens)
        return [now for now in map(self.now, trials) if now.error is None and now.speed is None]

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def layers(self, trial: Trial) -> tuple[Layer, ...]:
        """What each quantized layer of a trial loses by itself."""
        if trial.result is None or not trial.result.plan.nodes:
            return ()
        report = self.deadline.checked(self.run.progress)
        report("layers", 0, None)
        return sensitivity(
            self.prepared.source, self.file(trial), trial.result.plan, self.split.held, self.threads, report
        )


def _prefixed(name: str, progress: Progress) -> Progress:
    """A progress function for one of several trials, which says which."""
    return lambda phase, done, total: progress(f"{name}: {phase}", done, total)


def _kernels(trial: Trial) -> Hashable:
    """What decides about a trial's speed: its nodes, their settings and the types that they read and give."""
    if trial.result is None:
        return trial.name
    return tuple(
        (
            node.name,
            node.op_type,
            *(None if v is None else v.dtype for v in (*node.inputs, *node.outputs)),
            *((name, one.value) for name, one in node.attributes.items() if one.type == ir.AttributeType.INT),
        )
        for node in query.nodes(trial.result.model)
    )


def _joined(known: Stats, fresh: Stats) -> Stats:
    """Statistics of different tensors on the same samples."""
    origin = known.origin
    if origin is not None and fresh.origin is not None:
        origin = replace(origin, needs={**origin.needs, **fresh.origin.needs})
    return Stats({**known, **fresh}, known.samples, origin)


def _out_of_time(candidate: Candidate) -> Trial:
    return Trial(candidate, error="the time limit ended the search before it was made and compared")
