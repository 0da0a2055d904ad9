"""``propose``: changes to a recipe that were carried out and measured before they are proposed.

``compare`` finds the tensors that lose most and a change for each. Here each change is carried out: the model
is quantized again with three quarters of the data, and compared with float on the rest, which calibration has
not seen. A change is kept if it gains on those samples, beyond what the choice of samples explains; the next
one is tried on top of it. Nothing is proposed that was not better than what the caller has.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo import pipeline
from octavo.calibration.engines import held
from octavo.comparison.comparing import HasModel, compare, model_of
from octavo.comparison.comparison_result import Change, Comparison, combined
from octavo.core import scratch
from octavo.core.cpu import cores
from octavo.core.intervals import sqnr_draws
from octavo.core.outputs import note_inputs, refuse_sources
from octavo.core.progress import Progress, silent
from octavo.core.recipe import Recipe
from octavo.core.shown import Shown
from octavo.evaluation.timing.latency import Ratio
from octavo.model.files import io
from octavo.reporting.proposal_tables import proposal_line, proposal_table, recipe_text
from octavo.targets import target as find_target
from octavo.tuning.candidates import Candidate
from octavo.tuning.deadline import Deadline
from octavo.tuning.runner import TrialRunner
from octavo.tuning.split import Split
from octavo.tuning.trial import Trial

TIME_LIMIT = 180.0  # seconds after which no further change is tried, where nothing else is said
MIN_GAIN_DB = 0.1  # less is not worth a line in a recipe
_DB_PER_DOUBLING = 12.0  # that a change has to gain where it doubles the bytes: as much as two bits do
_SECONDS = 2.0  # that the models are timed for at the end

Energies = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # signal and noise: samples × outputs


@dataclass(frozen=True)
class Figures:
    """What was measured of a model: SQNR of the worst output, bytes of its weights, speed to float."""

    sqnr_db: float
    bytes: int
    speed: Ratio | None = None


@dataclass(frozen=True)
class TriedChange:
    """A change that was carried out: what it was tried on, and what came of it."""

    tensor: str
    change: Change
    kept: bool
    before: Figures
    after: Figures | None  # None where it could not be carried out
    interval: tuple[float, float] | None = None  # 95 %, of the gain in dB
    reason: str = ""  # why it was not kept

    @property
    def gain_db(self) -> float | None:
        """Return what it gains at the worst output."""
        return self.after.sqnr_db - self.before.sqnr_db if self.after is not None else None


@dataclass(frozen=True, repr=False)
class Proposal(Shown):
    """A recipe that was measured to be better, with the gain of each change; prints as a list."""

    recipe: Recipe
    is_better: bool  # whether there is anything to propose
    given: Figures  # the model as it is; it may have been calibrated with the samples held back here
    start: Figures  # what its recipe gives with the samples that are left to calibrate with
    proposed: Figures
    tried: tuple[TriedChange, ...]
    held_back: int
    is_recorded: bool  # whether the model carries the recipe that it was made by
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[TriedChange, ...]:
        """Return the changes that help."""
        return tuple(one for one in self.tried if one.kept)

    def save(self, path: str | Path) -> None:
        """Write the recipe; as YAML with the gain beside each change."""
        if Path(path).suffix.lower() == ".json":
            self.recipe.save(path)
            return
        from octavo.core.files import write_text

        refuse_sources(self, {"path": path})
        write_text(path, recipe_text(self.recipe.to_dict(), self.to_dict()))

    def to_dict(self) -> dict[str, Any]:
        """Plain data; docs/compare.md says what each key holds."""
        return {
            "is_better": self.is_better,
            "given": asdict(self.given),
            "start": asdict(self.start),
            "proposed": asdict(self.proposed),
            "held_back": self.held_back,
            "is_recorded": self.is_recorded,
            "tried": [_tried_dict(one) for one in self.tried],
            "notes": list(self.notes),
            "recipe": self.recipe.to_dict(),
        }

    def __str__(self) -> str:
        return proposal_table(self.to_dict())

    def _line(self) -> str:
        return proposal_line(self.to_dict())


def _tried_dict(one: TriedChange) -> dict[str, Any]:
    return {
        "tensor": one.tensor,
        "change": one.change.to_dict(),
        "kept": one.kept,
        "gain_db": one.gain_db,
        "interval": one.interval,
        "before": asdict(one.before),
        "after": asdict(one.after) if one.after is not None else None,
        "reason": one.reason,
    }


def propose(
    float_model: io.ModelSource,
    quantized: io.ModelSource | HasModel,
    data: Any,
    *,
    comparison: Comparison | None = None,
    samples: int | None = None,
    threads: int | None = None,
    time_limit: float | None = TIME_LIMIT,
    progress: Progress | None = None,
) -> Proposal:
    """Find changes to the recipe of a quantized model that make it better, and measure each.

    ``comparison`` is what :func:`octavo.compare` found for these models, where that is known already. After
    ``time_limit`` seconds no further change is tried.
    """
    deadline = Deadline.after(time_limit)
    tell = progress if progress is not None else silent
    if comparison is None:
        comparison = compare(float_model, quantized, data, samples=samples, threads=threads, progress=tell)
    run = pipeline.run_of({"threads": threads, "progress": tell})
    execution = run.execution
    base = comparison.base
    target = find_target(base.target).at(threads if threads is not None else cores())
    prepared = pipeline.prepared(float_model, pipeline.needed_opset(base), run, fingerprint=True)
    split = Split.of(data, prepared.model, samples)
    engine = execution.start()
    run = replace(run, execution=replace(execution, engine=engine))
    with scratch.folder() as folder, held(engine):
        runner = TrialRunner(prepared, split, target, Path(folder), engine, run, deadline)
        found = _Tries(runner, comparison, model_of(quantized)).proposal()
        return note_inputs(found, {"model": float_model, "quantized": quantized, "data": data})


class _Tries:
    """The changes of one comparison, tried one after another."""

    def __init__(self, runner: TrialRunner, comparison: Comparison, given: io.ModelSource) -> None:
        self.runner, self.comparison = runner, comparison
        model = io.load(given)
        self.given_file = "given.onnx"
        io.save(model, runner.folder / self.given_file, external_data=False)
        self.given_energies = self._energies(self.given_file)
        self.given = Figures(_decibels(self.given_energies), io.weight_bytes(model))
        self.tried: list[TriedChange] = []
        self.made: list[tuple[int, Trial, Trial]] = []  # number among the tried, the trial before, and it

    def proposal(self) -> Proposal:
        """Try all changes, the worst tensor's first."""
        start = self._start()
        if start is None:
            return self._nothing("the recipe of the model can't be carried out on this machine")
        self.runner.deadline.is_armed = True
        current = start
        for culprit in self.comparison.culprits:
            for change in culprit.changes:
                if self.runner.deadline.is_over:
                    break
                found = self._try(culprit.tensor, change, current)
                if found is not None:
                    current = found
                    break
        if current is start:
            current = self._together(start)
        return self._measured(start, current)

    def _start(self) -> Trial | None:
        """Return the recipe of the model, or where it is not known, the one that comes closest to float."""
        base = self.comparison.base
        choices = [Candidate("as recorded" if self.comparison.is_recorded else "as inspected", base, "")]
        own = find_target(base.target).static_recipe.steps
        if not self.comparison.is_recorded and base.is_static and own:
            choices.append(Candidate("as inspected, with steps", base.but(steps=own), ""))
        made = self.runner.try_all(choices)
        return max(made, key=_sqnr, default=None)

    def _try(self, tensor: str, change: Change, current: Trial) -> Trial | None:
        """Carry out a change on top of what was kept; gives the trial if it helps."""
        recipe = combined(current.candidate.recipe, [change])
        if recipe == current.candidate.recipe:
            return None
        made = self.runner.try_all([Candidate(f"{len(self.tried) + 1}", recipe, change.text)])
        before = _figures(current)
        if not made:
            error = self.runner.trials[-1].error or ""
            self.tried.append(TriedChange(tensor, change, False, before, None, reason=error))
            return None
        trial = made[0]
        low, high = _gain_interval(
            self._energies(self.runner.file(trial).name), self._energies(self.runner.file(current).name)
        )
        gain = _sqnr(trial) - _sqnr(current)
        reason = _objection(gain, low, (trial.bytes or 0) / max(current.bytes or 0, 1) - 1)
        kept = not reason
        self.made.append((len(self.tried), current, trial))
        self.tried.append(TriedChange(tensor, change, kept, before, _figures(trial), (low, high), reason))
        return trial if kept else None

    def _together(self, start: Trial) -> Trial:
        """Return all changes at once, where no change helps alone."""
        changes = [culprit.changes[0] for culprit in self.comparison.culprits if culprit.changes]
        if len(changes) < 2 or self.runner.deadline.is_over:
            return start
        every = Change(
            "all of these together",
            tuple(override for change in changes for override in change.overrides),
            tuple(node for change in changes for node in change.exclude),
        )
        return self._try("", every, start) or start

    def _measured(self, start: Trial, best: Trial) -> Proposal:
        """Time what is proposed beside the model as it is, and put the lines together."""
        gain = _gain_interval(self._energies(self.runner.file(best).name), self.given_energies)
        beats_given = _sqnr(best) - self.given.sqnr_db >= MIN_GAIN_DB and gain[0] > 0
        is_better = beats_given or (self.comparison.is_recorded and best is not start)
        timed = [start, *(trial for number, _, trial in self.made if self.tried[number].kept)]
        if is_better:
            self.runner.deadline.is_armed = False  # what is proposed is timed in any case
            self.runner.measure(timed, _SECONDS)
        for number, before, after in self.made:
            self.tried[number] = replace(
                self.tried[number],
                before=_figures(self.runner.now(before)),
                after=_figures(self.runner.now(after)),
            )
        return Proposal(
            best.candidate.recipe,
            is_better,
            self.given,
            _figures(self.runner.now(start)),
            _figures(self.runner.now(best)),
            tuple(self.tried),
            self.runner.split.unseen,
            self.comparison.is_recorded,
            self.runner.split.notes,
        )

    def _nothing(self, why: str) -> Proposal:
        base = self.comparison.base
        same, recorded = (self.given,) * 3, self.comparison.is_recorded
        return Proposal(base, False, *same, (), self.runner.split.unseen, recorded, (why,))

    def _energies(self, file: str) -> Energies:
        """Return the energies of the outputs and of their errors, in each sample that was held back."""
        count = range(len(self.runner.split.held))
        with self.runner.reference.job.open(self.runner.threads) as judge:
            sums = [judge((file, number)) for number in count]
        return (
            np.array([[tally.signal for tally in row] for row in sums], np.float64),
            np.array([[tally.noise for tally in row] for row in sums], np.float64),
        )


def _objection(gain: float, low: float, growth: float) -> str:
    """Return why a change is not kept; empty where it is."""
    if gain < MIN_GAIN_DB:
        return "it does not help"
    if low <= 0:
        return "its gain may be chance"
    if gain < MIN_GAIN_DB + _DB_PER_DOUBLING * growth:
        return "its gain is not worth the bytes"
    return ""


def _sqnr(trial: Trial) -> float:
    return trial.sqnr_db if trial.sqnr_db is not None else -np.inf


def _figures(trial: Trial) -> Figures:
    return Figures(_sqnr(trial), trial.bytes or 0, trial.speed)


def _decibels(energies: Energies) -> float:
    signal, noise = (part.sum(axis=0) for part in energies)
    return float(
        np.min(10 * np.log10(np.maximum(signal, 1e-300) / np.maximum(noise, 1e-300)), initial=np.inf)
    )


def _gain_interval(after: Energies, before: Energies) -> tuple[float, float]:
    """Return the 95 % interval of a gain in dB, the same draws for both."""
    low, high = np.percentile(sqnr_draws(*after) - sqnr_draws(*before), [2.5, 97.5])
    return float(low), float(high)
