"""What a worker does in these tests: things that a model could make native code do."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.core.leftovers import new_name
from octavo.errors import ModelError

Emit = Callable[[dict[str, Any]], None]


def surroundings(call: Any, emit: Emit) -> dict[str, Any]:
    """All that a worker can see of its caller."""
    return {
        "data": {
            "environment": sorted(os.environ),
            "descriptors": {int(path.name): _target(path) for path in Path("/proc/self/fd").iterdir()},
            "network": _reaches(call["port"]),
            "core": resource.getrlimit(resource.RLIMIT_CORE),
            "temporary": tempfile.gettempdir(),
            "session": os.getsid(0),
            "call": call,
        }
    }


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return "gone"


def _reaches(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def crash(call: Any, emit: Emit) -> dict[str, Any]:
    ctypes.string_at(0)
    return {}


def abort(call: Any, emit: Emit) -> dict[str, Any]:
    os.abort()


def leave(call: Any, emit: Emit) -> dict[str, Any]:
    os._exit(0)


def killed(call: Any, emit: Emit) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def hoard(call: Any, emit: Emit) -> dict[str, Any]:
    return {"text": str(len(bytearray(2 << 30)))}


def sleep(call: Any, emit: Emit) -> dict[str, Any]:
    emit({"kind": "note", "text": "asleep"})
    time.sleep(600)
    return {}


def stubborn(call: Any, emit: Emit) -> dict[str, Any]:
    """Sleep through every polite request to stop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return sleep(call, emit)


def write_much(call: Any, emit: Emit) -> dict[str, Any]:
    with Path(call["path"]).open("wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    return {}


def refuse(call: Any, emit: Emit) -> dict[str, Any]:
    raise ModelError("The \x1b[31mmodel\x1b[0m is wrong.")


def stumble(call: Any, emit: Emit) -> dict[str, Any]:
    raise ZeroDivisionError("nobody foresaw it")


def babble(call: Any, emit: Emit) -> dict[str, Any]:
    """Write into every descriptor there is."""
    for path in Path("/proc/self/fd").iterdir():
        if int(path.name) > 2:
            with contextlib.suppress(OSError):
                os.write(int(path.name), call["content"] + b"\n")
    return {}


def print_much(call: Any, emit: Emit) -> dict[str, Any]:
    print("on standard output", flush=True)
    os.write(1, b"native \x1b]0;owned\x07\n")
    os.write(2, b"x" * (3 << 20))
    return {"text": "done"}


def count(call: Any, emit: Emit) -> dict[str, Any]:
    for done in range(call + 1):
        emit({"kind": "progress", "phase": "count", "done": done, "total": call})
    return {"text": "counted"}


def litter(call: Any, emit: Emit) -> dict[str, Any]:
    """Leave files beside the output, in the folder for temporary files, and a process; then crash."""
    folder = Path(call["folder"])
    (folder / new_name("tmp")).write_bytes(b"half")
    (folder / new_name("dir")).mkdir()
    Path(tempfile.mkdtemp()).joinpath("rest").write_text("rest")
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    emit({"kind": "note", "text": f"{left.pid} {tempfile.gettempdir()}"})
    return crash(call, emit)


def cut_short(call: Any, emit: Emit) -> dict[str, Any]:
    """Read weights from a file that somebody cuts off meanwhile."""
    path = Path(call["folder"]) / "weights.bin"
    path.write_bytes(bytes(1 << 16))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        file.truncate(0)
        return {"text": str(mapped[1 << 15])}


def change_all(call: Any, emit: Emit) -> dict[str, Any]:
    """Try every change to files, where it is allowed and where it is not."""
    out, other = Path(call["out"]), Path(call["other"])
    return {
        "data": {
            "read": (other / "old").read_text(),
            "other": _changes(other, out),
            "out": _changes(out, out),
            "temporary": _tried(lambda: Path(tempfile.mkdtemp()).joinpath("rest").write_text("rest")),
        }
    }


def _changes(folder: Path, out: Path) -> dict[str, str]:
    old, new = folder / "old", folder / "new"
    return {
        "write": _tried(lambda: old.write_text("new")),
        "create": _tried(lambda: new.write_text("new")),
        "truncate": _tried(lambda: os.truncate(old, 0)),
        "make-folder": _tried((folder / "below").mkdir),
        "move": _tried(lambda: old.rename(folder / "below" / "old")),
        "link": _tried(lambda: (folder / "link").symlink_to(out)),
        "pipe": _tried(lambda: os.mkfifo(folder / "pipe")),
        "remove": _tried(lambda: (new if folder == out else old).unlink()),
    }


def _tried(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError:
        return "refused"
    return "done"


def end(call: Any, emit: Emit) -> dict[str, Any]:
    """Try to end a process of the caller's."""
    try:
        os.kill(call["process"], signal.SIGKILL)
    except OSError as error:
        return {"text": type(error).__name__}
    return {"text": "ended"}
