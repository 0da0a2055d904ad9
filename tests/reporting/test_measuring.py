"""Evaluations and measurements as text: signs, units, and names from untrusted files."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.reporting.bench_tables import bench_markdown, bench_table
from octavo.reporting.evaluation_tables import evaluation_markdown, evaluation_table
from octavo.reporting.figures import counted_share_text, difference_text, metric_text, time_text

EVIL = "<script>\x1b[31m|x"


@pytest.mark.parametrize(
    ("value", "half", "percent", "text"),
    [
        (-0.003, 0.004, True, "−0.3 points ± 0.4"),
        (0.0125, 0.02, True, "+1.2 points ± 2.0"),
        (-0.00001, 0.004, True, "0.0 points ± 0.4"),
        (1.25, 0.5, False, "+1.25 ± 0.5"),
    ],
)
def test_differences_have_a_sign_and_a_width(value: float, half: float, percent: bool, text: str) -> None:
    assert difference_text({"name": "m", "value": value, "half_width": half}, percent) == text


def test_figures_and_times_are_readable() -> None:
    assert metric_text("top1", 0.7184, True) == "71.8 %"
    assert metric_text("perplexity", float("inf"), False) == "∞"
    assert metric_text("top1", float("nan"), True) == "–"
    assert [time_text(t) for t in (2.5, 0.0123, 0.00000042, None)] == ["2.5 s", "12.3 ms", "0.42 µs", "–"]


def evaluation() -> dict[str, Any]:
    score = {"name": "top1", "value": 0.5, "low": 0.4, "high": 0.6, "higher_is_better": True, "percent": True}
    return {
        "task": "classification",
        "model": EVIL,
        "against": None,
        "samples": 2,
        "scores": [score],
        "against_scores": [],
        "differences": [],
        "per_class": {"figure": "top1", "model": [{"name": EVIL, "value": 0.5, "count": 2}], "against": []},
        "settings": {},
        "notes": [EVIL],
    }


def measurement() -> dict[str, Any]:
    latency = {"median": 0.001, "low": 0.001, "high": 0.002, "best": 0.001}
    part = {"node": EVIL, "op_type": "Tanh", "seconds": 0.001, "conversion_seconds": 0.0}
    model = {
        "name": EVIL,
        "file_bytes": 10,
        "latency": latency,
        "load_seconds": None,
        "memory_bytes": None,
        "ops": [{"op_type": EVIL, "count": 1, "seconds": 0.002}],
        "unfused": [part],
    }
    return {
        "models": [model], "ratio": None, "rounds": 9, "batch": 1, "threads": None, "data": EVIL,
        "clock": "cpu", "notes": [],
    }  # fmt: skip


def test_names_from_untrusted_files_do_nothing() -> None:
    texts = [evaluation_table(evaluation(), classes=5), bench_table(measurement())]
    pages = [evaluation_markdown(evaluation(), EVIL), bench_markdown(measurement(), EVIL)]
    assert not any("\x1b" in text for text in texts + pages)
    assert not any("<script>" in page for page in pages)
    assert "50 % of the time" in texts[1]
    assert "processor time" in texts[1]


def test_a_share_of_few_samples_has_a_wide_interval() -> None:
    assert counted_share_text(5 / 6, 6) == "83.3 % ± 26.7"
    assert counted_share_text(0.9, 10_000) == "90.0 % ± 0.6"
    assert counted_share_text(1.0, 6) == "100.0 % ± 19.5"


def test_a_lopsided_interval_is_told_by_its_ends() -> None:
    one = {"name": "map", "value": -0.039, "low": -0.061, "high": 0.001, "half_width": 0.031}
    assert difference_text(one, percent=True) == "−3.9 points (−6.1 … +0.1)"
