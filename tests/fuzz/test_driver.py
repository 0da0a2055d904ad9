"""What the fuzzing driver takes for a hang."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="the limits of the harnesses are those of POSIX")

from fuzzing.campaign import Found, Journal
from fuzzing.driver import PATIENCE, Driver, Worker


@pytest.mark.parametrize(
    ("clock", "used", "hangs"),
    [
        (1.0, 2 * PATIENCE, False),  # it has just begun
        (2 * PATIENCE, 0.0, False),  # the machine is busy: it got no processor
        (2 * PATIENCE, 2 * PATIENCE, True),
        (20 * PATIENCE, 0.0, True),  # it waits for what never comes
    ],
)
def test_an_input_hangs_by_its_processor_time(
    clock: float, used: float, hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        now, spent = time.monotonic(), Worker("model", child, tmp_path, 0.0, 60.0).used()
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: now - clock)
            patch.setattr(time, "process_time", lambda: spent - used)
            Journal(tmp_path / "journal", fresh=True).begin(1, b"input")
        worker = Worker("model", child, tmp_path, now - clock, 60.0)
        assert worker.hangs() is hangs
        assert (running := worker.running()) is not None
        assert running.data == b"input"
    finally:
        child.communicate(b"\n")


def test_a_finding_is_handed_on_as_soon_as_its_worker_has_ended(tmp_path: Path) -> None:
    kept: list[Found] = []
    driver = Driver(("model",), "random", 60.0, 1, 0, kept.append)
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    (tmp_path / "log").write_bytes(b"")
    driver._workers.append(Worker("model", child, tmp_path, time.monotonic(), 60.0))
    while driver._workers:
        driver._look()
    assert [(one.harness, one.kind) for one in kept] == [("model", "exit")]
