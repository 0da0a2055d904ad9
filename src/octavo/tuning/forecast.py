"""An estimate of the remaining time of a search, from the time that similar work has taken so far.

::

    left = rest of the present work + Σ chance · work ahead
    work = pace · (passes · pass + made · (make + comparison + evaluation) + products / rate) + timing

A pass is one run of the calibration samples that records ranges; what steps observe is counted in such
passes, and what they compute in products of weights: N · K² of a layer with K inputs and N outputs. Until a
pass has been made, its time is derived from that of a run of the float model. All of this is processor time
at first. The pace is the time on the clock for each of these seconds: that of the search so far until models
have been made, then time taken by time predicted, where what was made last counts most. Timing takes as long
for each model as it took until intervals were narrow the last time, and a round of it as long as rounds took.

What depends on trials that are not judged yet has a chance. The bounds of the estimate are the time without
all that may be left out, where steps take few passes, and with all of it, where they take many. Where the
trials ahead are not known at all, nothing is told: no estimate is better than a wrong one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from octavo.core.plan import Plan
from octavo.core.progress import WHOLE_RUN, WHOLE_RUN_BOUNDS, Progress
from octavo.evaluation.timing.latency import MAX_TIME_FACTOR, MIN_ROUNDS, MIN_SECONDS
from octavo.model.graph import query
from octavo.ops import CONVOLUTIONS, MATRIX_PRODUCTS

TIMING = "time trials beside float"  # a phase that ends when the intervals are narrow
INTERVAL = 0.25  # seconds between two reports of the whole run
WINDOW = 30.0  # seconds over which it is seen how a limit counts the time
PASS_RUNS = 2.0  # runs of the float model that calibrating with one sample takes, before it is measured
MAKE_RUNS = 8.0  # of the float model: writing a model, loading and running it
MAKE_SECONDS = 0.3  # beside these, whatever the size of the model
TIMING_FACTOR = 1.0  # of the seconds given, after which intervals mostly tell
PRODUCT_RATE = 7e8  # of steps that go through the weights of a layer, in a second
STEP_BOUNDS = 0.6, 1.5  # times the passes of steps: what they take differs from model to model
LIKELY, UNSURE, UNLIKELY = 0.9, 0.5, 0.1  # chances of a work that may be left out
# Phases once all is observed, and once all is computed.
AFTER_PASSES = ("quantize", "clip", "rounding", "bias-correction", "distill", "verify")
AFTER_PRODUCTS = ("bias-correction", "distill", "verify")
LARGEST_CORRECTION = 5.0  # of the pace, by what work has taken so far
MEMORY = 0.5  # of what earlier work counts for the pace, when further work ends
TELLING = 0.25  # share of a phase after which its speed tells when it ends
OVERDUE = 0.25  # of the time that a phase has taken: what is left of one that should be over
# What a step takes: passes over the data, further models made, and the share of N · K² that it computes.
STEP_COSTS = {
    "smoothquant": (2.0, 0, 0.2),
    "equalize": (1.5, 0, 0.0),
    "clip": (2.0, 1, 0.0),
    "rounding": (8.0, 0, 1.0),
    "bias-correction": (0.2, 0, 0.0),
    "distill": (2.0, 0, 0.0),
}


@dataclass(frozen=True)
class Work:
    """A part of a search, counted."""

    passes: float = 0.0  # over the samples to calibrate with
    products: float = 0.0  # of weights
    made: int = 0  # models that are written and compared with float
    timed: int = 0  # models that are timed beside float
    seconds: float = 0.0  # that these are timed
    chance: float = 1.0  # that it is done at all

    @property
    def has_steps(self) -> bool:
        """Whether most of it is what steps observe and compute."""
        return self.passes > 1

    @classmethod
    def of_steps(cls, steps: Sequence[str], products: float) -> Work:
        """Return what a model made with some steps takes."""
        costs = [STEP_COSTS.get(step.partition(":")[0], (1.0, 1, 0.0)) for step in steps]
        passes, made, share = (sum(column) for column in zip(*costs, strict=True)) if costs else (0, 0, 0)
        return cls(passes, share * products, 1 + int(made))


def weight_products(model: ir.Model, plan: Plan) -> float:
    """Return N · K² of all quantized convolutions and matrix products: the work on their weights."""
    found = 0.0
    for node in query.nodes(model):
        weight = query.operand(node, 1)
        is_layer = node.op_type in (*MATRIX_PRODUCTS, *CONVOLUTIONS)
        if not is_layer or node.name not in plan.nodes or weight is None or weight.const_value is None:
            continue
        shape = weight.const_value.shape.numpy()
        if len(shape) > 1:
            inputs = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
            found += math.prod(shape) * inputs
    return found


@dataclass
class Forecast:
    """What a search does, has done and has ahead of it, as seconds."""

    tell: Progress
    samples: int  # that are calibrated with
    held: int  # that models are compared on
    run_seconds: float  # of processor time, of the float model on one sample
    slowdown: float = 1.0  # seconds on the clock for each of processor time, before models are made
    clock: Callable[[], float] = time.monotonic
    pass_seconds: float | None = None  # once measured
    evaluation_seconds: float = 0.0  # of one model on a task
    ahead: Sequence[Work] = ()
    taking_turns: int = 0  # models that are timed now, or were the last time; 0: not known
    # The seconds that the search may still take and has taken, as its limit counts them.
    most: Callable[[], float] = lambda: math.inf
    spent: Callable[[], float] = time.monotonic
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._work_began = self._phase_began = self._told = self.clock()
        self._work = Work()
        self._phase, self._done, self._total = "", 0, 0
        self._first = (self._phase_began, 0)  # when the first parts of the phase were done, and how many
        self._after_began = self._phase_began  # of the phases once all is observed, the first
        self._begun = 0  # models of the present work that are being made, or are made
        self._timed = 0.0  # seconds of timing in the present work
        self._until_precise: float | None = None  # seconds for each model until intervals were narrow
        self._round = max(self.run_seconds, MIN_SECONDS) * self.slowdown  # seconds of timing a model once
        self._taken, self._predicted = 0.0, 0.0  # seconds of making models, the last ones most
        self._is_known = False
        self._times = deque([(self.clock(), self.spent())])  # of the last reports

    def begin(self, work: Work, ahead: Sequence[Work], *, is_known: bool = True) -> None:
        """Take note that a part begins, of what comes after it, and whether all of that is known."""
        now = self.clock()
        self._end_phase(now)
        if self._timed:
            was_precise = self._timed < 0.9 * MAX_TIME_FACTOR * self._work.seconds
            self._until_precise = self._timed / (self._work.timed + 1) if was_precise else None
        predicted = self._making(self._work)
        if predicted:
            taken = now - self._work_began - self._timed - self._passing(self._work)
            self._taken = MEMORY * self._taken + max(taken, predicted / LARGEST_CORRECTION)
            self._predicted = MEMORY * self._predicted + predicted
        self._work, self.ahead, self._work_began, self._timed, self._begun = work, ahead, now, 0.0, 0
        self._is_known = is_known
        self._report()

    def progress(self, phase: str, done: int, total: int | None) -> None:
        """Pass on how far a phase is, and from time to time how far the whole run is."""
        now = self.clock()
        if phase != self._phase or done < self._done:
            was_after_passes = self._is_after_passes
            self._end_phase(now)
            self._phase = phase
            self._begun += phase.endswith(": quantize")
            if not was_after_passes or phase.endswith(": quantize"):
                self._after_began = now
        if done and not self._first[1]:
            self._first = (now, done)
        self._done, self._total = done, total or 0
        self.tell(phase, done, total)
        if now - self._told >= INTERVAL:
            self._report()

    @property
    def seconds_left(self) -> float:
        """Return the seconds that the search still takes."""
        return self._left(lambda work: work.chance)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the seconds without and with all work that may well be left out, and may well be done."""
        return (
            self._left(lambda work: STEP_BOUNDS[0] ** work.has_steps * (work.chance > UNSURE)),
            self._left(lambda work: STEP_BOUNDS[1] ** work.has_steps * (work.chance >= UNSURE)),
        )

    def _left(self, share: Callable[[Work], float]) -> float:
        """Return the seconds of the present work and of a share of each ahead."""
        is_observed = self._is_after_passes or self._phase == TIMING
        present = Work() if is_observed else replace(self._work, chance=1.0)
        left = share(present) * self._present_left(self.clock())
        return min(left + sum(share(one) * self._seconds(one) for one in self.ahead), self._limit)

    @property
    def _limit(self) -> float:
        """Return the seconds on the clock until the limit ends the search, as fast as it counts now."""
        most, (then, before) = max(self.most(), 0.0), self._times[0]
        passed, counted = self.clock() - then, self.spent() - before
        return most if counted <= 0 or passed <= counted else most * passed / counted

    def _present_left(self, now: float) -> float:
        """Return the seconds of the present work: what is not over by its phase, and has not passed."""
        if self._phase == TIMING and self._total and self._done:  # it ends a work
            taken, left = now - self._phase_began, self._phase_left(now)
            usual = max(self._timing(self._work) - taken, 0.0)
            if self._total > MIN_ROUNDS:
                return (left + usual) / 2
            most = MAX_TIME_FACTOR * self._work.seconds - taken  # there are no rounds but the fewest after it
            return max(left, min(usual, most))
        predicted = self._seconds(self._work) - (now - self._work_began)
        if self._is_after_passes:
            phase = self._phase.rpartition(": ")[2]
            products = self._work.products if phase not in AFTER_PRODUCTS else 0.0
            made = max(self._work.made - self._begun + 1, 1)
            rest = replace(self._work, passes=0.0, products=products, made=made)
            predicted = self._seconds(rest) - (now - self._after_began)
        is_counted = self._total > 1 and self._done
        overdue = OVERDUE * (now - self._phase_began) if self._phase and not is_counted else 0.0
        # Workers start slowly: what the beginning of a phase took tells little about the rest.
        over = min(self._done / self._total / TELLING, 1.0) if is_counted else 0.0
        told = over * self._phase_left(now) + (1 - over) * max(predicted, 0.0)
        return max(predicted, told, overdue)

    @property
    def _is_after_passes(self) -> bool:
        return self._phase.rpartition(": ")[2] in AFTER_PASSES

    def _report(self) -> None:
        self._told = self.clock()
        self._times.append((self._told, self.spent()))
        while self._told - self._times[1][0] > WINDOW:
            self._times.popleft()
        if not self._is_known:
            return
        elapsed = self._told - self.began
        least, most = (math.ceil(elapsed + left) for left in self.bounds)
        self.tell(WHOLE_RUN_BOUNDS, least, most)
        self.tell(WHOLE_RUN, int(elapsed), math.ceil(elapsed + self.seconds_left))

    def _end_phase(self, now: float) -> None:
        """Take over what the phase that ends says of its kind."""
        seconds = now - self._phase_began
        if self._phase == "calibrate" and self.pass_seconds is None:
            self.pass_seconds = seconds
        elif self._phase == "evaluating":
            self.evaluation_seconds = seconds
        elif self._phase == TIMING:
            self._timed += seconds
            if self._done:
                self._round = self._rate(now) / (self.taking_turns or self._work.timed + 1)
        self._phase, self._phase_began, self._first, self._done = "", now, (now, 0), 0

    def _phase_left(self, now: float) -> float:
        """Return the seconds that the present phase takes at the speed so far."""
        if self._total < 2 or not self._done:
            return 0.0
        rate = self._rate(now)
        if self._phase == "evaluating" and not self.evaluation_seconds:
            self.evaluation_seconds = rate * self._total
        return rate * (self._total - self._done)

    def _rate(self, now: float) -> float:
        """Return the seconds that a part of the present phase takes; the first one includes its start."""
        then, first = self._first if self._done > self._first[1] > 0 else (self._phase_began, 0)
        return (now - then) / max(self._done - first, 1)

    def _seconds(self, work: Work) -> float:
        """Return the seconds that a work will take."""
        return self._passing(work) + self._making(work) * self._pace + self._timing(work)

    @property
    def _pace(self) -> float:
        """Return the seconds that one of those predicted takes: at least as many as in the present work."""
        usual = self._taken / self._predicted if self._predicted else self.slowdown
        now, predicted = self.clock(), self._making(self._work)
        if predicted and (self.pass_seconds is not None or not self._work.passes):
            timed = self._timed + (now - self._phase_began if self._phase == TIMING else 0.0)
            usual = max(usual, (now - self._work_began - timed - self._passing(self._work)) / predicted)
        return min(usual, LARGEST_CORRECTION * max(self.slowdown, 1.0))

    def _passing(self, work: Work) -> float:
        """Return the seconds of passes over the data."""
        if self.pass_seconds is not None:
            return work.passes * self.pass_seconds
        return work.passes * PASS_RUNS * self.run_seconds * self.samples * self.slowdown

    def _making(self, work: Work) -> float:
        """Return the seconds of processor time of what is made and computed."""
        make = MAKE_SECONDS + (MAKE_RUNS + self.held) * self.run_seconds + self.evaluation_seconds
        return work.made * make + work.products / PRODUCT_RATE

    def _timing(self, work: Work) -> float:
        """Return the seconds of timing: as it was before if intervals were narrow then, else a usual time.

        The fewest rounds take as long as they take.
        """
        if not work.timed:
            return 0.0
        usual = min(TIMING_FACTOR * max(self.slowdown, 1.0), MAX_TIME_FACTOR) * work.seconds
        if self._until_precise is not None:
            usual = min(self._until_precise * (work.timed + 1), MAX_TIME_FACTOR * work.seconds)
        return max(MIN_ROUNDS * (work.timed + 1) * self._round, usual)
