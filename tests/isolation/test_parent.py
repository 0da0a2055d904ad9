"""A worker that crashes, hangs, hoards or lies is an error here, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import DataError, IsolationError, ModelError, RecipeError
from octavo.isolation import parent
from octavo.isolation.handle import refuse_network
from octavo.isolation.limits import Limits
from octavo.isolation.parent import Call, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and /proc")

LIMITS = Limits.of("512MiB", 60, "8MiB")


def act(
    name: str,
    given: Any = None,
    limits: Limits = LIMITS,
    listen: Callable[[dict[str, Any]], None] = lambda message: None,
    folders: tuple[Path, ...] = (),
) -> dict[str, Any]:
    return run(Call(f"isolation.acts:{name}", given, folders), limits, listen)


def test_a_worker_sees_nothing_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    heard: list[dict[str, Any]] = []
    with socket.create_server(("127.0.0.1", 0)) as server, Path(__file__).open() as file:
        os.set_inheritable(file.fileno(), True)
        given = {"port": server.getsockname()[1]}
        seen = act("surroundings", given, listen=heard.append)["data"]
    assert seen["call"] == given
    assert not {"SECRET_TOKEN", "HTTPS_PROXY"} & set(seen["environment"])
    opened = {target for number, target in seen["descriptors"].items() if int(number) > 2}
    assert all(target.startswith(("pipe:", "gone", "/proc/")) for target in opened), opened
    assert seen["descriptors"]["0"] == os.devnull
    assert seen["core"] == [0, 0]
    assert seen["session"] != os.getsid(0)
    assert not Path(seen["temporary"]).exists()
    assert seen["network"] == heard[0]["network"]


ENDS: dict[str, tuple[str, str]] = {
    "segmentation-fault": ("crash", "SIGSEGV"),
    "abort": ("abort", "SIGABRT"),
    "out-of-memory-killer": ("killed", "SIGKILL"),
    "without-a-word": ("leave", "without an answer"),
    "memory": ("hoard", "needs more memory than its limit, 0.5 GiB"),
    "unforeseen": ("stumble", "ZeroDivisionError: nobody foresaw it"),
}


@pytest.mark.parametrize(("name", "words"), ENDS.values(), ids=ENDS.keys())
def test_an_end_that_is_a_clear_error(name: str, words: str) -> None:
    with pytest.raises(IsolationError) as raised:
        act(name)
    assert words in str(raised.value)
    assert str(raised.value).endswith(".")


def test_time_is_up_for_a_worker_that_will_not_stop() -> None:
    with pytest.raises(IsolationError, match=r"not done after 0\.5 s"):
        act("stubborn", limits=Limits(1 << 29, 0.5, 1 << 23))


def test_a_file_may_not_grow_beyond_its_limit(tmp_path: Path) -> None:
    with pytest.raises(IsolationError, match="File too large"):
        act("write_much", {"path": str(tmp_path / "a")}, folders=(tmp_path,))
    assert (tmp_path / "a").stat().st_size <= 8 << 20


def test_weights_that_are_cut_off_while_they_are_read(tmp_path: Path) -> None:
    with pytest.raises(IsolationError, match="SIGBUS"):
        act("cut_short", {"folder": str(tmp_path)}, folders=(tmp_path,))


def test_an_error_of_ours_comes_back_as_it_is_without_escape_sequences() -> None:
    with pytest.raises(ModelError) as raised:
        act("refuse")
    assert str(raised.value) == "The [31mmodel[0m is wrong."


@pytest.mark.parametrize("content", [b"{", b"[]", b"[" * 100_000, b'{"kind": 3}', b"\xff\xfe"])
def test_nonsense_is_not_believed(content: bytes) -> None:
    with pytest.raises(IsolationError, match="invalid answer"):
        act("babble", {"content": content})


@pytest.mark.parametrize(
    "name", ["closest", "Iterable", "annotations", "__doc__", "SystemExit", "", "x\n\x1b"]
)
def test_an_error_that_is_none_of_ours_is_not_made_up(name: str) -> None:
    found = parent._error({"kind": "error", "type": name, "message": 3}, LIMITS)
    assert type(found) is IsolationError
    assert "\x1b" not in str(found)


def test_prints_go_to_standard_error_cleaned_and_bounded(capfd: pytest.CaptureFixture[str]) -> None:
    assert act("print_much")["text"] == "done"
    out, err = capfd.readouterr()
    assert out == ""
    assert "on standard output" in err
    assert "native ]0;owned" in err
    assert "\x1b" not in err
    assert len(err) < 2 << 20


def test_progress_passes_through_and_is_thinned_out() -> None:
    heard: list[dict[str, Any]] = []
    act("count", 5000, listen=heard.append)
    done = [message["done"] for message in heard if message["kind"] == "progress"]
    assert done[0] == 0
    assert done[-1] == 5000
    assert done == sorted(done)
    assert len(done) < 500


def test_nothing_is_left_of_a_crash(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"old")
    (tmp_path / ".octavo-notes").write_bytes(b"the user's own")
    heard: list[dict[str, Any]] = []
    with pytest.raises(IsolationError):
        act("litter", {"folder": str(tmp_path)}, listen=heard.append, folders=(tmp_path,))
    process, _, temporary = next(m["text"] for m in heard if m["kind"] == "note").partition(" ")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".octavo-notes", "model.onnx"]
    assert not Path(temporary).exists()
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.parametrize("name", ["sleep", "stubborn"])
def test_an_interrupt_passes_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.isolation.parent._PARTING", 0.5)

    def interrupt(message: dict[str, Any]) -> None:
        if message["kind"] == "note":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        act(name, listen=interrupt)


def test_a_caller_that_is_killed_takes_the_worker_along(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            note = tmp_path / "watcher"
            act("sleep", listen=lambda m: m["kind"] == "note" and note.write_text("asleep"))
        finally:
            os._exit(0)
    while not (tmp_path / "watcher").exists():
        time.sleep(0.02)
    below = _below(child)
    assert len(below) >= 2
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    end = time.monotonic() + 30
    while any(Path(f"/proc/{process}").exists() for process in below) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{process}").exists() for process in below)


def _below(process: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == process:
            found += [int(entry.parent.name), *_below(int(entry.parent.name))]
    return found


def test_what_can_not_be_handed_over_is_said() -> None:
    with pytest.raises(DataError, match="path, a list of samples"):
        act("count", (number for number in range(3)))


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("memory=4GiB,seconds=600,file-size=8GB", Limits(4 << 30, 600.0, 8 * 10**9)),
        ("seconds=0.5, memory=300000000", Limits(300_000_000, 0.5, 64 << 30)),
        ("memory=1.5gib", Limits(3 << 29, 3600.0, 64 << 30)),
    ],
)
def test_limits_are_read(text: str, limits: Limits) -> None:
    assert Limits.parse(text) == limits


@pytest.mark.parametrize(
    "text", ["memory", "memory=", "memory=4XB", "memory=1kB", "time=3", "seconds=0", "seconds=nan",
             "seconds=x", "file-size=-1", "memory=" + "9" * 400],
)  # fmt: skip
def test_limits_that_make_no_sense(text: str) -> None:
    with pytest.raises(RecipeError):
        Limits.parse(text)


def test_limits_left_out_are_those_of_the_machine() -> None:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert whole // 2 < Limits.parse("").memory < whole


def test_ray_needs_a_network() -> None:
    with pytest.raises(RecipeError, match="network"):
        refuse_network("ray")
    refuse_network("processes")
