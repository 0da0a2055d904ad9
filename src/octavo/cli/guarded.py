"""The command works in a child process; this one watches, so that a crash of native code ends in a sentence.

The child is forked before anything is loaded, which takes 10 to 20 ms, and has the same terminal, files and
rights. Nothing is kept from it: that is ``--isolate``. If a model makes a library crash, or memory
runs out, this process says so, and clears away what the child could not.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from octavo.errors import IsolationError

BEGUN = time.monotonic()  # when the command began, before anything large is loaded
_ALONE = ("--debug", "--isolate", "--help", "-h", "--version")  # a debugger wants one process
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)
_LOSSES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP", "SIGKILL")
_DIE_WITH_PARENT = 1  # <linux/prctl.h>
_asked_by: list[int] = []  # the signals that asked this process to stop
_MOST_REQUESTS = 3  # to stop, before the child is killed
_REPEAT_SECONDS = 1.0  # a second signal within it is the same request, such as a terminal's to a whole group


def is_wanted(arguments: Sequence[str]) -> bool:
    """Whether this command works in a child: on Linux, unless it is isolated anyway, or asks for help."""
    alone = any(one in _ALONE or one.startswith("--limits") for one in arguments)
    return sys.platform == "linux" and bool(arguments) and not alone and threading.active_count() == 1


def split(arguments: Sequence[str]) -> None:
    """Fork. The child returns and goes on; this process ends as it does, or raises what became of it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    watched = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    this = os.getpid()
    try:
        child = os.fork()
    except OSError:  # no further process is allowed, or there is no memory for one: then without a guard
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        accept_signals()
        return
    if child == 0:
        import ctypes

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != this:
            os._exit(128 + signal.SIGKILL)
        accept_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    code = _watch(child, watched)
    name = signal.Signals(-code).name if -code in set(signal.Signals) else ""
    if name in _LOSSES:
        _clear(arguments)
        # Native code that a request to stop breaks off while it is being loaded may crash: that is no fault.
        if (asked := stopped()) is None:
            raise IsolationError(_loss(name))
        os._exit(asked)
    os._exit(code if code >= 0 else 128 - code)


def accept_signals() -> None:
    """Let a request to stop, by signal or keyboard, unwind the stack, so that temporary files go."""
    signal.signal(signal.SIGTERM, _once(lambda number, _: sys.exit(128 + number)))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _once(signal.default_int_handler))


def stopped() -> int | None:
    """Return the exit code of a command that was asked to stop, whatever libraries made of it on the way."""
    return 128 + _asked_by[-1] if _asked_by else None


def _once(act: Callable[[int, Any], object]) -> Callable[[int, Any], None]:
    """Return the same handler, deaf to repetitions: they would break off the clearing up."""
    last = -_REPEAT_SECONDS

    def act_once(number: int, frame: Any) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _REPEAT_SECONDS:
            last = now
            _asked_by.append(number)
            act(number, frame)

    return act_once


def _watch(child: int, watched: set[signal.Signals]) -> int:
    """Pass on what other processes ask for (a terminal asks the child itself); the child's exit code.

    Native code does not listen: a child that computes without end is killed at the third request.
    """
    while True:
        found = signal.sigwaitinfo(watched)
        if found.si_signo != signal.SIGCHLD:
            _asked_by.append(found.si_signo)
            if len(_asked_by) >= _MOST_REQUESTS:
                os.kill(child, signal.SIGKILL)
            elif found.si_code <= 0:
                os.kill(child, found.si_signo)
            continue
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)


def _clear(arguments: Sequence[str]) -> None:
    """Remove what the child left on its way to an output, and its temporary files."""
    from octavo.cli.isolated import OUTPUTS
    from octavo.cli.main import parse
    from octavo.core import files, scratch

    options = parse(arguments)
    places = [getattr(options, name, None) for name in OUTPUTS]
    for folder in {Path(place).absolute().parent for place in places if isinstance(place, str)}:
        files.sweep(folder)
    scratch.sweep_once()


def _loss(name: str) -> str:
    if name == "SIGKILL":
        return (
            f"The run was ended ({name}): it was killed, or memory ran out; its outputs are unchanged. "
            "If memory ran out, use fewer --samples, fewer --workers or a larger machine."
        )
    return (
        f"Native code crashed ({name}) on this model or its data; the outputs are as before. If the "
        "files are untrusted do not use them, or look at them with --isolate."
    )
