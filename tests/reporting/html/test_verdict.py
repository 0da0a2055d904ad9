"""The verdict and its figures."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.reporting.html import verdict as verdicts
from octavo.reporting.html.report_parts import Side, sides
from reporting.html import hostile


def evaluated(value: float, *, significant: bool) -> Side:
    data = hostile.evaluation()
    data["differences"][0] |= {"value": value, "significant": significant}
    return sides([data])[0]


def compared(decibels: Any) -> Side:
    output = {"name": "y", "errors": {"sqnr": decibels, "cosine": 1.0, "max_error": 0.0}, "execution": None}
    return Side({"comparison": {"outputs": [output], "culprits": [], "tensors": [], "notes": []}})


@pytest.mark.parametrize(
    ("lost", "significant", "level"),
    [
        (-0.005, False, "good"),
        (0.01, True, "good"),
        (-0.02, True, "fair"),
        (-0.1, True, "poor"),
        (-0.1, False, "fair"),
    ],
)
def test_accuracy_decides_first(lost: float, significant: bool, level: str) -> None:
    verdict = verdicts.verdict(evaluated(lost, significant=significant))
    assert verdict["level"] == level
    assert ("within noise" in verdict["text"]) is not significant


@pytest.mark.parametrize(
    ("decibels", "level", "said"),
    [
        ("inf", "good", "exact"),
        (25.0, "good", "25.0 dB"),
        (15.0, "fair", "15.0"),
        (3.0, "poor", "Far from float"),
    ],
)
def test_without_labels_the_worst_output_decides(decibels: Any, level: str, said: str) -> None:
    verdict = verdicts.verdict(compared(decibels))
    assert verdict["level"] == level
    assert said in verdict["text"]


def test_without_either_it_says_what_to_run() -> None:
    verdict = verdicts.verdict(
        Side({"quantization": {"quantized": {"Conv": 1}, "float_bytes": 8, "bytes": 2}})
    )
    assert verdict["level"] == "unknown"
    assert "octavo compare" in verdict["text"]
    assert "0.25 × the size" in verdict["text"]


def tuned(**changes: Any) -> Side:
    trial = {
        "name": "static", "sqnr_db": 22.5, "sqnr_interval": [21.0, 24.0], "agreement": 5 / 6, "places": 6,
        "score": None, "speed": {"value": 1.5, "low": 1.4, "high": 1.6}, "bytes": 25, "error": None,
    }  # fmt: skip
    tuning = {
        "best": "static", "met": True, "held_back": 6, "float_bytes": 100, "trials": [{**trial, **changes}],
        "requirements": {"min_speed": 1.0, "min_sqnr": 10.0, "max_drop": None, "max_size": 1.0},
    }  # fmt: skip
    made = {"quantized": {"Conv": 1}, "float_bytes": 100, "bytes": 25, "tuning": tuning}
    return Side({"quantization": made})


def test_what_trials_measured_is_in_the_verdict_and_the_tiles() -> None:
    side = tuned()
    found = {tile["label"]: tile for tile in verdicts.tiles(side)}
    assert found["SQNR, worst output"]["value"] == "22.5 dB"
    assert "21.0 … 24.0" in found["SQNR, worst output"]["detail"]
    assert found["same class"]["value"] == "83.3 %"
    assert "± 26.7 points" in found["same class"]["detail"]
    assert "6 held-back samples" in found["same class"]["detail"]
    assert found["speed"]["value"] == "1.50 ×"
    assert "1.40 … 1.60" in found["speed"]["detail"]
    assert found["requirements"]["value"] == "met"
    verdict = verdicts.verdict(side)
    assert (verdict["level"], verdict["badge"]) == ("good", "good")
    assert "not measured" not in verdict["text"]
    for words in ("22.5 dB", "83.3 %", "0.25 × the size", "1.50 × as fast", "Meets what was required"):
        assert words in verdict["text"]


def test_the_task_of_trials_is_the_accuracy() -> None:
    score = {"name": "mAP", "value": 0.451, "float": 0.46, "lost": 0.009, "percent": True, "low": 0.40,
             "high": 0.49, "samples": 100, "higher_is_better": True}  # fmt: skip
    verdict = verdicts.verdict(tuned(score=score))
    assert "mAP 45.1 % ((40.0 … 49.0), float 46.0 %, 100 samples)" in verdict["text"] or (
        "45.1 %" in verdict["text"] and "40.0 … 49.0" in verdict["text"] and "float 46.0 %" in verdict["text"]
    )


def test_a_missed_requirement_is_said_first_hand() -> None:
    side = tuned()
    side.parts["quantization"]["tuning"]["met"] = False
    verdict = verdicts.verdict(side)
    assert verdict["level"] == "poor"
    assert "Misses what was required" in verdict["text"]


def test_agreement_with_float_counts_as_measured() -> None:
    data = hostile.evaluation() | {"task": "agreement", "against_scores": [], "differences": []}
    share = {"name": "agreement", "value": 0.98, "low": 0.95, "high": 0.99, "percent": True}
    sqnr = {"name": "sqnr_db", "value": 24.0, "low": 23.0, "high": 25.0, "percent": False}
    data["scores"] = [share | {"higher_is_better": True}, sqnr | {"higher_is_better": True}]
    verdict = verdicts.verdict(sides([data])[0])
    assert verdict["level"] == "good"
    assert "24.0 dB" in verdict["text"]
    assert "98.0 %" in verdict["text"]


def test_one_model_alone_is_measured_though_not_compared() -> None:
    data = hostile.evaluation() | {"against": None, "against_scores": [], "differences": []}
    verdict = verdicts.verdict(sides([data])[0])
    assert verdict["badge"] == "measured"
    assert "72.0 %" in verdict["text"]


def test_a_slower_model_is_fair_at_best() -> None:
    side = evaluated(0.0, significant=False)
    side.parts["bench"] = hostile.bench([]) | {"ratio": {"value": 0.8, "low": 0.7, "high": 0.9}}
    assert verdicts.verdict(side)["level"] == "fair"


def test_a_figure_that_should_be_low_is_worse_when_it_rises() -> None:
    data = hostile.evaluation()
    for score in (*data["scores"], *data["against_scores"]):
        score |= {"value": 30.0, "higher_is_better": False, "percent": False}
    data["differences"][0] |= {"value": 6.0, "significant": True}
    assert verdicts.verdict(sides([data])[0])["level"] == "poor"


def test_figures_name_what_they_are() -> None:
    side = sides([hostile.large(10), hostile.bench([])])[0]
    assert [figure["label"] for figure in verdicts.tiles(side)] == ["speed", "size", "operators quantized"]


def test_a_task_of_one_model_stands_beside_the_fidelity_that_trials_measured() -> None:
    side = tuned()
    side.parts["evaluation"] = hostile.evaluation() | {
        "against": None,
        "against_scores": [],
        "differences": [],
    }
    text = verdicts.verdict(side)["text"]
    assert "72.0 %" in text and "22.5 dB" in text


def test_the_interval_of_a_compared_output_is_on_its_tile() -> None:
    side = compared(25.0)
    side.parts["comparison"]["outputs"][0]["interval"] = [24.0, 26.5]
    assert "24.0 … 26.5" in verdicts.tiles(side)[0]["detail"]


@pytest.mark.parametrize(("passed", "badge", "said"), [(True, "good", "Meets"), (False, "poor", "Misses")])
def test_requirements_of_a_verb_that_measures_are_in_the_verdict(passed: bool, badge: str, said: str) -> None:
    side = compared(25.0)
    gate = {"name": "min_sqnr", "limit": "20 dB at least", "measured": "25.0 dB", "passed": passed}
    side.parts["comparison"]["gates"] = [gate | {"model": ""}]
    found = verdicts.verdict(side)
    assert found["badge"] == badge
    assert f"{said} what was required: min-sqnr 20 dB at least" in found["text"]
    assert any(tile["label"] == "requirements" for tile in verdicts.tiles(side))


def test_a_failed_requirement_is_the_badge_where_accuracy_was_not_measured() -> None:
    data = hostile.bench([]) | {
        "gates": [{"name": "min_speed", "limit": "9", "measured": "2", "passed": False}]
    }
    assert verdicts.verdict(sides([hostile.large(10), data])[0])["badge"] == "requirement not met"


def test_a_requirement_that_a_measurement_leaves_open_is_undecided() -> None:
    gate = {"name": "min_speed", "limit": "1.5", "measured": "1.5", "passed": False, "decided": False}
    side = sides([hostile.large(10), hostile.bench([]) | {"gates": [gate]}])[0]
    found = verdicts.verdict(side)
    assert "does not tell whether it meets what was required: min-speed 1.5" in found["text"]
    assert any(tile["value"] == "undecided" for tile in verdicts.tiles(side))
