"""Progress: a bar on a terminal, plain lines elsewhere, nothing for what is quick."""

from __future__ import annotations

import io
import time

import pytest

from octavo.cli import console as module
from octavo.cli.console import Console, show
from octavo.core.progress import WHOLE_RUN, WHOLE_RUN_BOUNDS


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_quick_phases_leave_no_trace() -> None:
    for stream in (io.StringIO(), Terminal()):
        console = Console(stream=stream)
        console.progress("calibrate", 1, 2)
        console.progress("calibrate", 2, 2)
        console.end_phase()
        assert stream.getvalue() == ""


def test_a_long_phase_leaves_one_plain_line_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    stream = io.StringIO()
    console = Console(stream=stream)
    console.progress("calibrate", 1, 2)
    console.progress("calibrate", 2, 2)
    console.progress("emit", 0, None)
    console.end_phase()
    lines = stream.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == ["calibrate 2 of 2", "emit"]


def test_a_very_long_phase_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    stream = io.StringIO()
    console = Console(stream=stream)
    for done in range(3):
        console.progress("calibrate", done, 3)
    assert "calibrate 1 of 3" in stream.getvalue()


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    stream = Terminal()
    console = Console(stream=stream)
    console.progress("cali[red]brate", 1, 4)
    deadline = time.monotonic() + 5
    while not stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
        console.progress("cali[red]brate", 2, 4)
    console.end_phase()
    assert "cali[red]brate" in stream.getvalue()
    console.note("done")
    assert stream.getvalue().endswith("done\n")


def test_a_bar_says_what_is_done_how_much_and_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phase = module._Phase("calibrate", 30, 40, begun=time.monotonic() - 30)
    assert phase.seconds_left == pytest.approx(10, abs=1)
    assert phase.rest == "30/40, 0:10 left"
    uncounted = module._Phase("time", 7, None, begun=time.monotonic() - 30)
    assert (uncounted.rest, uncounted.seconds_left) == ("7", None)
    assert str(module._Phase("verify", 0, 1)) == "verify, 0 s"


def test_where_the_whole_run_is_estimated_that_is_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 60.0)
    bar = module._Bar(Terminal())
    bar.update("calibrate", 3, 4)
    bar.update(WHOLE_RUN, 10, 70)
    assert bar.rest in ("3/4, about 1:00 left in all", "3/4, about 0:59 left in all")
    bar.update(WHOLE_RUN, 80, 80)
    assert bar.rest == "3/4, about 0:01 left in all"
    bar.end()


def test_what_may_be_left_out_makes_a_range_of_what_is_left() -> None:
    now = [100.0]
    whole = module._WholeRun(lambda: now[0])
    assert (whole.rest, whole.share) == ("", None)
    whole.update(WHOLE_RUN_BOUNDS, 50, 130)
    whole.update(WHOLE_RUN, 10, 70)
    assert whole.rest == "0:40 to 2:00 left in all"
    assert whole.share == pytest.approx(10 / 70)
    whole.update(WHOLE_RUN_BOUNDS, 30, 130)
    whole.update(WHOLE_RUN, 10, 70)
    assert whole.rest == "at least 0:20 left in all"
    whole.update(WHOLE_RUN_BOUNDS, 60, 75)
    whole.update(WHOLE_RUN, 10, 70)
    assert whole.rest == "about 1:00 left in all"


def test_an_estimate_that_is_over_does_not_stand_still() -> None:
    now = [0.0]
    whole = module._WholeRun(lambda: now[0])
    whole.update(WHOLE_RUN, 0, 40)
    shown = []
    for now[0] in range(0, 200, 2):
        shown.append((whole.rest, round(whole.share or 0.0, 3)))
    assert shown[10][0] == "about 0:20 left in all"
    assert shown[80][0] == "about 0:40 left in all"  # a quarter of the 160 seconds since the estimate
    assert len({share for _, share in shown[:17]}) == 17
    assert max(share for _, share in shown) < 1


def test_a_log_says_how_long_the_whole_run_takes_and_no_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    stream = io.StringIO()
    console = Console(stream=stream)
    console.progress("calibrate", 0, 4)
    console.progress(WHOLE_RUN, 10, 71)
    console.progress("calibrate", 1, 4)
    last = stream.getvalue().splitlines()[-1]
    assert last.startswith("calibrate 1 of 4")
    assert "about 1:01 left in all" in last
    assert WHOLE_RUN not in stream.getvalue()


def test_one_bar_stays_for_all_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    stream = Terminal()
    console = Console(stream=stream)
    deadline = time.monotonic() + 5
    names = [f"phase {number}" for number in range(4)]
    for name in names:
        while name not in stream.getvalue() and time.monotonic() < deadline:
            console.progress(name, 0, None)
            time.sleep(0.01)
    console.end_phase()
    assert all(name in stream.getvalue() for name in names)


def test_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    stream = io.StringIO()
    console = Console(quiet=True, stream=stream)
    console.note("a remark")
    console.progress("calibrate", 1, 1)
    console.end_phase()
    assert stream.getvalue() == ""


def test_remarks_can_not_steer_the_terminal() -> None:
    stream = io.StringIO()
    Console(stream=stream).note("a\x1b[2Jb")
    assert stream.getvalue() == "a[2Jb\n"


def test_an_answer_that_fits_the_terminal_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table = "name    value\n------  -----\nstatic  [1]"
    show(table)
    assert capsys.readouterr().out == table + "\n"
