"""The other side: a watcher that keeps the limits, and the worker that it forks.

The watcher loads and runs nothing that is untrusted. It ends the worker when time is up or the caller is
gone, and with it every process that the worker has started.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from octavo.isolation import confine, landlock

Emit: TypeAlias = Callable[[dict[str, Any]], None]

_PAUSE = 0.05  # seconds between two words on progress


def main() -> NoReturn:
    """``python -c … <settings>``: give up what can be given up, fork, watch."""
    settings = json.loads(sys.argv[1])
    emit = _emitter(1)
    network_cut = confine.give_up_network()
    confine.give_up_privileges()
    files_kept = landlock.keep_writes_below(settings["writable"])
    emit({"kind": "isolation", "network": not network_cut, "files": not files_kept})
    confine.adopt_orphans()
    worker = os.fork()
    if worker == 0:
        _work(settings)
    status, in_time = _watch(worker, settings["seconds"])
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        emit({"kind": "end", "code": code, "in_time": in_time})
    os._exit(0)


def _emitter(descriptor: int) -> Emit:
    def emit(message: dict[str, Any]) -> None:
        content = json.dumps(message, default=str).encode("ascii") + b"\n"
        while content:
            content = content[os.write(descriptor, content) :]

    return emit


def _watch(worker: int, seconds: float) -> tuple[int, bool]:
    """Wait for the worker to end, or end it; returns its status, and whether time was left."""
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(worker, number))
    end = time.monotonic() + seconds
    watched, in_time, stopping = [0, awake], True, False
    while (status := _reap(worker)) is None:
        readable = select.select(watched, [], [], 1.0 if stopping else max(end - time.monotonic(), 0.0))[0]
        if awake in readable:
            os.read(awake, 1 << 10)
        late = not stopping and time.monotonic() >= end
        if late or (0 in readable and not os.read(0, 1)):  # the caller never writes: it is gone
            in_time, stopping, watched = not late, True, [awake]
            os.kill(worker, signal.SIGKILL)
    _end_all()
    return status, in_time


def _reap(worker: int) -> int | None:
    """Take note of processes that have ended; the worker's status, if it is one of them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                break
            if process == worker:
                found = status
    return found


def _end_all() -> None:
    """End what the worker has started and left; each one's own children come here, and are next."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for process in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(entry.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(entry.parent.name))
    return found


def _work(settings: dict[str, Any]) -> NoReturn:
    """Run the worker: limits first, then the call, then a word on how it went."""
    code = 70
    try:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        emit = _emitter(_rearrange())
        confine.limit(settings["memory"], settings["seconds"], settings["file_size"])
        try:
            module, _, name = settings["entry"].partition(":")
            work = getattr(importlib.import_module(module), name)
            emit({"kind": "answer", **work(_called(settings["call"]), _thinned(emit))})
            code = 0
        except Exception as error:
            if settings["debug"]:
                traceback.print_exception(error)
            emit({"kind": "error", "type": type(error).__name__, "message": str(error)[: 1 << 16]})
            code = 1
    except KeyboardInterrupt:
        code = 130
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 70
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _called(path: str) -> Any:
    """Return what the trusted caller requests."""
    with Path(path).open("rb") as file:
        return pickle.load(file)


def _rearrange() -> int:
    """Keep the way to the caller for messages alone: what libraries print goes with the errors."""
    messages = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return messages


def _thinned(emit: Emit) -> Emit:
    """Return the same, with no more words on progress than anybody can read."""
    last: list[Any] = ["", 0.0]

    def thinned(message: dict[str, Any]) -> None:
        if message["kind"] == "progress":
            now = time.monotonic()
            whole = message["done"] == message["total"]
            if message["phase"] == last[0] and now - last[1] < _PAUSE and not whole:
                return
            last[:] = message["phase"], now
        emit(message)

    return thinned
