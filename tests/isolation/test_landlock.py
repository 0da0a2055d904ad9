"""What an isolated run may write to: the folders of its outputs, and its own temporary one."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from hostile.models import feeds, layer, written

import octavo
from octavo.cli.console import Console
from octavo.cli.isolated import _say_what_is_missing
from octavo.isolation import confine, landlock
from octavo.isolation.limits import Limits
from octavo.isolation.parent import Call, run

kept = pytest.mark.skipif(
    landlock.version() < 3, reason="this kernel does not keep a process from writing elsewhere (Landlock)"
)


@kept
def test_a_worker_changes_nothing_outside_its_folders(tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    for folder in (out, other):
        folder.mkdir()
        (folder / "old").write_text("old")
    heard: list[dict[str, Any]] = []
    call = Call("isolation.acts:change_all", {"out": str(out), "other": str(other)}, (out,))
    answer = run(call, Limits.of("512MiB", 60, "8MiB"), heard.append)["data"]
    assert set(answer["other"].values()) == {"refused"}, answer["other"]
    allowed = {name for name, how in answer["out"].items() if how == "done"}
    assert allowed == {"write", "create", "truncate", "make-folder", "move", "remove"}, answer["out"]
    assert answer["temporary"] == "done"
    assert answer["read"] == "old"
    assert [path.name for path in other.iterdir()] == ["old"]
    assert (other / "old").read_text() == "old"
    assert heard[0]["files"] is False


@pytest.mark.skipif(landlock.version() < 6, reason="this kernel does not hold signals back (Landlock 6)")
def test_a_worker_can_not_end_other_processes_of_the_user() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        call = Call("isolation.acts:end", {"process": child})
        assert run(call, Limits.of("512MiB", 60, "8MiB"), lambda message: None)["text"] == "PermissionError"
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_an_outcome_says_whether_writes_were_kept(tmp_path: Path) -> None:
    model = written(layer(), tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    outcome = octavo.isolated(memory="4GiB", seconds=300).calibrate(
        model, None, feeds(), output=out / "a.stats", checkpoint=tmp_path / "a.checkpoint", threads=1
    )
    assert outcome.written == (out / "a.stats",)
    assert outcome.writes_kept is (landlock.version() >= 3)


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_kernel_that_is_too_old_gives_nothing_up(monkeypatch: pytest.MonkeyPatch, known: int) -> None:
    monkeypatch.setattr(landlock, "version", lambda: known)
    assert not landlock.keep_writes_below(["/nowhere"])


def test_what_the_system_can_not_do_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _say_what_is_missing({"network": False, "files": False}, Console())
    assert capsys.readouterr().err == ""
    _say_what_is_missing({}, Console())
    said = capsys.readouterr().err
    assert "network" in said
    assert "writing elsewhere" in said


@pytest.mark.skipif(landlock.version() < 4, reason="this kernel does not hold TCP back (Landlock 4)")
def test_tcp_is_refused_even_where_the_network_could_not_be_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                confine.give_up_privileges()
                if landlock.keep_writes_below([]):
                    socket.create_connection(server.getsockname(), timeout=5)
            except PermissionError:
                code = 42
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
