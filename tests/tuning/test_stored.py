"""Stored weights in the automatic choice: when they are tried, and how such a trial is judged."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import octavo
from octavo.core.qtypes import INT8
from octavo.core.recipe import STORED
from octavo.evaluation.latency import Ratio
from octavo.targets import target
from octavo.tuning import Demands, workshop
from octavo.tuning.candidates import Candidate, stored_round
from octavo.tuning.choice import pick, stored_could_win
from octavo.tuning.search import tune
from octavo.tuning.trial import Trial
from tuning.nets import conv_and_linear, samples


def trial(name: str, speed: Ratio | float, decibels: float, size: int = 100) -> Trial:
    made = speed if isinstance(speed, Ratio) else Ratio(speed, speed, speed)
    return Trial(Candidate(name, octavo.W8A8, ""), None, decibels, None, made, size)


def stored(speed: Ratio | float, decibels: float, size: int = 100) -> Trial:
    """A trial that quantizes nothing."""
    result: Any = SimpleNamespace(plan=SimpleNamespace(nodes={}))
    return replace(trial("stored", speed, decibels, size), result=result)


def test_the_clock_does_not_reject_what_runs_float() -> None:
    found = stored(Ratio(0.96, 0.955, 0.97), 30)
    assert Demands().missed(found) is None
    assert pick([found], Demands())[1]
    assert Demands().missed(replace(found, result=None)) is not None


def test_what_is_clearly_slower_is_rejected_though_it_runs_float() -> None:
    assert "less than 1" in (Demands().missed(stored(Ratio(0.8, 0.75, 0.85), 30)) or "")


def test_a_demand_for_more_speed_is_not_met_by_float() -> None:
    assert "less than 1.2" in (Demands(min_speed=1.2).missed(stored(1.15, 30)) or "")


def test_at_like_speed_what_computes_with_integers_is_chosen() -> None:
    best, met, _ = pick([trial("dynamic", 1.06, 34), stored(1.03, 35)], Demands())
    assert (best.name, met) == ("dynamic", True)


def test_float_is_chosen_before_what_is_slower_or_far_off() -> None:
    best, met, reason = pick(
        [trial("dynamic", 0.9, 34), trial("static", 1.1, 16), stored(0.97, 34)], Demands()
    )
    assert (best.name, met) == ("stored", True)
    assert "0.97 × as fast as float" in reason


def test_it_is_tried_only_where_it_could_win() -> None:
    assert stored_could_win([], Demands(), 400)
    assert stored_could_win([trial("slow", 0.9, 40)], Demands(), 400)
    assert stored_could_win([trial("far", 1.1, 16)], Demands(), 400)
    assert not stored_could_win([trial("fast", 1.8, 25)], Demands(), 400)
    assert not stored_could_win([trial("as good", 1.0, 45)], Demands(), 400)


def speeds(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """All trials are so fast."""
    same = Ratio(value, value, value)
    monkeypatch.setattr(workshop, "speeds", lambda _, models, *rest, **more: [same] * len(models))


def names(tuned: octavo.Tuned) -> list[str]:
    return [one.name for one in tuned.trials]


def test_where_nothing_is_fast_enough_float_with_stored_weights_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds(monkeypatch, 0.96)
    tuned = tune(conv_and_linear(), samples(8), threads=1, engine="serial")
    assert tuned.met
    assert tuned.best is not None
    assert tuned.best.name == "stored"
    assert tuned.result is not None
    assert set(tuned.result.plan.stored) == {"k", "w1"}
    assert not tuned.result.plan.nodes


def test_where_integers_pay_it_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, 2.0)
    tuned = tune(conv_and_linear(), samples(8), threads=1, engine="serial")
    assert "stored" not in names(tuned)


def test_the_dynamic_trial_stores_what_it_leaves_float(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, 2.0)
    tuned = tune(conv_and_linear(), samples(8), threads=1, engine="serial")
    (dynamic,) = [one for one in tuned.trials if one.name == "dynamic"]
    assert dynamic.candidate.recipe.stored is INT8
    assert dynamic.result is not None
    assert set(dynamic.result.plan.stored) == {"k"}
    assert dynamic.size is not None
    assert dynamic.size < 0.4


def test_where_that_is_too_far_from_float_the_dynamic_trial_is_made_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds(monkeypatch, 2.0)
    tuned = tune(conv_and_linear(), None, threads=1, demands=Demands(min_sqnr=200), time_limit=None)
    assert names(tuned)[:2] == ["dynamic", "dynamic, other weights float"]
    assert tuned.trials[1].candidate.recipe.stored is None


def test_a_choice_of_nodes_leaves_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, 0.96)
    tuned = tune(conv_and_linear(), None, threads=1, include=("first",))
    assert names(tuned) == ["dynamic"]
    assert tuned.trials[0].candidate.recipe.stored is None
    assert not stored_round(target("ort-cpu"), octavo.W8A8.but(op_types=("MatMul",)))
    assert stored_round(target("ort-cpu"), octavo.W8A8)[0].recipe == STORED
