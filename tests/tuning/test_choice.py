"""The rule: which trial is chosen, and what is said where none will do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import octavo
from octavo.algorithms.steps import Change, StepReport
from octavo.errors import OutputError, RecipeError
from octavo.evaluation.timing.latency import Ratio
from octavo.tuning.candidates import Candidate
from octavo.tuning.choice import Unchanged, compressed_could_win, is_settled, lost, pick, with_exact_weights
from octavo.tuning.deadline import Deadline, Limit
from octavo.tuning.fidelity import Fidelity
from octavo.tuning.requirements import Drop, Requirements
from octavo.tuning.trial import Score, Trial, Tuned


def trial(name: str, times: float, decibels: float, size: int = 100, **more: object) -> Trial:
    candidate = Candidate(name, octavo.W8A8, "")
    return replace(Trial(candidate, None, decibels, None, Ratio(times, times, times), size), **more)  # type: ignore[arg-type]


def chosen(*trials: Trial, **requirements: object) -> str:
    best, met, _ = pick(trials, Requirements(**requirements))  # type: ignore[arg-type]
    assert met
    return best.name


def test_of_like_speeds_the_most_faithful_is_chosen() -> None:
    assert chosen(trial("a", 1.70, 20), trial("b", 1.68, 30), trial("c", 1.0, 50)) == "b"


def test_of_those_that_are_hardly_apart_the_one_of_fewest_steps_is_chosen() -> None:
    steps = ("clip", "rounding", "bias-correction")
    more = replace(trial("more", 1.7, 25.2), candidate=Candidate("more", octavo.W8A8.but(steps=steps), ""))
    assert chosen(more, trial("less", 1.7, 25.0)) == "less"
    assert chosen(more, trial("less", 1.7, 24.0)) == "more"


def distilled(decibels: float, changed: int = 1) -> Trial:
    """A trial that refines the one named "less"."""
    done = tuple(Change("layer", "fitted", 0.2, 0.1) for _ in range(changed))
    result: Any = SimpleNamespace(
        steps=(StepReport("distill", done),), plan=SimpleNamespace(nodes={"layer": None})
    )
    candidate = Candidate("less, distilled", octavo.W8A8.but(steps=("distill",)), "", refines="less")
    return replace(trial("less, distilled", 1.7, decibels), candidate=candidate, result=result)


def test_a_trial_that_fits_the_best_one_further_takes_its_place() -> None:
    less, other = trial("less", 1.7, 25.0), trial("other", 1.7, 24.9)
    assert chosen(less, other, distilled(24.8)) == "less, distilled"
    assert chosen(less, other, distilled(25.3)) == "less, distilled"


def test_it_does_not_where_it_is_worse_or_changed_nothing() -> None:
    less = trial("less", 1.7, 25.0)
    assert chosen(less, distilled(24.0)) == "less"
    assert chosen(less, distilled(25.3, changed=0)) == "less"


def test_it_does_not_take_the_place_of_another() -> None:
    assert chosen(trial("less", 1.2, 25.0), trial("best", 1.9, 25.0), distilled(28.0)) == "best"


def test_of_those_that_are_hardly_apart_the_one_of_fewest_layers_at_run_time_is_chosen() -> None:
    recipe = octavo.W8A8.but(dynamic_nodes=("a", "b"))
    mixed = replace(trial("mixed", 1.3, 35.2), candidate=Candidate("mixed", recipe, ""))
    for speed in (1.25, 1.3, 1.35):
        assert chosen(mixed, trial("static", speed, 35.1)) == "static"
    assert chosen(mixed, trial("static", 1.2, 35.1)) == "mixed"


def test_a_third_more_speed_wins_where_fidelity_is_fine() -> None:
    assert chosen(trial("fast", 1.95, 24), trial("close", 1.5, 30)) == "fast"


def test_a_third_more_speed_does_not_pay_for_twenty_decibels() -> None:
    assert chosen(trial("fast", 1.95, 11), trial("close", 1.5, 30), min_sqnr=10.0) == "close"


def test_beyond_forty_decibels_more_is_worth_no_speed() -> None:
    assert chosen(trial("fast", 1.5, 40), trial("exact", 1.4, 80)) == "fast"


def test_at_like_speed_ten_decibels_above_thirty_still_count() -> None:
    assert chosen(trial("good", 1.5, 33), trial("better", 1.5, 38)) == "better"


def test_disagreement_about_the_class_costs() -> None:
    other = trial("other", 1.6, 30, agreement=0.7, places=500)
    assert chosen(other, trial("same", 1.5, 30, agreement=1.0, places=500)) == "same"


def test_one_place_of_a_few_says_little() -> None:
    other = trial("other", 1.6, 24, agreement=15 / 16, places=16)
    assert chosen(other, trial("same", 1.6, 20, agreement=1.0, places=16)) == "other"


def test_where_classes_agree_in_many_places_decibels_say_little() -> None:
    close = trial("close", 1.38, 26, agreement=0.988, places=50000)
    assert chosen(trial("fast", 1.53, 21, agreement=0.977, places=50000), close) == "fast"
    assert chosen(trial("wrong", 1.53, 21, agreement=0.9, places=50000), close) == "close"


def test_below_the_decibels_that_are_requested_they_count_however_many_classes_agree() -> None:
    close = trial("close", 1.38, 21, agreement=0.988, places=50000)
    assert chosen(trial("fast", 1.53, 15, agreement=0.988, places=50000), close) == "close"
    assert chosen(trial("fast", 1.9, 15, agreement=0.988, places=50000), close) == "fast"


def test_equal_answers_alone_do_not_make_a_trial_close() -> None:
    requirements = Requirements()
    by_answers = trial("answers", 1.5, 15, agreement=0.99, places=500)
    assert requirements.unfaithful(by_answers) is None
    assert not requirements.is_close(by_answers)
    assert requirements.is_close(trial("decibels", 1.5, 20, agreement=0.9, places=500))
    assert Requirements(min_sqnr=10.0).is_close(by_answers)


def test_a_search_has_less_time_once_a_result_keeps_what_is_promised() -> None:
    deadline = Deadline.after(Limit(180.0, once_kept=0.0))
    deadline.is_armed = True
    assert not deadline.is_over
    deadline.is_kept = True
    assert deadline.is_over


def test_of_equals_the_smaller_is_chosen() -> None:
    assert chosen(trial("large", 1.5, 30, 400), trial("small", 1.5, 29.5, 100)) == "small"


def test_speeds_whose_intervals_meet_count_as_the_same() -> None:
    noisy = trial("noisy", 1.7, 22, speed=Ratio(1.7, 1.2, 2.0))
    assert chosen(noisy, trial("faithful", 1.5, 30, speed=Ratio(1.5, 1.2, 1.8))) == "faithful"


def test_a_wide_interval_does_not_make_half_the_speed_alike() -> None:
    fast = trial("fast", 2.0, 28, speed=Ratio(2.0, 1.4, 2.2))
    assert chosen(fast, trial("slow", 1.0, 30, speed=Ratio(1.0, 0.7, 1.5))) == "fast"


def test_too_slow_or_too_far_off_is_not_chosen() -> None:
    assert chosen(trial("slow", 0.9, 40), trial("wrong", 3.0, 5), trial("fair", 1.1, 20)) == "fair"


def test_where_no_trial_will_do_the_reason_names_the_closest() -> None:
    best, met, reason = pick([trial("slow", 0.9, 40), trial("wrong", 3.0, 5)], Requirements())
    assert not met
    assert best.name == "slow"
    assert "the closest is slow: it is not faster than float (0.90 ×" in reason


def test_where_nothing_came_out_the_errors_are_told() -> None:
    with pytest.raises(OutputError, match=r"a: it broke\. b: it hung"):
        pick([trial("a", 1, 1, error="it broke."), trial("b", 1, 1, error="it hung.")], Requirements())


def test_an_error_that_all_trials_share_is_told_once() -> None:
    with pytest.raises(OutputError, match=r"^it is quantized already\.$"):
        pick([trial(name, 1, 1, error="it is quantized already.") for name in "ab"], Requirements())


def score(value: float, higher: bool = True) -> Score:
    return Score("top1", value, 0.8, higher)


def test_with_a_largest_drop_the_fastest_that_holds_it_is_chosen() -> None:
    found = [
        trial("fastest", 3.0, 20, score=score(0.70)),
        trial("fast", 2.0, 12, score=score(0.797)),
        trial("close", 1.2, 40, score=score(0.8)),
    ]
    assert chosen(*found, max_drop=Drop.parse("0.5%")) == "fast"


def test_where_no_drop_is_small_enough_the_smallest_is_the_best_so_far() -> None:
    found = [trial("a", 3.0, 30, score=score(0.5)), trial("b", 1.0, 20, score=score(0.7))]
    best, met, reason = pick(found, Requirements(max_drop=Drop.parse("0.01")))
    assert (best.name, met) == ("b", False)
    assert "top1 0.7 is more than 0.01 below" in reason


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [("0.5%", 0.7961, True), ("0.5%", 0.7959, False), ("0.005", 0.7951, True), ("0.005", 0.7949, False)],
)
def test_a_drop_is_relative_with_a_percent_sign_and_absolute_without(
    text: str, value: float, holds: bool
) -> None:
    assert Drop.parse(text).allows(score(value)) is holds


def test_a_figure_that_should_be_small_drops_by_growing() -> None:
    assert Drop.parse("0.1").allows(score(0.85, higher=False))
    assert not Drop.parse("0.01").allows(score(0.85, higher=False))
    assert Drop.parse("0").allows(score(0.5, higher=False))


@pytest.mark.parametrize("text", ["much", "-1", "nan", "%"])
def test_what_is_no_drop_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match=r"max.drop"):
        Drop.parse(text)


def test_the_front_leaves_out_what_is_beaten() -> None:
    trials = (trial("a", 2.0, 30), trial("b", 1.5, 20), trial("c", 1.0, 50))
    found = Tuned(trials, trials[0], True, "", 4, 400)
    assert [one.name for one in found.front()] == ["a", "c"]


def test_a_speed_below_float_is_missed_however_wide_its_interval() -> None:
    assert "not faster" in (
        Requirements().missed(trial("noisy", 0.93, 30, speed=Ratio(0.93, 0.8, 1.1))) or ""
    )
    assert "not faster" in (Requirements().missed(trial("slow", 0.9, 30, speed=Ratio(0.9, 0.85, 0.95))) or "")


def test_a_requested_speed_lies_below_the_whole_interval() -> None:
    unsure = trial("unsure", 1.6, 30, speed=Ratio(1.6, 1.4, 1.8))
    requirements = Requirements(min_speed=1.5)
    assert "does not tell whether 1.60 × (1.40 … 1.80)" in (requirements.missed(unsure) or "")
    assert requirements.leaves_speed_open(unsure)
    assert not requirements.leaves_speed_open(replace(unsure, sqnr_db=5.0))
    assert chosen(unsure, trial("sure", 1.55, 25), min_speed=1.5) == "sure"
    assert Requirements().missed(trial("even", 1.0, 30, speed=Ratio(1.0, 0.98, 1.02))) is None


def test_what_is_no_faster_than_float_is_chosen_only_where_nothing_faster_will_do() -> None:
    exact = trial("exact", 1.02, 50)
    assert chosen(exact, trial("faster", 1.1, 20.5)) == "faster"
    assert chosen(exact, trial("unsure", 1.1, 20.5, speed=Ratio(1.1, 0.9, 1.2))) == "exact"
    assert chosen(exact, trial("wrong", 1.5, 20, error="it does not load")) == "exact"
    assert chosen(exact, trial("faster", 1.1, 20.5), min_speed=0.0) == "exact"  # speed was not requested
    assert not compressed_could_win([trial("faster", 1.1, 20.5)], Requirements(), Unchanged(400))


def test_what_is_hardly_smaller_has_to_be_worth_more_than_what_is_no_faster() -> None:
    small = replace(trial("small", 1.02, 28, 28), size=0.28)
    assert chosen(small, replace(trial("large", 1.1, 38, 99), size=0.99)) == "small"
    assert chosen(small, replace(trial("large", 2.0, 28, 65), size=0.65)) == "large"
    assert chosen(small, replace(trial("less", 1.1, 25, 50), size=0.5)) == "less"


def test_a_result_larger_than_float_misses_the_demands() -> None:
    assert Requirements().missed(replace(trial("small", 1.5, 30), size=0.3)) is None
    assert "bytes of float" in (Requirements().missed(replace(trial("large", 1.5, 30), size=1.3)) or "")


@pytest.mark.parametrize(("times", "expected"), [(1.3, "static"), (2.0, "static, convolutions float")])
def test_a_kind_of_operators_is_left_float_only_where_that_is_faster(times: float, expected: str) -> None:
    name = "static, convolutions float"
    candidate = Candidate(name, octavo.W8A8, "", faster_than="static")
    closer = replace(trial(name, times, 34.0, 200), candidate=candidate)
    assert chosen(trial("static", 1.4, 22.0), closer) == expected
    assert chosen(trial("static", 1.4, 22.0), closer, min_sqnr=25.0) == name


def test_what_runs_float_counts_with_its_measured_speed() -> None:
    result: Any = SimpleNamespace(plan=SimpleNamespace(nodes={}))
    prepared = replace(trial("compressed", 1.41, 28.1, 26), result=result)
    assert chosen(trial("static", 1.3, 20.4, 26), prepared) == "compressed"


def test_what_runs_float_and_is_no_faster_is_said_to_break_the_promise() -> None:
    result: Any = SimpleNamespace(plan=SimpleNamespace(nodes={}))
    reason = pick([replace(trial("compressed", 1.0, 40, 26), result=result)], Requirements())[2]
    assert "no faster" in reason
    assert "no faster" not in pick([trial("static", 1.5, 40, 26)], Requirements())[2]
    assert "hardly faster than float" in pick([trial("static", 1.01, 40, 26)], Requirements())[2]


def test_a_trial_that_is_worth_less_than_the_float_model_is_refused() -> None:
    unchanged = Unchanged(100)
    little = trial("dynamic", 1.02, 24, 94)
    _, met, reason = pick([little], Requirements(), unchanged)
    assert not met
    assert "worth less than the float model" in reason
    assert pick([trial("static", 1.02, 24, 26)], Requirements(), unchanged)[1]
    assert pick([little], Requirements(min_sqnr=20), unchanged)[1]  # enough fidelity was named


def test_what_preparation_alone_would_gain_is_no_merit_of_quantizing() -> None:
    slower = trial("static", 1.1, 24, 60)
    assert pick([slower], Requirements(), Unchanged(100))[1]
    assert not pick([slower], Requirements(), Unchanged(100, Ratio(1.4, 1.38, 1.42)))[1]
    assert pick([slower], Requirements(), Unchanged(100, Ratio(1.4, 0.9, 1.9)))[1]  # it may be noise


def test_a_noisier_measurement_does_not_win() -> None:
    noisy = trial("noisy", 1.6, 28, speed=Ratio(1.6, 1.2, 2.1))
    assert chosen(noisy, trial("steady", 1.55, 28.3, speed=Ratio(1.55, 1.53, 1.57))) == "steady"


def test_twenty_decibels_or_the_same_answers_are_close_enough() -> None:
    assert Requirements().unfaithful(trial("a", 1.5, 20.1)) is None
    assert "less than 20" in (Requirements().unfaithful(trial("b", 1.5, 14.0)) or "")
    same = trial("c", 1.5, 14.0, agreement=0.99, places=1000)
    assert Requirements().unfaithful(same) is None
    assert Requirements().unfaithful(replace(same, agreement=0.9)) is not None
    assert Requirements().unfaithful(replace(same, places=12)) is not None
    assert Requirements().unfaithful(replace(same, sqnr_db=6.0)) is not None
    assert Requirements(min_sqnr=12).unfaithful(trial("d", 1.5, 14.0)) is None


def uncertain(name: str, times: float, decibels: float, by: float, **more: object) -> Trial:
    return trial(name, times, decibels, speed=Ratio(times, times * (1 - by), times * (1 + by)), **more)


@pytest.mark.parametrize(
    ("fast", "slow", "settled"),
    [
        ((2.0, 25, 0.04), (1.2, 25, 0.04), True),  # apart by far
        ((1.5, 25, 0.04), (1.45, 25.2, 0.04), False),  # alike or not: that decides
        ((1.5, 25, 0.005), (1.48, 25.2, 0.005), True),  # alike anyway
        ((1.07, 25, 0.04), (1.0, 40, 0.04), False),  # faster than float or not
    ],
)
def test_speeds_are_measured_until_none_within_their_intervals_would_change_the_choice(
    fast: tuple[float, float, float], slow: tuple[float, float, float], settled: bool
) -> None:
    trials = [uncertain(name, *one) for name, one in (("fast", fast), ("slow", slow))]
    assert is_settled(trials, Requirements(), Unchanged(400)) is settled


def test_sessions_of_one_model_that_differ_unsettle_what_each_of_them_tells() -> None:
    trials = [uncertain("fast", 1.5, 25, 0.005), uncertain("slow", 1.45, 26, 0.005)]
    assert is_settled(trials, Requirements(), Unchanged(400))
    assert not is_settled(trials, Requirements(), Unchanged(400), apart=0.025)


def test_beyond_forty_decibels_nothing_is_lost_and_below_them_as_much_as_they_are_worth() -> None:
    assert lost(trial("static", 2.0, 41.0), Requirements()) == 0
    assert lost(trial("static", 2.0, 30.0), Requirements()) == pytest.approx(0.1)
    assert lost(trial("static", 2.0, 20.0), Requirements()) == pytest.approx(0.4)


def test_exact_weights_take_their_share_of_the_noise_away() -> None:
    told = trial("static", 2.0, 20.0, parts={"y": 20.0}, agreement=0.9, places=100)
    half = with_exact_weights(told, Fidelity(23.01, None, {"y": 23.01}))
    assert half.sqnr_db == pytest.approx(23.01, abs=0.01)
    assert half.agreement == pytest.approx(1 - 0.1 * 0.5**0.5, abs=1e-4)
    none = with_exact_weights(told, Fidelity(60.0, None, {"y": 60.0}))
    assert none.sqnr_db == pytest.approx(20.0, abs=0.01)
    every = with_exact_weights(told, Fidelity(15.0, None, {"y": 15.0}))
    assert every.sqnr_db is not None
    assert every.sqnr_db > 100


def test_of_the_parts_of_an_output_the_worst_one_counts_with_exact_weights_too() -> None:
    told = trial("static", 2.0, 15.0, parts={"boxes": 30.0, "scores": 15.0})
    found = with_exact_weights(told, Fidelity(30.0, None, {"boxes": 31.0, "scores": 30.0}))
    assert found.sqnr_db == pytest.approx(15.14, abs=0.01)
