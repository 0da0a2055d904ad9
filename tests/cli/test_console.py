"""Progress: a bar on a terminal, plain lines elsewhere, nothing for what is quick."""

from __future__ import annotations

import io
import time

import pytest

from octavo.cli import console as module
from octavo.cli.console import Console, show


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
