"""An estimate of the remaining time of a search, from the time that similar work has taken so far.

::

    left = rest of the present work + Σ work ahead
    work = passes · pass + made · (make + comparison + evaluation) + products / rate + timing

A pass is one run of the calibration samples that records ranges; what steps observe is counted in such
passes, and what they compute in products of weights: N · K² of a layer with K inputs and N outputs. Until a
pass has been made, its time is derived from that of a run of the float model. How long models take to make is
corrected by the ratio of the time taken to the time predicted so far. Timing takes as long for each model as
it took until intervals were narrow the last time, and a round of it as long as rounds took.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from octavo.core.plan import Plan
from octavo.core.progress import WHOLE_RUN, Progress
from octavo.evaluation.timing.latency import MAX_TIME_FACTOR, MIN_ROUNDS, MIN_SECONDS
from octavo.model.graph import query

TIMING = "time trials beside float"  # a phase that ends when the intervals are narrow
INTERVAL = 0.25  # seconds between two reports of the whole run
PASS_RUNS = 2.0  # runs of the float model that calibrating with one sample takes, before it is measured
MAKE_RUNS = 8.0  # of the float model: writing a model, loading and running it
MAKE_SECONDS = 0.3  # beside these, whatever the size of the model
TIMING_FACTOR = 2.5  # of the seconds given: intervals are narrow enough after one to three times as many
PRODUCT_RATE = 7e8  # of steps that go through the weights of a layer, in a second
AFTER_PASSES = ("quantize", "clip", "rounding", "bias-correction", "verify")  # phases once all is observed
AFTER_PRODUCTS = ("rounding", "bias-correction", "verify")  # rounding itself says how far it is
LARGEST_CORRECTION = 5.0  # of what is predicted, by what work has taken so far
# What a step takes: passes over the data, further models made, and the share of N · K² that it computes.
STEP_COSTS = {
    "smoothquant": (2.0, 0, 0.2),
    "equalize": (1.5, 0, 0.0),
    "clip": (2.0, 1, 0.0),
    "rounding": (8.0, 0, 1.0),
    "bias-correction": (0.2, 0, 0.0),
}


@dataclass(frozen=True)
class Work:
    """A part of a search, counted."""

    passes: float = 0.0  # over the samples to calibrate with
    products: float = 0.0  # of weights
    made: int = 0  # models that are written and compared with float
    timed: int = 0  # models that are timed beside float
    seconds: float = 0.0  # that these are timed

    @classmethod
    def of_steps(cls, steps: Sequence[str], products: float) -> Work:
        """Return what a model made with some steps takes."""
        costs = [STEP_COSTS.get(step.partition(":")[0], (1.0, 1, 0.0)) for step in steps]
        passes, made, share = (sum(column) for column in zip(*costs, strict=True)) if costs else (0, 0, 0)
        return cls(passes, share * products, 1 + int(made))


def weight_products(model: ir.Model, plan: Plan) -> float:
    """Return N · K² of all quantized layers, the work of going through their weights."""
    found = 0.0
    for node in query.nodes(model):
        weight = query.operand(node, 1)
        if node.name not in plan.nodes or weight is None or weight.const_value is None:
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
    run_seconds: float  # of the float model on one sample
    clock: Callable[[], float] = time.monotonic
    pass_seconds: float | None = None  # once measured
    evaluation_seconds: float = 0.0  # of one model on a task
    ahead: Sequence[Work] = ()
    most: Callable[[], float] = lambda: math.inf  # seconds that the search may still take
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._work_began = self._phase_began = self._told = self.clock()
        self._work = Work()
        self._phase, self._done, self._total = "", 0, 0
        self._timed = 0.0  # seconds of timing in the present work
        self._until_precise: float | None = None  # seconds for each model until intervals were narrow
        self._round = max(self.run_seconds, MIN_SECONDS)  # seconds of a round of timing for each model
        self._taken, self._predicted = 0.0, 0.0  # seconds of making models

    def begin(self, work: Work, ahead: Sequence[Work]) -> None:
        """Take note that a part begins, and of what comes after it."""
        now = self.clock()
        self._end_phase(now)
        if self._timed:
            was_precise = self._timed < 0.9 * MAX_TIME_FACTOR * self._work.seconds
            self._until_precise = self._timed / (self._work.timed + 1) if was_precise else None
        predicted = self._making(self._work)
        if predicted:
            self._predicted += predicted
            taken = now - self._work_began - self._timed - self._passing(self._work)
            self._taken += max(taken, predicted / LARGEST_CORRECTION)
        self._work, self.ahead, self._work_began, self._timed = work, ahead, now, 0.0
        self._report()

    def progress(self, phase: str, done: int, total: int | None) -> None:
        """Pass on how far a phase is, and from time to time how far the whole run is."""
        now = self.clock()
        if phase != self._phase:
            self._end_phase(now)
            self._phase = phase
        self._done, self._total = done, total or 0
        self.tell(phase, done, total)
        if now - self._told >= INTERVAL:
            self._report()

    @property
    def seconds_left(self) -> float:
        """Return the seconds that the search still takes."""
        left = self._present_left(self.clock()) + sum(map(self._seconds, self.ahead))
        return min(left, max(self.most(), 0.0))

    def _present_left(self, now: float) -> float:
        """Return the seconds of the present work: what is not over by its phase, and has not passed."""
        if self._phase == TIMING and self._total and self._done:  # it ends a work
            usual = self._timing(self._work) - (now - self._phase_began)
            return (self._phase_left(now) + max(usual, 0.0)) / 2
        predicted = self._seconds(self._work) - (now - self._work_began)
        if (phase := self._phase.rpartition(": ")[2]) in AFTER_PASSES:
            computed = self._work.products if phase not in AFTER_PRODUCTS else 0.0
            rest = replace(self._work, passes=0.0, products=computed, made=min(self._work.made, 1))
            predicted = min(predicted, self._seconds(rest))
        return max(predicted, self._phase_left(now), 0.0)

    def _report(self) -> None:
        self._told = self.clock()
        elapsed = self._told - self.began
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
                self._round = seconds / self._done / (self._work.timed + 1)
        self._phase, self._phase_began = "", now

    def _phase_left(self, now: float) -> float:
        """Return the seconds that the present phase takes at the speed so far."""
        if self._total < 2 or not self._done:
            return 0.0
        rate = (now - self._phase_began) / self._done
        if self._phase == "evaluating" and not self.evaluation_seconds:
            self.evaluation_seconds = rate * self._total
        return rate * (self._total - self._done)

    def _seconds(self, work: Work) -> float:
        """Return the seconds that a work will take."""
        return self._passing(work) + self._making(work) * self._correction + self._timing(work)

    @property
    def _correction(self) -> float:
        return min(self._taken / self._predicted, LARGEST_CORRECTION) if self._predicted else 1.0

    def _passing(self, work: Work) -> float:
        """Return the seconds of passes over the data."""
        if self.pass_seconds is not None:
            return work.passes * self.pass_seconds
        return work.passes * PASS_RUNS * self.run_seconds * self.samples

    def _making(self, work: Work) -> float:
        """Return the seconds of what is made and computed, without correction."""
        make = MAKE_SECONDS + (MAKE_RUNS + self.held) * self.run_seconds + self.evaluation_seconds
        return work.made * make + work.products / PRODUCT_RATE

    def _timing(self, work: Work) -> float:
        """Return the seconds of timing: as it was before if intervals were narrow then, else a usual time.

        The fewest rounds take as long as they take.
        """
        if not work.timed:
            return 0.0
        usual = TIMING_FACTOR * work.seconds
        if self._until_precise is not None:
            usual = min(self._until_precise * (work.timed + 1), MAX_TIME_FACTOR * work.seconds)
        return max(MIN_ROUNDS * (work.timed + 1) * self._round, usual)
