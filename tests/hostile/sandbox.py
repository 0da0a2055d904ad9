"""Runs an action in a child with limits, and fails the test where it touched what is not its own.

The child is forked, so that a case costs milliseconds. It may take 10 s of CPU and 1 GiB beyond what the test
process has. It may write below ``out``, and into a scratch folder that has to be empty again; it may start no
program, open no connection, and unpickle nothing. Python's audit events say what it did; a look at the whole
tree before and after says what native code did.
"""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import os
import pickle
import resource
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import OctavoError

CPU_SECONDS = 10
MEMORY = 1 << 30
FILE_SIZE = 256 << 20
_PATIENCE = 300.0  # seconds of the clock, for a loaded machine; the processor time has a limit of its own

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset(f"os.{name}" for name in (
    "rename", "remove", "rmdir", "mkdir", "link", "symlink", "chmod", "chown", "truncate"))  # fmt: skip
_FORBIDDEN = frozenset({"pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn",
                        "socket.connect", "socket.bind"})  # fmt: skip
_DEVICES = ("/dev/null", "/dev/tty")


@dataclass(frozen=True)
class Outcome:
    """What an action gave: a value, or an error."""

    value: Any = None
    error: type[BaseException] | None = None
    message: str = ""
    trace: str = ""
    breaches: tuple[str, ...] = ()


class Sandbox:
    """A folder with ``given`` files, an ``out`` folder, and a canary that must stay as it is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.given = root / "given"
        self.out = root / "out"
        self.scratch = root / "scratch"
        for folder in (self.given, self.out, self.scratch, root / "elsewhere"):
            folder.mkdir()
        (root / "elsewhere" / "secret.bin").write_bytes(b"secret!!" * 64)

    @property
    def secret(self) -> Path:
        """A file that no model may read or write."""
        return self.root / "elsewhere" / "secret.bin"

    def run(self, action: Callable[[], Any]) -> Outcome:
        """Carry an action out in a child; whatever it may end with, nothing outside ``out`` has changed."""
        outcome = self.run_unwatched(action)
        assert not outcome.breaches, f"the action did what it must not: {outcome.breaches[:5]}"
        return outcome

    def run_unwatched(self, action: Callable[[], Any]) -> Outcome:
        """The same for an action that is told to write elsewhere, and fails there."""
        before = self._tree()
        outcome = _in_child(action, (self.out, self.scratch))
        assert self._tree() == before, "files outside the output folder changed"
        return outcome

    def refuses(self, action: Callable[[], Any], error: type[OctavoError], words: str = "") -> str:
        """The message of the typed error that an action has to end with; the output folder is as before."""
        return self.refuses_each([action], error, words)[0]

    def refuses_each(
        self, actions: Sequence[Callable[[], Any]], error: type[OctavoError], words: str = ""
    ) -> list[str]:
        """The same for several actions, one after the other in one child."""
        before = sorted(self.out.rglob("*"))
        found = self.gives(lambda: [_outcome(action) for action in actions])
        for value, raised, message, trace in found:
            assert raised is not None, f"accepted: {value!r}"
            assert issubclass(raised, error), f"{raised.__name__}: {message}\n{trace}"
            assert words.lower() in message.lower(), message
            assert message.rstrip()[-1:] in ".?!", f"no sentence: {message}"
        assert sorted(self.out.rglob("*")) == before, "something was left in the output folder"
        return [message for _, _, message, _ in found]

    def gives(self, action: Callable[[], Any]) -> Any:
        """What an action gives that has to end well."""
        outcome = self.run(action)
        assert outcome.error is None, f"{outcome.error}: {outcome.message}\n{outcome.trace}"
        return outcome.value

    def settles(self, action: Callable[[], Any]) -> Outcome:
        """What an action ends with that may give a value or a typed error, and nothing else."""
        outcome = self.run(action)
        fine = outcome.error is None or issubclass(outcome.error, OctavoError)
        assert fine, f"{outcome.error}: {outcome.message}\n{outcome.trace}"
        return outcome

    def _tree(self) -> dict[str, tuple[Any, ...]]:
        found: dict[str, tuple[Any, ...]] = {}
        for folder, names, files in os.walk(self.root):
            if Path(folder) == self.root:
                names.remove("out")
            for name in (*names, *files):
                path = Path(folder) / name
                info = path.lstat()
                content = b""
                if stat.S_ISREG(info.st_mode) and info.st_size < 1 << 20:
                    content = hashlib.blake2b(path.read_bytes()).digest()
                kept = () if path.is_dir() else (info.st_size, info.st_mtime_ns, info.st_nlink, content)
                found[str(path)] = (info.st_mode, *kept)
        return found


def _in_child(action: Callable[[], Any], allowed: tuple[Path, Path]) -> Outcome:
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as answer:
        child = os.fork()
        if child == 0:
            _be_child(action, allowed, answer.fileno())
        status = _wait(child)
        answer.seek(0)
        content = answer.read()
    if status != 0 or not content:
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        raise AssertionError(f"the child ended with {how}: a crash, or a limit on time or memory")
    found: Outcome = pickle.loads(content)
    return found


def _wait(child: int) -> int:
    end = time.monotonic() + _PATIENCE
    pause = 0.001
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _be_child(action: Callable[[], Any], allowed: tuple[Path, Path], answer: int) -> None:
    """Run, write the outcome, and leave without any of the parent's cleaning up."""
    breaches: list[str] = []
    gc.freeze()  # a session of the parent's that is garbage would wait for its threads, which are not here
    faulthandler.dump_traceback_later(_PATIENCE / 2)
    try:
        _limit()
        tempfile.tempdir = str(allowed[1])
        sys.addaudithook(_watch(allowed, breaches))
        outcome = _outcome(action)
        os.write(answer, pickle.dumps(Outcome(*outcome, tuple(breaches))))
        os._exit(0)
    finally:
        os._exit(90)


def _outcome(action: Callable[[], Any]) -> tuple[Any, type[BaseException] | None, str, str]:
    try:
        return action(), None, "", ""
    except BaseException as error:
        trace = "".join(traceback.format_exception(error, limit=-12))[-4000:]
        return None, type(error), str(error), trace


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        room = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
    sys.dont_write_bytecode = True  # a compiled module that is cut off at the limit could not be read again
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _watch(allowed: tuple[Path, Path], breaches: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    homes = tuple(folder.resolve() for folder in allowed)

    def is_outside(path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike) or os.fsdecode(path) in _DEVICES:
            return False
        folder = Path(os.fsdecode(path)).parent.resolve()
        return not any(folder.is_relative_to(home) for home in homes)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and arguments[0] == sys.executable:
            return  # shape inference in an interpreter of its own
        if event in _FORBIDDEN:
            breaches.append(f"{event} {arguments!r}"[:200])
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
            if is_outside(arguments[0]):
                breaches.append(f"open for writing {arguments[0]!r}"[:200])
        elif (
            event in _CHANGES and not _within_folder(event, arguments) and any(map(is_outside, arguments[:2]))
        ):
            breaches.append(f"{event} {arguments!r}"[:200])

    return hook


def _within_folder(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a name is relative to an open folder: what is removed so, the look at the tree tells."""
    return event in ("os.remove", "os.rmdir") and isinstance(arguments[-1], int) and arguments[-1] >= 0
