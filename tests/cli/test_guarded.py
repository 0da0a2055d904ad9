"""A crash of native code on the command line ends in a sentence, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hostile.models import feeds, layer, written

from octavo.cli import guarded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a command is one process")

KEPT = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
DATA = """
import ctypes, os, pathlib, time
from octavo.core import scratch
from octavo.core.leftovers import new_name

def crash():
    scratch.lasting_folder()
    pathlib.Path(new_name("tmp")).write_text("half")
    ctypes.string_at(0)
    yield {}

def killed():
    os.kill(os.getpid(), 9)
    yield {}

def sleep():
    pathlib.Path("asleep").write_text(f"{os.getpid()} {os.getppid()}")
    time.sleep(600)
    yield {}

def crash_when_stopped():
    try:
        yield from sleep()
    finally:
        ctypes.string_at(0)

def deaf():
    while True:
        try:
            yield from sleep()
        except BaseException:
            pass

def loading():
    try:
        yield from sleep()
    except BaseException as error:
        raise ImportError("a library could not be loaded") from error
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    written(layer(), tmp_path)
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "out.onnx").write_bytes(b"old")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _started(*arguments: str) -> subprocess.Popen[str]:
    here = str(Path("tmp").absolute())
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "octavo",
            "quantize",
            "model.onnx",
            "-o",
            "out.onnx",
            "--plain",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**KEPT, "TMPDIR": here, "HOME": here, "XDG_CACHE_HOME": here, "PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=True,
    )


def _asleep() -> list[int]:
    end = time.monotonic() + 60
    while not (Path("asleep").exists() and Path("asleep").read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    return [int(number) for number in Path("asleep").read_text().split()]


def test_without_a_further_process_the_command_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    stop = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)}
    monkeypatch.setattr(os, "fork", refused)
    try:
        guarded.split(["ops"])
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(stop)
        assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        for number, handler in stop.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(("data", "words"), [("crash", "crashed (SIGSEGV)"), ("killed", "ended (SIGKILL)")])
def test_a_crash_is_a_sentence(folder: Path, data: str, words: str) -> None:
    process = _started("--data", f"data:{data}", "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert words in err
    assert "Traceback" not in err
    assert json.loads(out)["error"]["type"] == "IsolationError"
    assert {path.name for path in folder.iterdir()} == {"model.onnx", "data.py", "tmp", "out.onnx"}
    assert (folder / "out.onnx").read_bytes() == b"old"
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code", "whole"),
    [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)],
    ids=["interrupt-to-the-group", "request-to-one-process"],
)
def test_a_request_to_stop_reaches_the_child_once(folder: Path, number: int, code: int, whole: bool) -> None:
    process = _started("--data", "data:sleep")
    child, parent = _asleep()
    assert parent == process.pid
    (os.killpg if whole else os.kill)(process.pid, number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert not Path(f"/proc/{child}").exists()
    assert list((folder / "tmp").iterdir()) == []


def test_the_third_request_ends_native_code_that_does_not_listen(folder: Path) -> None:
    process = _started("--data", "data:deaf")
    child, _ = _asleep()
    for _ in range(3):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.1)  # signals that wait together are one
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not Path(f"/proc/{child}").exists()
    assert (folder / "out.onnx").read_bytes() == b"old"
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_request_to_stop_that_a_library_makes_an_error_of_is_one_still(
    folder: Path, number: int, code: int
) -> None:
    process = _started("--data", "data:loading")
    _asleep()
    os.kill(process.pid, number)
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, "loaded" in said) == (code, False)
    assert ("interrupted" in said) is (number == signal.SIGINT)
    assert (folder / "out.onnx").read_bytes() == b"old"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_library_that_crashes_when_it_is_stopped_is_no_fault_of_the_model(
    folder: Path, number: int, code: int
) -> None:
    process = _started("--data", "data:crash_when_stopped")
    _asleep()
    os.kill(process.pid, number)
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, "crashed" in said) == (code, False)
    assert (folder / "out.onnx").read_bytes() == b"old"
    assert list((folder / "tmp").iterdir()) == []


def test_a_command_that_is_killed_takes_its_child_along(folder: Path) -> None:
    process = _started("--data", "data:sleep")
    child, _ = _asleep()
    process.kill()
    process.communicate(timeout=60)
    end = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}").exists()


def test_a_command_that_ends_well_leaves_nothing_among_temporary_files_and_at_home(folder: Path) -> None:
    """Not the identifier, database and session of the runtime's telemetry either."""
    np.savez("calib.npz", x=np.concatenate([one["x"] for one in feeds()]))
    process = _started("--data", "calib.npz", "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["written"] == ["out.onnx"]
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize("flag", ["--debug", "--isolate", "--limits=seconds=3", "--help", "--version"])
def test_debuggers_isolation_and_help_have_one_process(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded.threading, "active_count", lambda: 1)  # those of the test's own runner
    assert guarded.is_wanted(["inspect", "model.onnx"])
    assert not guarded.is_wanted(["inspect", "model.onnx", flag])
