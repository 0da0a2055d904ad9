"""Compressed weights in the automatic choice: when they are tried, and how such a trial is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import model, node, tensor

import octavo
from octavo import tune
from octavo.core.qtypes import INT8
from octavo.core.recipe import COMPRESSED
from octavo.evaluation.timing.latency import Ratio
from octavo.targets import target
from octavo.tuning import runner
from octavo.tuning.candidates import Candidate, compressed_round
from octavo.tuning.choice import Unchanged, compressed_could_win, pick
from octavo.tuning.requirements import Requirements
from octavo.tuning.trial import Trial
from tuning.nets import conv_and_linear, samples


def trial(name: str, speed: Ratio | float, decibels: float, size: int = 100) -> Trial:
    made = speed if isinstance(speed, Ratio) else Ratio(speed, speed, speed)
    return Trial(Candidate(name, octavo.W8A8, ""), None, decibels, None, made, size)


def compressed(speed: Ratio | float, decibels: float, size: int = 100) -> Trial:
    """A trial that quantizes nothing."""
    result: Any = SimpleNamespace(plan=SimpleNamespace(nodes={}))
    return replace(trial("compressed", speed, decibels, size), result=result)


def test_the_clock_does_not_reject_what_runs_float() -> None:
    found = compressed(Ratio(0.96, 0.955, 0.97), 30)
    assert Requirements().missed(found) is None
    assert pick([found], Requirements())[1]
    assert Requirements().missed(replace(found, result=None)) is not None


def test_what_is_clearly_slower_is_rejected_though_it_runs_float() -> None:
    assert "not faster" in (Requirements().missed(compressed(Ratio(0.8, 0.75, 0.85), 30)) or "")


def test_a_demand_for_more_speed_is_not_met_by_float() -> None:
    assert "less than 1.2" in (Requirements(min_speed=1.2).missed(compressed(1.15, 30)) or "")


def test_at_like_speed_what_computes_with_integers_is_chosen() -> None:
    best, met, _ = pick([trial("dynamic", 1.06, 34), compressed(1.03, 35)], Requirements())
    assert (best.name, met) == ("dynamic", True)


def test_float_is_chosen_before_what_is_slower_or_far_off() -> None:
    best, met, reason = pick(
        [trial("dynamic", 0.9, 34), trial("static", 1.1, 16), compressed(0.97, 34)], Requirements()
    )
    assert (best.name, met) == ("compressed", True)
    assert "0.97 × as fast as float" in reason


def test_it_is_tried_only_where_it_could_win() -> None:
    assert compressed_could_win([], Requirements(), Unchanged(400))
    assert compressed_could_win([trial("slow", 0.9, 40)], Requirements(), Unchanged(400))
    assert compressed_could_win([trial("far", 1.1, 16)], Requirements(), Unchanged(400))
    assert not compressed_could_win([trial("fast", 1.8, 25)], Requirements(), Unchanged(400))
    assert not compressed_could_win([trial("as good", 1.0, 45)], Requirements(), Unchanged(400))


def speeds(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """All trials are so fast; the prepared float model, which is not a file, is as fast as before."""

    def fixed(_: Any, models: Any, *rest: Any, **more: Any) -> list[Ratio]:
        found = [value if isinstance(one, Path) else 1.0 for one in models]
        return [Ratio(times, times, times) for times in found]

    monkeypatch.setattr(runner, "speeds", fixed)


def names(tuned: octavo.Tuned) -> list[str]:
    return [one.name for one in tuned.trials]


def test_where_nothing_is_fast_enough_float_with_compressed_weights_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds(monkeypatch, 0.96)
    tuned = tune(conv_and_linear(), samples(8), threads=1, engine="serial")
    assert tuned.met
    assert tuned.best is not None
    assert tuned.best.name == "compressed"
    assert tuned.result is not None
    assert set(tuned.result.plan.compressed) == {"k", "w1"}
    assert not tuned.result.plan.nodes


def test_where_integers_pay_it_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, 2.0)
    tuned = tune(conv_and_linear(), samples(8), threads=1, engine="serial")
    assert "compressed" not in names(tuned)


def test_the_dynamic_trial_compresses_what_it_leaves_float(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, 2.0)
    tuned = tune(conv_and_linear(), samples(8), threads=1, engine="serial")
    (dynamic,) = [one for one in tuned.trials if one.name == "dynamic"]
    assert dynamic.candidate.recipe.compressed is INT8
    assert dynamic.result is not None
    assert set(dynamic.result.plan.compressed) == {"k"}
    assert dynamic.size is not None
    assert dynamic.size < 0.4


def test_where_that_is_too_far_from_float_the_dynamic_trial_is_made_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds(monkeypatch, 2.0)
    tuned = tune(conv_and_linear(), None, threads=1, requirements=Requirements(min_sqnr=200), time_limit=None)
    assert names(tuned)[:2] == ["dynamic", "dynamic, other weights float"]
    assert tuned.trials[1].candidate.recipe.compressed is None


def test_a_choice_of_nodes_leaves_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, 0.96)
    tuned = tune(conv_and_linear(), None, threads=1, include=("first",))
    assert names(tuned) == ["dynamic"]
    assert tuned.trials[0].candidate.recipe.compressed is None
    assert not compressed_round(target("ort-cpu"), octavo.W8A8.but(op_types=("MatMul",)))
    assert compressed_round(target("ort-cpu"), octavo.W8A8)[0].recipe == COMPRESSED


def test_static_trials_compress_the_weights_that_they_leave_float(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, 2.0)
    rng = np.random.default_rng(4)
    arrays = {
        "w": rng.normal(size=(1, 96, 32)).astype(np.float32) / 8,
        "r": rng.normal(size=(1, 96, 32)).astype(np.float32) / 8,
        "m": rng.normal(size=(32, 64)).astype(np.float32) / 6,
    }
    nodes = [
        node("GRU", ["x", "w", "r"], ["h", ""], "gru", hidden_size=32),
        node("MatMul", ["h", "m"], ["y"], "product"),
    ]
    proto = model(nodes, [tensor("x", [6, 1, 32])], [tensor("y", None)], arrays)
    data = [{"x": rng.normal(size=(6, 1, 32)).astype(np.float32)} for _ in range(8)]
    tuned = tune(proto, data, threads=1, engine="serial")
    (static,) = [one for one in tuned.trials if one.name == "static"]
    assert static.result is not None
    assert set(static.result.plan.nodes) == {"product"}
    assert set(static.result.plan.compressed) == {"w", "r"}
    assert static.size is not None
    assert static.size < 0.5
