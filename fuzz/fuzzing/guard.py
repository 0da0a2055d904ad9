"""Runs one input and says what of it is a finding.

Allowed ends are a result and a typed error. Everything else is a finding: another exception, more than the
seconds or the memory that an input may take, a file opened outside the folder, a program started.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.errors import OctavoError

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 1 << 30  # bytes of address space beyond what the process has when it starts
STACK = 8 << 20  # bytes of address space that each thread of the runtime takes
GROWTH = 512 << 20  # bytes that one input may add to the peak of the resident memory

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset(f"os.{name}" for name in (
    "rename", "remove", "rmdir", "mkdir", "link", "symlink", "chmod", "chown", "truncate"))  # fmt: skip
_FORBIDDEN = frozenset({"pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn",
                        "socket.connect", "socket.bind", "os.fork"})  # fmt: skip
_DEVICES = ("/dev/null", "/dev/tty", "/dev/urandom", "/proc", "/sys", "/etc/localtime", "/etc/os-release")


class FindingError(Exception):
    """An input that did what no input may do."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind


class TookTooLong(BaseException):
    """Raised into the input's own code, where no ``except Exception`` holds it up."""


class _Watch:
    """What the audit hook knows; it can't be taken out again, so it is told when to look."""

    def __init__(self) -> None:
        self.armed = False
        self.breaches: list[str] = []
        self.homes: tuple[str, ...] = ()
        self.readable: tuple[str, ...] = ()

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note what an input must not do."""
        if not self.armed:
            return
        if event == "subprocess.Popen" and _infers_shapes(arguments):
            return
        if event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            if self._outside(arguments[0], writes=bool(flags & _WRITES)):
                self.breaches.append(f"open {arguments[0]!r} {arguments[1]!r}"[:300])
        elif event in _FORBIDDEN or (event in _CHANGES and self._changes_outside(event, arguments)):
            self.breaches.append(f"{event} {arguments!r}"[:300])

    def _changes_outside(self, event: str, arguments: tuple[Any, ...]) -> bool:
        paths = [] if _within_folder(event, arguments) else arguments[:2]
        return any(self._outside(path, writes=True) for path in paths)

    def _outside(self, path: Any, *, writes: bool) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        text = os.fsdecode(path)
        if text.startswith(_DEVICES):
            return False
        real = os.path.realpath(text)
        roots = self.homes if writes else self.homes + self.readable
        return not any(real == root or real.startswith(root + os.sep) for root in roots)


_WATCH = _Watch()


def _infers_shapes(arguments: tuple[Any, ...]) -> bool:
    """Whether a program is this interpreter on Octavo's own errand: inferring shapes, as that may crash."""
    return arguments[0] == sys.executable and any("symbolic_shapes()" in str(one) for one in arguments[1])


def _within_folder(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a name is relative to an open folder."""
    return event in ("os.remove", "os.rmdir") and isinstance(arguments[-1], int) and arguments[-1] >= 0


@functools.cache
def folder() -> Path:
    """The folder in which an input may do what it likes; a secret lies outside of it."""
    within = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    base = Path(tempfile.mkdtemp(prefix="octavo-fuzz-", dir=within)).resolve()
    inner = base / "inside"
    inner.mkdir()
    (base / "secret.bin").write_bytes(b"secret!!" * 512)
    return inner


def remove_folder() -> None:
    """Leave nothing behind."""
    if folder.cache_info().currsize:
        shutil.rmtree(folder().parent, ignore_errors=True)
        folder.cache_clear()


@functools.cache
def install() -> None:
    """Set the watch and the timer up, once in a process."""
    places = {sys.prefix, sys.base_prefix, str(ROOT), *sysconfig.get_paths().values()}
    places |= {path for path in sys.path if path and Path(path) != Path("/")}
    _WATCH.readable = tuple(sorted({os.path.realpath(place) for place in places}))
    signal.signal(signal.SIGPROF, _too_long)
    sys.addaudithook(_WATCH.hook)


def _too_long(*_: Any) -> None:
    raise TookTooLong


def limit_memory() -> None:
    """Bound the process; an allocation beyond fails instead of taking the machine down."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        there = int(statm.read_text().split()[0]) * resource.getpagesize()
        room = there + MEMORY + (os.cpu_count() or 1) * STACK
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def watched(one: Callable[[bytes], None], data: bytes, seconds: float) -> None:
    """Run one input; raises :class:`FindingError`, or what the input's own code raised."""
    install()
    home = folder()
    _WATCH.homes = (str(home),)
    _WATCH.breaches = []
    before, tempfile.tempdir = tempfile.tempdir, str(home)
    peak = _peak()
    signal.setitimer(signal.ITIMER_PROF, seconds)
    _WATCH.armed = True
    try:
        one(data)
    except OctavoError as error:
        raise FindingError("leak", f"the harness let a typed error through: {error}") from error
    except TookTooLong as error:
        raise FindingError("hang", f"more than {seconds:g} s of CPU") from error
    finally:
        _WATCH.armed = False
        tempfile.tempdir = before
        signal.setitimer(signal.ITIMER_PROF, 0)
    if _WATCH.breaches:
        raise FindingError("breach", "; ".join(_WATCH.breaches[:3]))
    if _peak() - peak > GROWTH:
        raise FindingError("memory", f"{(_peak() - peak) >> 20} MiB more")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
