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
from dataclasses import replace

from octavo.core.recipe import Recipe
from octavo.errors import OctavoError
from octavo.pipeline import Destination
from octavo.tuning import choice
from octavo.tuning.candidates import (
    Candidate,
    compressed_round,
    dynamic_round,
    groups,
    is_restricted,
    language_round,
    mixed_round,
    stepped_round,
    with_rest_compressed,
    without_compressed,
    without_first,
    without_groups,
    without_layers,
    without_start,
)
from octavo.tuning.deadline import OutOfTime
from octavo.tuning.forecast import LIKELY, UNLIKELY, UNSURE, Work, weight_products
from octavo.tuning.requirements import Requirements
from octavo.tuning.runner import TrialRunner
from octavo.tuning.sensitivity import Layer
from octavo.tuning.trial import Trial

WEAK_DB = 18.0  # a layer with a smaller signal to noise ratio of its own is a candidate for float
WEAK_MOST = 4  # layers that stay float where nothing is required
FINALISTS = 3  # trials that are timed again
WORTH_COMPRESSING = 0.05  # of the float bytes that compressed weights save, at least
WORTH_TRYING = 0.05  # of ln(speed): what a step could gain at most, for its trial to be made
FIRST_LOOK = 0.5  # seconds that the first result is timed, so that it can be written


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
        self._products: float | None = None  # of the weights of quantized layers

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
        start = self._start(steps=True)
        if start is not None and (self.thorough or not self._is_close()):
            self.layers = self._layers()
            self._keep_float(start, self.layers)
        self.begin("compressed")
        self._compress()
        self.begin("finals")
        self._finals()

    def begin(self, stage: str) -> None:
        """Take note of a stage that begins, and of what is ahead as far as the trials tell by now."""
        ahead = self._works()
        stages = list(ahead)
        later = [work for name in stages[stages.index(stage) + 1 :] for work in ahead[name]]
        present = ahead[stage]
        is_known = not self._takes_data or any(one.candidate.static for one in self.runner.trials)
        self.runner.forecast.begin(
            replace(present[0], chance=1.0) if present else Work(), [*present[1:], *later], is_known=is_known
        )

    @property
    def _takes_data(self) -> bool:
        """Whether static trials are made; what comes after the first one depends on it."""
        return self.runner.split.calibration is not None and self.base.is_static

    def _works(self) -> dict[str, list[Work]]:
        """Return what each stage takes, in order."""
        half = self.seconds / 2
        start = self._start(steps=False, mixed=False) or self._start(steps=True, mixed=False)
        untimed = start is not None and start.speed is None  # its fidelity tells alone
        steps: list[Work] = []
        if start is not None and self._takes_data and (untimed or self._could_gain(start)):
            steps = self._step_works(start, UNSURE if untimed else LIKELY)
        grown = Work(made=3, timed=3, seconds=half)
        if not self.thorough:
            grown = replace(grown, chance=UNSURE if steps else 1.0)
        quick = 1 if self.quick is None else len(self.quick)
        close = self.requirements.is_close(start) if start is not None and untimed else self._is_close()
        return {
            "float": [],
            "dynamic": [Work(made=1, timed=2, seconds=FIRST_LOOK)],
            "static": [Work(passes=1, made=1)] if self._takes_data else [],
            "quick": [Work(made=quick, timed=quick + 2, seconds=half)],
            "steps": steps,
            "layers in float": [grown, grown] if self.thorough else [] if start is None or close else [grown],
            "compressed": [],
            "finals": self._final_works(UNLIKELY if steps else LIKELY),
        }

    def _final_works(self, chance: float) -> list[Work]:
        """Return the last timing, which is done where the finalists differ in speed."""
        good = self._finalists()
        if len(good) > 1 and len({trial.speed for trial in good}) == 1:
            return []
        timed = min(FINALISTS, max(2, len(good))) if good else FINALISTS
        return [Work(timed=timed, seconds=self.seconds, chance=chance)]

    def _step_works(self, start: Trial, chance: float) -> list[Work]:
        """Return what the candidates with steps take that are not made yet; what others observed is known."""
        if start.result is None:
            return []
        plan = start.result.plan
        if self._products is None:
            self._products = weight_products(self.runner.prepared.model, plan)
        made = {trial.name for trial in self.runner.trials}
        known: set[str] = set()
        works = []
        for one in stepped_round(start.candidate, plan):
            fresh = [step for step in one.recipe.steps if step not in known]
            known.update(fresh)
            if one.name not in made:
                works.append(replace(Work.of_steps(fresh, self._products), chance=chance))
        return works

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
            last = self._final_works(UNSURE)
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
        start = self._start(steps=True, mixed=False)
        if start is None or start.result is None or not start.result.plan.nodes:
            return
        for candidate in stepped_round(start.candidate, start.result.plan):
            if self._could_gain(start):
                self.begin("steps")
                self._time(self.runner.try_all([candidate]))
                self._keep_best()

    def _could_gain(self, start: Trial) -> bool:
        """Whether a static trial would be chosen, and by how much, if steps made it exact."""
        runner, requirements = self.runner, self.requirements
        if self.thorough:
            return True
        plain = runner.now(start)
        if requirements.settles_fidelity and requirements.unfaithful(plain) is None:
            return False
        return choice.could_win(plain, runner.trials, requirements, runner.unchanged, by=WORTH_TRYING)

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
        runner.deadline.is_kept = self._is_close() and not self.thorough

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

    def _is_close(self) -> bool:
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

    def _start(self, *, steps: bool, mixed: bool = True) -> Trial | None:
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
        plain = self._start(steps=False)
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
        start = self._start(steps=True) or start
        float_already = start.candidate.recipe.exclude
        self._grow(start, [layer.node for layer in layers if layer.node not in float_already])

    def _unpaid(self) -> list[Candidate]:
        """Candidates for leaving kinds of operators float because that is faster, found by timing alone."""
        runner, plain = self.runner, self._start(steps=False)
        if plain is None or plain.result is None:
            return []
        kinds = {g.words: g for g in groups(plain.result.plan, runner.target)}
        left = {words: without_groups(plain.candidate, [group]) for words, group in kinds.items()}
        tried = runner.try_all(list(left.values()))
        runner.measure([plain, *tried], self.seconds / 2)
        was = runner.now(plain)
        faster = {t.name for t in map(runner.now, tried) if not choice.alike(was, t)}
        unpaid = [kinds[words] for words, candidate in left.items() if candidate.name in faster]
        start = self._start(steps=True)
        if not unpaid or start is None:
            return []
        left_out = frozenset(name for group in unpaid for name in group.nodes)
        products = {
            n for n, node in plain.result.plan.nodes.items() if node.op_type in runner.target.placement.linear
        }
        new = start.candidate.recipe.steps or len(unpaid) > 1
        return [without_groups(start.candidate, unpaid)] if new and products - left_out else []

    def _grow(self, start: Trial, order: Sequence[str]) -> None:
        """While nothing faster than float is close to it, keep more layers float: few first, half at most."""
        runner, requirements, count = self.runner, self.requirements, 1
        fast = choice.is_faster(runner.now(start), requirements)
        while count < len(order) and not runner.deadline.is_over:
            faithful = any(requirements.unfaithful(trial) is None for trial in runner.trials)
            if self._is_close() or (faithful and not fast):
                return
            candidate = without_layers(start.candidate, order[:count])
            if all(trial.name != candidate.name for trial in runner.trials):
                tried = runner.try_all([candidate])
                runner.measure(
                    [one for one in tried if requirements.unfaithful(one) is None], self.seconds / 4
                )
                if not all(choice.is_small(trial) for trial in tried):
                    return
            count *= 2

    def _finals(self) -> None:
        """Time those again that come into question, where they differ in speed at all."""
        good = self._finalists()
        if len({trial.speed for trial in good}) > 1:
            self.runner.measure(good, self.seconds)

    def _finalists(self) -> list[Trial]:
        """Return the trials that come into question, the best first."""
        requirements = self.requirements
        good = [one for one in self.runner.trials if requirements.unfaithful(one) is None and one.speed]
        return sorted(good, key=lambda trial: -choice.value(trial, requirements))[:FINALISTS]
