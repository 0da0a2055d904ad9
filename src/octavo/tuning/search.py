"""Try, measure, choose.

::

    data ─┬─ most of it ──► calibrate once ──► trials ──► fidelity ──► speed ──► what hurts or does not pay
          └─ held back ─────────────────────────────────────┘                    stays float, tried again
                                                                                             │
                                                            the best ◄── finalists timed again ◄──┘
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo import api
from octavo.calibration.engines import Engine, cores, engine_of, held
from octavo.core import scratch
from octavo.core.recipe import Pattern, Recipe
from octavo.errors import OctavoError, RecipeError
from octavo.measuring import Progress, silent
from octavo.model import io, query
from octavo.result import check_output
from octavo.targets import Target
from octavo.targets import target as find_target
from octavo.tuning import choice
from octavo.tuning.candidates import (
    Candidate,
    dynamic_round,
    groups,
    is_restricted,
    mixed_round,
    static_round,
    stored_round,
    with_stored,
    without_first,
    without_groups,
    without_layers,
    without_stored,
)
from octavo.tuning.exam import Exam, Examiner
from octavo.tuning.sensitivity import Layer
from octavo.tuning.split import Split
from octavo.tuning.trial import Demands, Trial, Tuned
from octavo.tuning.workshop import Workshop

WEAK_DB = 18.0  # a layer with a smaller signal to noise ratio of its own is a candidate for float
WEAK_MOST = 4  # layers that stay float where nothing is demanded
FINALISTS = 3  # trials that are timed again
WORTH = 0.05  # of the float bytes that stored weights save, at least, beside a way of quantizing
TIME_LIMIT = 180.0  # seconds after which no further trial is started, where nothing else is said


def tune(
    model: io.ModelSource,
    data: Any = None,
    *,
    target: str | Target = "ort-cpu",
    recipe: Recipe | str | Path | None = None,
    output: str | Path | None = None,
    demands: Demands | None = None,
    exam: Exam | None = None,
    include: Sequence[Pattern] = (),
    exclude: Sequence[Pattern] = (),
    op_types: Sequence[str] | None = None,
    samples: int | None = None,
    threads: int | None = None,
    engine: Engine | str = "auto",
    workers: int | None = None,
    address: str | None = None,
    stride: int | None = None,
    histograms: bool = False,
    time_limit: float | None = TIME_LIMIT,
    seconds: float = 3.0,
    progress: Progress | None = None,
) -> Tuned:
    """Quantize a model in the way that measuring shows to be best.

    ``recipe`` is where all static candidates start; ``include``, ``exclude`` and ``op_types`` hold for every
    candidate. ``threads`` are those that the model will run with, as speed depends on them. ``demands`` say
    what the result has to meet, an ``exam`` the task that ``demands.max_drop`` is about. With ``output`` the
    best is written there, if it meets the demands. After ``time_limit`` seconds no further trial is started.
    """
    tell = progress if progress is not None else silent
    ends = time.monotonic() + time_limit if time_limit is not None else None
    wanted = demands if demands is not None else _usual(data)
    if wanted.max_drop is not None and exam is None:
        raise RecipeError("A largest drop is one of a task's figure; say which task, with its data.")
    loaded = io.load(model)
    query.refuse_unsupported(loaded)
    if output is not None:
        check_output(loaded, Path(output))
    chosen = find_target(target).at(threads if threads is not None else cores())
    base = _base(recipe, chosen, include, exclude, op_types)
    split = Split.of(data, loaded, samples)
    workers_ = engine_of(engine, workers, address, threads)
    with scratch.folder() as folder, held(workers_):
        shop = Workshop(model, split, chosen, Path(folder), workers_, threads, tell, ends, stride, histograms)
        shop.float_bytes = io.held_bytes(loaded)
        shop.samples = base.calibration_samples
        if exam is not None:
            shop.examiner = Examiner(exam, model, workers_, tell)
        layers = _Search(shop, wanted, base, seconds).run()
        best, met, reason = choice.pick(shop.trials, wanted)
        if output is not None and met and best.result is not None:
            best.result.save(output)
    return Tuned(
        tuple(shop.trials),
        best,
        met,
        reason,
        split.unseen,
        shop.float_bytes,
        wanted,
        layers,
        split.notes,
        threads,
    )


def _usual(data: Any) -> Demands:
    """Inputs that are made up say little about fidelity, and nothing is demanded of it there."""
    return Demands() if data is not None else Demands(min_sqnr=-math.inf)


def _base(
    recipe: Recipe | str | Path | None,
    target: Target,
    include: Sequence[Pattern],
    exclude: Sequence[Pattern],
    op_types: Sequence[str] | None,
) -> Recipe:
    start = target.static_recipe if recipe is None else recipe
    found = start if isinstance(start, Recipe) else Recipe.load(start)
    return found.but(
        include=(*found.include, *include),
        exclude=(*found.exclude, *exclude),
        op_types=tuple(op_types) if op_types is not None else found.op_types,
    )


class _Search:
    def __init__(self, shop: Workshop, demands: Demands, base: Recipe, seconds: float) -> None:
        self.shop, self.demands, self.base, self.seconds = shop, demands, base, seconds

    def run(self) -> tuple[Layer, ...]:
        """All trials; gives what the layers of the best static one lose."""
        shop, static = self.shop, self._static()
        tried = shop.try_all(static[:1])
        dynamic = dynamic_round(shop.target, self.base)
        more = [with_stored(one) if self._saves(with_stored(one)) else one for one in dynamic]
        plain = next((trial for trial in tried if trial.name == "static"), None)
        if plain is not None and plain.result is not None:
            more = [*mixed_round(plain.candidate, plain.result.plan), *more]
        tried += shop.try_all([*more, *static[1:]])  # the quick ones first: time may run out
        tried += shop.try_all(self._unstored(tried))
        shop.measure(tried, self.seconds / 2)
        start = self._start(steps=True)
        layers: tuple[Layer, ...] = ()
        if start is not None:
            layers = self._layers()
            self._keep_float(start, layers)
        self._store()
        self._finals()
        return layers

    def _saves(self, candidate: Candidate) -> bool:
        """Whether weights that a candidate stores save enough of the file."""
        if is_restricted(self.base):
            return False
        try:
            plan = api.plan(self.shop.model, candidate.recipe, target=self.shop.target)
        except OctavoError:
            return False
        saved = sum(one.saves for one in plan.stored.values())
        return saved > 0 and saved >= WORTH * self.shop.float_bytes

    def _unstored(self, tried: Sequence[Trial]) -> list[Candidate]:
        """What storing weights has taken too far from float, without that."""
        far = [trial for trial in tried if self.demands.unfaithful(trial) is not None]
        return [without_stored(t.candidate) for t in far if t.candidate.recipe.stored is not None]

    def _store(self) -> None:
        """Float itself with stored weights, where nothing else is worth more than that could be."""
        shop = self.shop
        if choice.stored_could_win(shop.trials, self.demands, shop.float_bytes):
            more = [one for one in stored_round(shop.target, self.base) if self._saves(one)]
            shop.measure(shop.try_all(more), self.seconds / 2)

    def _static(self) -> list[Candidate]:
        """The static candidates, calibrated for."""
        if self.shop.split.calibration is None or not self.base.is_static:
            return []
        plan = api.plan(self.shop.model, self.base, target=self.shop.target)
        if plan.needs():
            self.shop.calibrate(plan)
        return static_round(self.base, plan)[: None if plan.nodes else 1]

    def _start(self, *, steps: bool) -> Trial | None:
        """The best static trial; without steps, the best of those that are cheap to make again."""
        static = [t for t in self.shop.trials if t.error is None and t.candidate.static]
        found = [trial for trial in static if steps or not trial.candidate.recipe.steps]
        return max(found, key=lambda trial: choice.value(trial, self.demands), default=None)

    def _layers(self) -> tuple[Layer, ...]:
        """Of a trial without steps: those that shift scales between layers leave no float tensor to feed."""
        plain = self._start(steps=False)
        try:
            return self.shop.layers(plain) if plain is not None else ()
        except OctavoError:
            return ()

    def _keep_float(self, start: Trial, layers: tuple[Layer, ...]) -> None:
        """Leave float what hurts, the weakest layers and the first ones, and what does not pay."""
        shop = self.shop
        hurt: list[Candidate] = []
        if start.result is not None:
            first = without_first(start.candidate, start.result.plan, start.result.model)
            hurt += [with_stored(one) if self._saves(with_stored(one)) else one for one in first]
        weak = [layer.node for layer in layers if layer.sqnr_db < WEAK_DB][:WEAK_MOST]
        if weak:
            hurt.append(without_layers(start.candidate, weak))
        fresh = shop.try_all(hurt)
        fresh += shop.try_all(self._unstored(fresh))
        fresh += shop.try_all(self._unpaid())
        shop.measure(fresh, self.seconds / 2)
        self._grow(start, [layer.node for layer in layers])

    def _unpaid(self) -> list[Candidate]:
        """Candidates for leaving kinds of operators float because that is faster, found by timing alone."""
        shop, plain = self.shop, self._start(steps=False)
        if plain is None or plain.result is None:
            return []
        kinds = {g.words: g for g in groups(plain.result.plan, shop.target)}
        left = {words: without_groups(plain.candidate, [group]) for words, group in kinds.items()}
        tried = shop.try_all(list(left.values()))
        shop.measure([plain, *tried], self.seconds / 2)
        was = shop.now(plain)
        faster = {t.name for t in map(shop.now, tried) if not choice.alike(was, t)}
        unpaid = [kinds[words] for words, candidate in left.items() if candidate.name in faster]
        start = self._start(steps=True)
        if not unpaid or start is None:
            return []
        left_out = frozenset(name for group in unpaid for name in group.nodes)
        products = {n for n, node in plain.result.plan.nodes.items() if node.op_type in shop.target.products}
        new = start.candidate.recipe.steps or len(unpaid) > 1
        return [without_groups(start.candidate, unpaid)] if new and products - left_out else []

    def _grow(self, start: Trial, order: Sequence[str]) -> None:
        """While nothing is faithful enough, keep more layers float: the smallest set first."""
        shop, count = self.shop, 1
        while count < len(order) and not shop.is_over:
            if any(self.demands.unfaithful(trial) is None for trial in shop.trials):
                return
            candidate = without_layers(start.candidate, order[:count])
            if all(trial.name != candidate.name for trial in shop.trials):
                shop.measure(shop.try_all([candidate]), self.seconds / 4)
            count *= 2

    def _finals(self) -> None:
        """Time those again that come into question."""
        shop = self.shop
        good = [trial for trial in shop.trials if self.demands.unfaithful(trial) is None]
        good.sort(key=lambda trial: -choice.value(trial, self.demands))
        if len(good) > 1:
            shop.measure(good[:FINALISTS], self.seconds)
