"""The search: try several ways, measure them, choose the best.

::

    data ─┬─ most of it ──► calibrate once ──► trials ──► fidelity ──► speed ──► what hurts or does not pay
          └─ held back ─────────────────────────────────────┘                    stays float, tried again
                                                                                             │
                                                            the best ◄── finalists timed again ◄──┘

What needs no calibration is tried first. The first usable result is written at once, and replaced where a
better one is found: whatever ends the search early, the time limit or Ctrl-C, there is a result. What costs
little comes first, and a trial that could not be chosen even if it were exact is not made.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.algorithms.layers.score_layers import score_layers
from octavo.algorithms.steps import Subject
from octavo.core.recipe import Recipe
from octavo.errors import OctavoError
from octavo.pipeline import Destination
from octavo.tuning import choice
from octavo.tuning.ahead import FINALISTS, FIRST_LOOK, WORTH_TRYING, Ahead
from octavo.tuning.candidates import (
    DISTILL,
    EQUALIZE,
    Candidate,
    compressed_round,
    distilled,
    dynamic_round,
    groups,
    is_restricted,
    language_round,
    mixed_round,
    repaired,
    stepped_round,
    with_rest_compressed,
    without_compressed,
    without_first,
    without_groups,
    without_layers,
    without_start,
)
from octavo.tuning.deadline import OutOfTime
from octavo.tuning.forecast import UNSURE, Work
from octavo.tuning.grow import Growth
from octavo.tuning.requirements import ALIKE, Requirements
from octavo.tuning.runner import TrialRunner
from octavo.tuning.sensitivity import Layer
from octavo.tuning.trial import Trial

WEAK_DB = 18.0  # a layer with a smaller signal to noise ratio of its own is a candidate for float
WEAK_MOST = 4  # layers that stay float where nothing is required
WORTH_COMPRESSING = 0.05  # of the float bytes that compressed weights save, at least


class Search:
    """The rounds of trials, in order, and the best result so far."""

    def __init__(
        self,
        runner: TrialRunner,
        requirements: Requirements,
        base: Recipe,
        seconds: float,
        thorough: bool,
        destination: Destination,
        *,
        is_free: bool,
    ) -> None:
        self.runner, self.requirements, self.base, self.seconds = runner, requirements, base, seconds
        self.thorough, self.destination, self.is_free = thorough, destination, is_free
        self.layers: tuple[Layer, ...] = ()  # what the layers of the best static trial lose
        self.best: Trial | None = None  # so far, of those that meet the requirements
        self.quick: list[Candidate] | None = None  # those that are made in no time, once they are known
        self.ahead = Ahead(self)

    def run(self) -> None:
        """Run all trials."""
        runner = self.runner
        self.begin("dynamic")
        without_data = runner.try_all(
            [self._compressing(one) for one in dynamic_round(runner.target, self.base)]
        )
        self._look(without_data)
        if runner.reference.language is not None and self.is_free:
            self._try_language()
            return
        self.begin("static")
        try:
            plain = self._static()
        except OutOfTime:
            return
        first = runner.try_all([plain] if plain is not None else [])
        if self.best is None:
            self._look(first)
        self.quick = self._quick_round(first)
        self.begin("quick")
        self._try_quick([*first, *without_data])
        self._try_steps()
        self.begin("layers in float")
        start = self.start(steps=True)
        if start is not None and (self.thorough or not self.is_close()):
            self.layers = self._layers()
            self._keep_float(start, self.layers)
        self.begin("compressed")
        self._compress()
        self.begin("distilled")
        self._distill()
        self.begin("finals")
        self._finals()
        self._distill()

    def begin(self, stage: str) -> None:
        """Take note of a stage that begins, and of what is ahead as far as the trials tell by now."""
        self.ahead.begin(stage)

    def _try_language(self) -> None:
        """Ways of few bits for a language model, each timed as it is made; then those in question once more.

        A static int8 model of one is no faster than a dynamic one and further from float.
        """
        runner = self.runner
        candidates = language_round(
            runner.target,
            self.base,
            self.requirements.optimize,
            has_data=runner.split.calibration is not None,
            thorough=self.thorough,
        )
        one = Work(made=1, timed=1, seconds=self.seconds / 2)
        for number, candidate in enumerate(candidates, 1):
            last = self.ahead.final_works(UNSURE)
            runner.forecast.begin(one, [*[one] * (len(candidates) - number), *last])
            self._time(runner.try_all([candidate]))
            self._keep_best()
        self._compress()
        self._finals()

    def _look(self, tried: Sequence[Trial]) -> None:
        """Time trials for a moment, so that one of them can be written and the search can be stopped."""
        self.runner.measure(tried, min(FIRST_LOOK, self.seconds))
        self._keep_best()

    def _quick_round(self, first: Sequence[Trial]) -> list[Candidate]:
        """What is made in no time: the first layer in float; linear layers at run time beside all else."""
        quick: list[Candidate] = []
        for plain in first:
            if plain.result is not None and plain.candidate.static:
                quick += self._starts_float(plain)
                quick += mixed_round(plain.candidate, plain.result.plan)
        return quick

    def _try_quick(self, first: Sequence[Trial]) -> None:
        runner = self.runner
        tried = [*first, *runner.try_all(self.quick or [])]
        tried += runner.try_all(self._uncompressed(tried))
        runner.measure(tried, self.seconds / 2)
        self._keep_best()

    def _starts_float(self, plain: Trial) -> list[Candidate]:
        if plain.result is None:
            return []
        return [
            self._compressing(one)
            for one in without_start(plain.candidate, plain.result.plan, plain.result.model)
        ]

    def _try_steps(self) -> None:
        """Steps on top of the static way that is best without further ones."""
        start = self.start(steps=True, mixed=False)
        if start is None or start.result is None or not start.result.plan.nodes:
            return
        for candidate in stepped_round(start.candidate, start.result.plan):
            if self.could_gain(start):
                self._try_step(candidate)
        best = self.start(steps=True, mixed=False) or start
        last = repaired(start.candidate, best.candidate)
        does_more = EQUALIZE in last.recipe.steps
        if self.could_gain(start) and (does_more or self._could_gain_by_rounding(start, best)):
            self._try_step(last)

    def _try_step(self, candidate: Candidate) -> None:
        self.begin("steps")
        self._time(self.runner.try_all([candidate]))
        self._keep_best()

    def could_gain(self, start: Trial) -> bool:
        """Whether a static trial would be chosen, and by how much, if steps made it exact."""
        runner, requirements = self.runner, self.requirements
        if self.thorough:
            return True
        plain = runner.now(start)
        if requirements.settles_fidelity and requirements.unfaithful(plain) is None:
            return False
        return choice.could_win(plain, runner.trials, requirements, runner.unchanged, by=WORTH_TRYING)

    def _could_gain_by_rounding(self, start: Trial, best: Trial) -> bool:
        """Whether the best trial would win, and by how much, if it lost nothing by rounding its weights.

        What its weights lose is measured with activations that are exact within the widest ranges: what is
        cut off does not count.
        """
        runner, requirements = self.runner, self.requirements
        if self.thorough or requirements.settles_fidelity:
            return True
        recipe = best.candidate.recipe
        widest = recipe.but(activations=start.candidate.recipe.activations)
        measured = next((one for one in runner.trials if one.candidate.recipe == widest), best)
        weights = runner.fidelity_of_weights(measured if measured.error is None else best)
        if weights is None:
            return True
        hoped = choice.with_exact_weights(runner.now(best), weights)
        if requirements.unfaithful(hoped) is not None:
            return False
        kept = choice.best_so_far(runner.trials, requirements, runner.unchanged)
        return kept is None or (
            choice.value(hoped, requirements) > choice.value(kept, requirements) + WORTH_TRYING
        )

    def _time(self, tried: Sequence[Trial]) -> None:
        """Time trials whose kernels were not timed before."""
        self.runner.measure(self.runner.untimed(tried), self.seconds / 2)

    def _keep_best(self) -> None:
        """Write the first result that meets the requirements; it is there if the search is stopped."""
        runner = self.runner
        runner.deadline.is_armed = runner.deadline.is_armed or bool(
            [trial for trial in runner.trials if trial.error is None and trial.speed is not None]
        )
        found = choice.best_so_far(runner.trials, self.requirements, runner.unchanged)
        if found is not None and self.best is None:
            self.write(found)
        self.best = found or self.best
        ends_sooner = self.is_close() and not self.thorough
        runner.deadline.is_kept = ends_sooner and runner.reference.language is None

    def write(self, trial: Trial) -> None:
        """Write a trial's model to where the result goes."""
        to = self.destination
        if to.path is not None and trial.result is not None:
            trial.result.save(to.path, external_data=to.external_data)

    def _is_kept(self) -> bool:
        """Whether a trial meets the requirements and is faster than float."""
        runner = self.runner
        found = choice.best_so_far(runner.trials, self.requirements, runner.unchanged)
        return found is not None and choice.is_faster(found, self.requirements)

    def is_close(self) -> bool:
        """Whether a trial that meets the requirements is close in decibels as well."""
        runner = self.runner
        found = choice.best_so_far(runner.trials, self.requirements, runner.unchanged)
        return (
            found is not None
            and choice.is_faster(found, self.requirements)
            and self.requirements.is_close(found)
        )

    def _compressing(self, candidate: Candidate) -> Candidate:
        """A candidate with the weights that it leaves in float compressed, where that saves enough."""
        compressing = with_rest_compressed(candidate)
        return compressing if self._saves(compressing) else candidate

    def _saves(self, candidate: Candidate) -> bool:
        """Whether weights that a candidate compresses save enough of the file."""
        if is_restricted(self.base):
            return False
        try:
            plan = self.runner.plan(candidate.recipe)
        except OctavoError:
            return False
        saved = sum(one.saves for one in plan.compressed.values())
        return saved > 0 and saved >= WORTH_COMPRESSING * self.runner.float_bytes

    def _uncompressed(self, tried: Sequence[Trial]) -> list[Candidate]:
        """What compressing weights may have taken too far from float, without that."""
        far = [trial for trial in tried if self.requirements.unfaithful(trial) is not None]
        return [without_compressed(t.candidate) for t in far if t.candidate.recipe.compressed is not None]

    def _compress(self) -> None:
        """The float model with compressed weights, where nothing else is worth more than that could be."""
        runner = self.runner
        if choice.compressed_could_win(runner.trials, self.requirements, runner.unchanged):
            more = [one for one in compressed_round(runner.target, self.base) if self._saves(one)]
            runner.measure(runner.try_all(more), self.seconds / 2)
            self._keep_best()

    def _static(self) -> Candidate | None:
        """The static candidate without steps, calibrated for."""
        if self.runner.split.calibration is None or not self.base.is_static:
            return None
        plain = self._compressing(Candidate("static", self.base, "ranges from calibration"))
        plan = self.runner.plan(plain.recipe)
        if plan.needs():
            self.runner.calibrate(plan)
        return plain

    def start(self, *, steps: bool, mixed: bool = True) -> Trial | None:
        """The best static trial; without steps, the best of those that are cheap to make again."""
        static = [t for t in self.runner.trials if t.error is None and t.candidate.static]
        found = [
            trial
            for trial in static
            if (steps or not trial.candidate.recipe.steps)
            and (mixed or not trial.candidate.recipe.dynamic_nodes)
        ]
        return max(found, key=lambda trial: choice.value(trial, self.requirements), default=None)

    def _layers(self) -> tuple[Layer, ...]:
        """Return layers of a trial without steps: those that shift scales leave no float tensor to feed."""
        plain = self.start(steps=False)
        try:
            return self.runner.layers(plain) if plain is not None else ()
        except (OctavoError, OutOfTime):
            return ()

    def _keep_float(self, start: Trial, layers: tuple[Layer, ...]) -> None:
        """Leave float what hurts, the weakest layers and the first ones, and what does not pay."""
        runner = self.runner
        hurt: list[Candidate] = []
        if start.result is not None and start.candidate.recipe.exclude == self.base.exclude:
            first = without_first(start.candidate, start.result.plan, start.result.model)
            hurt += [self._compressing(one) for one in first]
        weak = [layer.node for layer in layers if layer.sqnr_db < WEAK_DB][:WEAK_MOST]
        if weak:
            hurt.append(without_layers(start.candidate, weak))
        fresh = runner.try_all(hurt)
        fresh += runner.try_all(self._uncompressed(fresh))
        if self.thorough or not self._is_kept():
            fresh += runner.try_all(self._unpaid())
        runner.measure(fresh, self.seconds / 2)
        self._keep_best()
        start = self.start(steps=True) or start
        float_already = start.candidate.recipe.exclude
        self._grow(Growth(start, [one for one in layers if one.node not in float_already], self.requirements))

    def _unpaid(self) -> list[Candidate]:
        """Candidates for leaving kinds of operators float because that is faster, found by timing alone."""
        runner, plain = self.runner, self.start(steps=False)
        if plain is None or plain.result is None:
            return []
        kinds = {g.words: g for g in groups(plain.result.plan, runner.target)}
        left = {words: without_groups(plain.candidate, [group]) for words, group in kinds.items()}
        tried = runner.try_all(list(left.values()))
        runner.measure([plain, *tried], self.seconds / 2)
        was = runner.now(plain)
        faster = {t.name for t in map(runner.now, tried) if not choice.alike(was, t)}
        unpaid = [kinds[words] for words, candidate in left.items() if candidate.name in faster]
        start = self.start(steps=True)
        if not unpaid or start is None:
            return []
        left_out = frozenset(name for group in unpaid for name in group.nodes)
        products = {
            n for n, node in plain.result.plan.nodes.items() if node.op_type in runner.target.placement.linear
        }
        new = start.candidate.recipe.steps or len(unpaid) > 1
        return [without_groups(start.candidate, unpaid)] if new and products - left_out else []

    def _grow(self, growth: Growth) -> None:
        """While nothing faster than float is close to it, keep more layers float: few first, half at most."""
        runner, requirements = self.runner, self.requirements
        count = first = growth.first
        fast = choice.is_faster(runner.now(growth.start), requirements)
        while count < len(growth.layers) and not runner.deadline.is_over:
            faithful = any(requirements.unfaithful(trial) is None for trial in runner.trials)
            if self.is_close() or (faithful and not fast):
                break
            tried = self._try_with_float(growth.candidate(count))
            if not all(choice.is_small(trial) for trial in tried):
                return
            if faithful and not all(growth.may_get_there(trial, count) for trial in tried):
                return
            count *= 2
        fewer = first // 2 if count == 2 * first else 0  # they may do where the first ones did
        while fewer and self.is_close() and not runner.deadline.is_over:
            tried = self._try_with_float(growth.candidate(fewer))
            fewer = fewer // 2 if any(requirements.is_close(trial) for trial in tried) else 0

    def _try_with_float(self, candidate: Candidate) -> list[Trial]:
        """Try layers in float that were not tried before; time them where that may matter."""
        if any(trial.name == candidate.name for trial in self.runner.trials):
            return []
        tried = self.runner.try_all([candidate])
        close = [one for one in tried if self.requirements.unfaithful(one) is None]
        self.runner.measure(close, self.seconds / 4)
        return tried

    def _finals(self) -> None:
        """Time those again that come into question, unless their speeds settle the choice as they are."""
        good = self.finalists()
        if len({trial.speed for trial in good}) > 1 and not self.is_settled():
            self.runner.measure(good, self.seconds)

    def is_settled(self) -> bool:
        """Whether measuring speeds in further sessions would not change what is chosen."""
        runner = self.runner
        return choice.is_settled(runner.trials, self.requirements, runner.unchanged, ALIKE / 2)

    def _distill(self) -> None:
        """Fit the last layers of the trial to be chosen to float's probabilities."""
        if self.best is None:
            return
        best, met, _ = choice.pick(self.runner.trials, self.requirements, self.runner.unchanged)
        made = {trial.candidate.refines for trial in self.runner.trials}
        if met and best.candidate.static and best.name not in made and self.has_scores(best):
            self._time(self.runner.try_all([distilled(best.candidate)]))

    def has_scores(self, trial: Trial) -> bool:
        """Whether a trial has layers whose scores the model returns as probabilities, to be fitted."""
        if trial.result is None or DISTILL in trial.candidate.recipe.steps:
            return False
        subject = Subject(self.runner.prepared.model, trial.candidate.recipe, trial.result.plan)
        return any(score_layers(subject))

    def finalists(self) -> list[Trial]:
        """Return the trials that come into question, the best first."""
        requirements = self.requirements
        good = [one for one in self.runner.trials if requirements.unfaithful(one) is None and one.speed]
        return sorted(good, key=lambda trial: -choice.value(trial, requirements))[:FINALISTS]
