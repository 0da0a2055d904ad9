"""The verdict and its figures."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.reporting.html import figures
from octavo.reporting.html.sources import Side, sides
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
    verdict = figures.verdict(evaluated(lost, significant=significant))
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
    verdict = figures.verdict(compared(decibels))
    assert verdict["level"] == level
    assert said in verdict["text"]


def test_without_either_it_says_what_to_run() -> None:
    verdict = figures.verdict(
        Side({"quantization": {"quantized": {"Conv": 1}, "float_bytes": 8, "bytes": 2}})
    )
    assert verdict["level"] == "unknown"
    assert "octavo compare" in verdict["text"]
    assert "0.25 × the size" in verdict["text"]


def test_a_slower_model_is_fair_at_best() -> None:
    side = evaluated(0.0, significant=False)
    side.parts["bench"] = hostile.bench([]) | {"ratio": {"value": 0.8, "low": 0.7, "high": 0.9}}
    assert figures.verdict(side)["level"] == "fair"


def test_a_figure_that_should_be_low_is_worse_when_it_rises() -> None:
    data = hostile.evaluation()
    for score in (*data["scores"], *data["against_scores"]):
        score |= {"value": 30.0, "higher_is_better": False, "percent": False}
    data["differences"][0] |= {"value": 6.0, "significant": True}
    assert figures.verdict(sides([data])[0])["level"] == "poor"


def test_figures_name_what_they_are() -> None:
    side = sides([hostile.large(10), hostile.bench([])])[0]
    assert [figure["label"] for figure in figures.figures(side)] == ["size", "speed", "operators quantized"]
