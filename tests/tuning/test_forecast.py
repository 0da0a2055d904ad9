"""How long a search still takes: from what its parts took so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import builders
import numpy as np
import pytest

import octavo
from octavo.core.progress import WHOLE_RUN, WHOLE_RUN_BOUNDS
from octavo.evaluation.timing.latency import Ratio
from octavo.model.files import io
from octavo.tuning import runner, search
from octavo.tuning.forecast import (
    LARGEST_CORRECTION,
    MEMORY,
    OVERDUE,
    TIMING,
    TIMING_FACTOR,
    Forecast,
    Work,
    weight_products,
)
from tuning.nets import conv_and_linear, samples

Told = list[tuple[str, int, int | None]]


@dataclass
class Clock:
    now: float = 0.0
    told: Told = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def tell(self, phase: str, done: int, total: int | None) -> None:
        self.told.append((phase, done, total))

    @property
    def whole(self) -> Told:
        return [one for one in self.told if one[0] == WHOLE_RUN]


def forecast_of(clock: Clock) -> Forecast:
    return Forecast(clock.tell, samples=10, held=5, run_seconds=0.1, clock=clock, began=0.0)


def test_a_pass_counts_as_long_as_the_first_one_took() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    forecast.begin(Work(passes=1), [Work(passes=3)])
    forecast.progress("calibrate", 0, 10)
    clock.now = 7.0
    forecast.progress("plan", 0, 1)
    forecast.begin(Work(), [Work(passes=3)])
    # The correction, 7 / 7 of the pass and none of anything else, is 1.
    assert forecast.seconds_left == pytest.approx(21.0)


def test_a_phase_that_goes_on_is_extrapolated() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    forecast.begin(Work(passes=1), [])
    forecast.progress("a: calibrate", 0, 10)
    clock.now = 30.0
    forecast.progress("a: calibrate", 5, 10)
    assert forecast.seconds_left == pytest.approx(30.0)
    assert clock.whole[-1] == (WHOLE_RUN, 30, 60)


def test_the_first_samples_of_a_phase_count_little() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    forecast.begin(Work(passes=10), [])
    predicted = forecast.seconds_left
    clock.now = 10.0  # of which workers took most, to start
    forecast.progress("a: calibrate", 0, 100)
    forecast.progress("a: calibrate", 1, 100)
    clock.now = 11.0
    forecast.progress("a: calibrate", 1, 100)
    assert forecast.seconds_left < predicted + 10.0


def test_what_takes_longer_than_predicted_lengthens_the_rest_within_bounds() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    work = Work(made=1)
    forecast.begin(work, [work])
    predicted = forecast.seconds_left
    clock.now = predicted  # two works were predicted to take so long: this one takes twice its time
    forecast.begin(work, [])
    assert forecast.seconds_left == pytest.approx(predicted)
    clock.now += 1000 * predicted
    forecast.begin(work, [])
    assert forecast.seconds_left == pytest.approx(predicted / 2 * LARGEST_CORRECTION)


def test_the_last_work_counts_most_for_the_pace() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    work = Work(made=1)
    forecast.begin(work, [])
    usual = forecast.seconds_left
    for factor in (3.0, 1.0):
        clock.now += factor * usual
        forecast.begin(work, [])
    assert forecast.seconds_left == pytest.approx(usual * (3 * MEMORY + 1) / (MEMORY + 1))


def test_before_anything_is_made_the_pace_is_that_of_the_machine() -> None:
    idle, busy = (
        Forecast(Clock().tell, 10, 5, run_seconds=0.1, slowdown=slowdown, clock=Clock(), began=0.0)
        for slowdown in (1.0, 4.0)
    )
    for forecast in (idle, busy):
        forecast.begin(Work(passes=1, made=2), [])
    assert busy.seconds_left == pytest.approx(4 * idle.seconds_left)


def test_what_may_be_left_out_counts_with_its_chance_and_makes_bounds() -> None:
    clock, alone = Clock(), forecast_of(Clock())
    alone.begin(Work(made=1), [])
    one = alone.seconds_left
    forecast = forecast_of(clock)
    forecast.begin(Work(made=1), [Work(made=1), Work(made=2, chance=0.5)])
    assert forecast.seconds_left == pytest.approx(3 * one)
    assert forecast.bounds == pytest.approx((2 * one, 4 * one))
    told = next(one for one in reversed(clock.told) if one[0] == WHOLE_RUN_BOUNDS)
    assert told[1:] == (int(np.ceil(2 * one)), int(np.ceil(4 * one)))


def test_nothing_is_told_while_the_trials_ahead_are_unknown() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    forecast.begin(Work(made=1), [], is_known=False)
    clock.now = 5.0
    forecast.progress("a: verify", 0, None)
    assert not clock.whole
    forecast.begin(Work(made=1), [])
    assert clock.whole


def test_a_work_that_is_overdue_is_not_about_to_end() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    forecast.begin(Work(made=1), [])
    forecast.progress("a: rounding", 0, None)
    clock.now = 80.0
    forecast.progress("a: rounding", 0, None)
    assert forecast.seconds_left == pytest.approx(80.0 * OVERDUE)


@pytest.mark.parametrize("machine", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("model", [0.6, 1.0, 2.0])
def test_estimates_come_true_within_a_third_on_slow_machines_and_models(machine: float, model: float) -> None:
    """A search of ten parts whose passes and models take longer than usual, on a machine that is busy."""
    clock = Clock()
    forecast = Forecast(clock.tell, 10, 5, run_seconds=0.1, slowdown=machine, clock=clock, began=0.0)
    works = [Work(passes=1, made=1), *[Work(passes=2, made=1), Work(made=2)] * 5]
    for number, work in enumerate(works):
        forecast.begin(work, works[number + 1 :], is_known=number > 0)
        if work.passes:
            for done in range(11):
                forecast.progress("calibrate", done, 10)
                clock.now += 0.2 * machine * model * work.passes if done < 10 else 0.0
        for name in "ab"[: work.made]:
            for _ in range(10):
                forecast.progress(f"{name}: quantize", 0, None)
                clock.now += 0.16 * machine * model
    assert len(clock.whole) > 20
    for _, elapsed, total in clock.whole:
        left, true = (total or 0) - elapsed, clock.now - elapsed
        assert abs(left - true) <= max(true / 3, 2 + 0.5 * machine)


def test_timing_has_seconds_of_its_own_that_correct_nothing_else() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    timing, making = Work(timed=3, seconds=8.0), Work(made=2)
    forecast.begin(timing, [making])
    making_seconds = forecast.seconds_left - 8.0 * TIMING_FACTOR
    forecast.progress(TIMING, 1, None)
    clock.now = 50.0
    forecast.begin(making, [])
    assert forecast.seconds_left == pytest.approx(making_seconds)


def test_timing_takes_as_long_as_it_took_until_intervals_were_narrow() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    forecast.begin(Work(timed=1, seconds=8.0), [])
    forecast.progress(TIMING, 20, None)
    clock.now = 10.0  # of 24 seconds at most
    forecast.begin(Work(timed=3, seconds=8.0), [])
    assert forecast.seconds_left == pytest.approx(20.0)
    forecast.progress(TIMING, 100, None)
    clock.now += 24.0  # all that there was, and still not narrow
    forecast.begin(Work(timed=1, seconds=8.0), [])
    assert forecast.seconds_left == pytest.approx(8.0 * TIMING_FACTOR)


def test_timing_that_tells_its_rounds_is_extrapolated() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    forecast.begin(Work(timed=3, seconds=8.0), [])
    forecast.progress(TIMING, 0, None)
    clock.now = 4.0
    forecast.progress(TIMING, 10, 40)
    usual = 8.0 * TIMING_FACTOR - 4.0
    assert forecast.seconds_left == pytest.approx((12.0 + usual) / 2)


def test_the_fewest_rounds_take_as_long_as_those_of_the_models_that_were_timed_before() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    forecast.begin(Work(), [])  # a first look, that nobody expected
    forecast.taking_turns = 2
    for number in range(1, 10):
        clock.now += 2.0
        forecast.progress(TIMING, number, 9)
    forecast.begin(Work(timed=3, seconds=1.0), [])
    assert forecast.seconds_left == pytest.approx(9 * 4 * 1.0)


def test_a_time_limit_bounds_what_is_left() -> None:
    clock = Clock()
    forecast = forecast_of(clock)
    forecast.most = lambda: 4.0
    forecast.begin(Work(passes=100), [])
    assert forecast.seconds_left == 4.0


def test_a_limit_on_processor_time_is_converted_at_the_pace_of_the_last_half_minute() -> None:
    clock = Clock()
    forecast = Forecast(
        clock.tell,
        10,
        5,
        run_seconds=0.1,
        clock=clock,
        most=lambda: 20.0 - clock.now / 4,
        spent=lambda: clock.now / 4,
        began=0.0,
    )
    forecast.begin(Work(passes=1000), [])
    for _ in range(80):
        clock.now += 0.5
        forecast.progress("calibrate", 0, None)
    assert forecast.seconds_left == pytest.approx(40.0)


def test_steps_cost_passes_and_products_and_unknown_ones_a_pass() -> None:
    rounding = Work.of_steps(["rounding:solver=gptq"], products=1e9)
    assert rounding.passes > Work.of_steps(["clip"], 1e9).passes
    assert (rounding.products, Work.of_steps(["clip"], 1e9).products) == (1e9, 0.0)
    assert Work.of_steps(["a step of one's own"], 1e9).passes == 1.0
    assert Work.of_steps([], 1e9) == Work(made=1)


def test_products_of_weights_are_outputs_times_inputs_squared() -> None:
    weights = {"w": np.ones((16, 8, 3, 3), np.float32), "m": np.ones((16, 5), np.float32)}
    nodes = [
        builders.node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        builders.node("GlobalAveragePool", ["c"], ["g"], "pool"),
        builders.node("Flatten", ["g"], ["f"], "flatten"),
        builders.node("MatMul", ["f", "m"], ["y"], "linear"),
    ]
    proto = builders.model(
        nodes, [builders.tensor("x", [1, 8, 4, 4])], [builders.tensor("y", [1, 5])], weights
    )
    recipe = octavo.W8A8.but(placement=octavo.Placement.EVERYWHERE)
    plan = octavo.plan(proto, recipe=recipe)
    assert {"conv", "linear"} <= set(plan.nodes)
    assert weight_products(io.load(proto), plan) == 16 * 72**2 + 5 * 16**2


def test_a_search_reports_how_long_it_takes_in_all() -> None:
    clock = Clock()
    octavo.tune(conv_and_linear(), samples(8), threads=1, engine="serial", seconds=0.01, progress=clock.tell)
    assert clock.whole
    elapsed = [done for _, done, _ in clock.whole]
    assert elapsed == sorted(elapsed)
    assert all(total is not None and total >= done for _, done, total in clock.whole)


def test_what_is_made_is_not_counted_as_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidates with steps are named by the static way that they start from, not by the best so far."""
    ahead: dict[str, list[int]] = {}
    begin = search.Search.begin

    def counted(self: search.Search, stage: str) -> None:
        begin(self, stage)
        ahead.setdefault(stage, []).append(len(self.ahead.works()["steps"]))

    monkeypatch.setattr(search.Search, "begin", counted)
    octavo.tune(conv_and_linear(), samples(8), threads=1, engine="serial", seconds=0.01)
    steps = ahead["steps"]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == len(steps) > 1


def test_steps_that_could_gain_nothing_are_not_ahead_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 35 dB less is lost than a step has to gain to be tried, whatever the speed turns out to be."""
    ahead: dict[str, int] = {}
    begin = search.Search.begin

    def counted(self: search.Search, stage: str) -> None:
        begin(self, stage)
        ahead[stage] = len(self.ahead.works()["steps"])

    monkeypatch.setattr(search.Search, "begin", counted)
    monkeypatch.setattr(
        runner, "speeds", lambda _, models, *rest, **more: [Ratio(1.5, 1.5, 1.5)] * len(models)
    )
    octavo.quantize(conv_and_linear(), samples(40), threads=1, engine="serial")
    assert ahead["quick"] == 0
