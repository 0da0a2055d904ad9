"""What a search has ahead of it at each stage, as far as the trials tell, for the estimate of its time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.tuning import choice
from octavo.tuning.candidates import DISTILL, repaired, stepped_round
from octavo.tuning.forecast import LIKELY, UNLIKELY, UNSURE, Work, weight_products
from octavo.tuning.trial import Trial

if TYPE_CHECKING:
    from octavo.tuning.search import Search

WORTH_TRYING = 0.05  # of ln(speed): what a step could gain at most, for its trial to be made
FINALISTS = 3  # trials that are timed again
FIRST_LOOK = 0.5  # seconds that the first result is timed, so that it can be written


class Ahead:
    """The work that a search has ahead of it."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self._products: float | None = None  # of the weights of quantized layers

    def begin(self, stage: str) -> None:
        """Take note of a stage that begins, and of what is ahead as far as the trials tell by now."""
        search, ahead = self.search, self.works()
        stages = list(ahead)
        later = [work for name in stages[stages.index(stage) + 1 :] for work in ahead[name]]
        present = ahead[stage]
        is_known = not self._takes_data or any(one.candidate.static for one in search.runner.trials)
        search.runner.forecast.begin(
            replace(present[0], chance=1.0) if present else Work(), [*present[1:], *later], is_known=is_known
        )

    @property
    def _takes_data(self) -> bool:
        """Whether static trials are made; what comes after the first one depends on it."""
        return self.search.runner.split.calibration is not None and self.search.base.is_static

    def works(self) -> dict[str, list[Work]]:
        """Return what each stage takes, in order."""
        search, half = self.search, self.search.seconds / 2
        start = search.start(steps=False, mixed=False) or search.start(steps=True, mixed=False)
        untimed = start is not None and start.speed is None  # its fidelity tells alone
        steps: list[Work] = []
        if start is not None and self._takes_data and self._may_gain(start):
            steps = self._step_works(start, UNSURE if untimed else LIKELY)
        grown = Work(made=3, timed=3, seconds=half)
        if not search.thorough:
            grown = replace(grown, chance=UNSURE if steps else 1.0)
        quick = 1 if search.quick is None else len(search.quick)
        close = search.requirements.is_close(start) if start is not None and untimed else search.is_close()
        return {
            "float": [],
            "dynamic": [Work(made=1, timed=2, seconds=FIRST_LOOK)],
            "static": [Work(passes=1, made=1)] if self._takes_data else [],
            "quick": [Work(made=quick, timed=quick + 2, seconds=half)],
            "steps": steps,
            "layers in float": [grown] * (2 if search.thorough else start is not None and not close),
            "compressed": [],
            "distilled": self._distill_works(start),
            "finals": self.final_works(UNLIKELY if steps else UNSURE),
        }

    def _may_gain(self, start: Trial) -> bool:
        """Whether steps are tried on a static trial; before it is timed, whether it loses enough for it."""
        search, requirements = self.search, self.search.requirements
        if start.speed is not None or search.thorough:
            return search.could_gain(start)
        is_enough = requirements.settles_fidelity and requirements.unfaithful(start) is None
        return not is_enough and choice.lost(start, requirements) > WORTH_TRYING

    def final_works(self, chance: float) -> list[Work]:
        """Return the last timing, which is done where the finalists differ in speed."""
        search, good = self.search, self.search.finalists()
        if len(good) > 1 and len({trial.speed for trial in good}) == 1:
            return []
        if len(good) > 1 and chance > UNLIKELY:
            chance = UNLIKELY if search.is_settled() else LIKELY
        timed = min(FINALISTS, max(2, len(good))) if good else FINALISTS
        return [Work(timed=timed, seconds=search.seconds, chance=chance)]

    def _distill_works(self, start: Trial | None) -> list[Work]:
        if start is None or not start.candidate.static or not self.search.has_scores(start):
            return []
        return [Work.of_steps((DISTILL,), 0.0)]

    def _step_works(self, start: Trial, chance: float) -> list[Work]:
        """Return what the candidates with steps take that are not made yet; what others observed is known."""
        if start.result is None:
            return []
        plan = start.result.plan
        if self._products is None:
            self._products = weight_products(self.search.runner.prepared.model, plan)
        made = {trial.name for trial in self.search.runner.trials}
        known: set[str] = set()
        works = []
        last = repaired(start.candidate, start.candidate)
        for one in (*stepped_round(start.candidate, plan), last):
            fresh = [step for step in one.recipe.steps if step not in known]
            known.update(fresh)
            likely = chance if one is not last or self.search.thorough else min(chance, UNSURE)
            if one.name not in made:
                works.append(replace(Work.of_steps(fresh, self._products), chance=likely))
        return works
