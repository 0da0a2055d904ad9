"""What ends a search early, the time limit or Ctrl-C, leaves the best so far."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo import pipeline
from octavo.core.progress import silent
from octavo.evaluation.timing.latency import Ratio
from octavo.tuning import runner, search
from octavo.tuning.deadline import TIME_LIMIT, Deadline, Limit, OutOfTime
from octavo.tuning.requirements import Requirements
from tuning.nets import conv_and_linear, samples


@pytest.fixture(autouse=True)
def _untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    same = Ratio(1.5, 1.5, 1.5)
    monkeypatch.setattr(runner, "speeds", lambda _, models, *rest, **more: [same] * len(models))


def tune(**more: Any) -> octavo.Tuned:
    options = {"threads": 1, "requirements": Requirements(min_speed=0.0), "engine": "serial", **more}
    return octavo.tune(conv_and_linear(), samples(8), **options)


def with_steps(monkeypatch: pytest.MonkeyPatch, happens: Any) -> None:
    """Let something happen while a trial with steps is made."""
    real = pipeline.quantize

    def quantize(source: Any, data: Any, recipe: octavo.Recipe, target: Any, run: pipeline.Run) -> Any:
        if recipe.steps:
            happens(run)
        return real(source, data, recipe, target, run)

    monkeypatch.setattr(pipeline, "quantize", quantize)


def test_a_running_trial_is_stopped_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    deadline = Deadline()
    monkeypatch.setattr(Deadline, "after", lambda seconds: deadline)

    def too_long(run: pipeline.Run) -> None:
        deadline.limit = Limit(0)
        run.progress("calibrate", 1, 2)
        pytest.fail("the trial went on")

    with_steps(monkeypatch, too_long)
    tuned = tune(time_limit=60)
    assert tuned.met
    assert any("time limit" in (trial.error or "") for trial in tuned.trials)
    assert any("time limit of 0 s" in note for note in tuned.notes)


def test_calibration_is_stopped_too_once_there_is_a_result_that_needs_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deadline, real = Deadline(), runner.statistics
    monkeypatch.setattr(Deadline, "after", lambda seconds: deadline)

    def statistics(*arguments: Any, **more: Any) -> Any:
        deadline.limit = Limit(0)
        return real(*arguments, **more)

    monkeypatch.setattr(runner, "statistics", statistics)
    tuned = tune(time_limit=60, output=tmp_path / "out.onnx")
    assert [trial.name for trial in tuned.trials] == ["dynamic"]
    assert tuned.met
    assert octavo.inspect(tmp_path / "out.onnx")


def test_before_there_is_a_result_nothing_is_stopped() -> None:
    late = Deadline.after(0)
    late.checked(silent)("calibrate", 1, 2)
    late.is_armed = True
    with pytest.raises(OutOfTime):
        late.checked(silent)("calibrate", 1, 2)


def test_ctrl_c_keeps_the_best_so_far_under_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[bool] = []

    def interrupted(run: pipeline.Run) -> None:
        seen.append((tmp_path / "out.onnx").exists())
        raise KeyboardInterrupt

    with_steps(monkeypatch, interrupted)
    tuned = tune(output=tmp_path / "out.onnx")
    assert seen == [True]  # the first usable result was there already
    assert tuned.met
    assert any("stopped" in note for note in tuned.notes)
    assert octavo.inspect(tmp_path / "out.onnx")


def test_ctrl_c_before_the_first_result_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "quantize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune()


def test_waiting_for_other_programs_does_not_count_unless_a_limit_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    default, given = Deadline.after(TIME_LIMIT), Deadline.after(180)
    for deadline in (default, given):
        deadline.is_armed = True
        deadline.began -= 1000  # of which the processor was used for next to nothing
    assert not default.is_over
    assert given.is_over


def test_a_limit_may_count_from_before_the_search() -> None:
    late = Deadline.after(Limit(10, began=time.monotonic() - 20))
    late.is_armed = True
    assert late.is_over


def test_weak_layers_are_not_looked_for_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    deadline = Deadline()
    monkeypatch.setattr(Deadline, "after", lambda seconds: deadline)
    monkeypatch.setattr(runner, "sensitivity", lambda *_: pytest.fail("layers were looked at"))
    monkeypatch.setattr(search.Search, "_try_steps", lambda _: setattr(deadline, "limit", Limit(0)))
    tuned = tune(time_limit=60)
    assert tuned.met
    assert tuned.layers == ()
