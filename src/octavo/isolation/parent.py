"""This side: start the other process, listen to it without trusting it, and clean up after it."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from octavo import errors
from octavo.core import scratch
from octavo.core.files import sweep
from octavo.errors import DataError, IsolationError, OctavoError
from octavo.isolation.limits import Limits

Listener: TypeAlias = Callable[[dict[str, Any]], None]

_START = "import sys; sys.path[:] = {path!r}; from octavo.isolation.child import main; main()"
_KEPT = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED",
)  # fmt: skip
_MAX_MESSAGE_BYTES = 128 << 20  # bytes of a message
_MOST_REMARKS = 1 << 20  # bytes on standard error that are passed on
_PARTING = 5.0  # seconds for an interrupted worker to clean up after itself


@dataclass(frozen=True)
class Call:
    """What to run: a function (``module:name``) of a trusted module, what it gets, where it may write."""

    entry: str
    given: Any
    folders: tuple[Path, ...] = ()
    debug: bool = False


def run(call: Call, limits: Limits, listen: Listener) -> dict[str, Any]:
    """Run a call in a process of its own; returns its answer. ``listen`` gets remarks and progress."""
    if not hasattr(os, "fork"):
        raise IsolationError(
            "Isolation needs the limits of a POSIX system, which this is not; use a container."
        )
    folder = Path(scratch.lasting_folder())
    try:
        with _started(call, limits, folder) as process:
            return _listened(process, limits, listen)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for place in {path.absolute() for path in call.folders}:
            sweep(place)


@contextlib.contextmanager
def _started(call: Call, limits: Limits, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process; whatever ends the block, it is gone afterwards."""
    settings = {
        "entry": call.entry,
        "call": str(_packed(call.given, folder)),
        "writable": [str(path.absolute()) for path in (folder, *call.folders)],
        "debug": call.debug,
        "memory": limits.memory,
        "seconds": limits.seconds,
        "file_size": limits.file_size,
    }
    process = _process(settings, folder)
    remarks = threading.Thread(target=_pass_on, args=(process.stderr,), daemon=True)
    remarks.start()
    try:
        yield process
    except BaseException:
        _stop(process)
        raise
    finally:
        if process.stdin is not None:
            process.stdin.close()  # the watcher ends everything when nobody is left to answer to
        process.wait()
        remarks.join()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _process(settings: dict[str, Any], folder: Path) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            # -B: bytecode that is written under a limit on files stays for others, cut short
            [sys.executable, "-I", "-B", "-c", _START.format(path=sys.path), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(folder),
            start_new_session=True,  # no terminal to type into; interrupts are passed on by this process
        )
    except OSError as error:
        raise IsolationError(f"An isolated process can't be started: {error}.") from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the worker to stop as if the keyboard had; it has a moment to remove what it was writing."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_PARTING)


def _packed(given: Any, folder: Path) -> Path:
    path = folder / "call.pickle"
    try:
        path.write_bytes(pickle.dumps(given, protocol=5))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise DataError(
            f"The arguments can't be sent to another process ({error}); give a model by its path or as "
            "bytes, and data as a path, a list of samples, or 'module:function'."
        ) from error
    return path


def _environment(folder: Path) -> dict[str, str]:
    """Return a clean environment: no tokens, no proxies; temporary files go where the caller removes them."""
    return {**{name: os.environ[name] for name in _KEPT if name in os.environ}, "TMPDIR": str(folder)}


def _pass_on(stream: IO[bytes]) -> None:
    """Pass on what libraries print, without anything that a terminal would obey."""
    from octavo.reporting.text import clean

    left = _MOST_REMARKS
    for line in iter(lambda: stream.readline(1 << 16), b""):
        if left > 0:
            left -= len(line)
            sys.stderr.write(clean(line.decode("utf-8", "replace").rstrip("\n"), limit=1 << 16) + "\n")


def _messages(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    for line in iter(lambda: stream.readline(_MAX_MESSAGE_BYTES), b""):
        try:
            message = json.loads(line)
            if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
                raise ValueError
        except (ValueError, RecursionError):
            raise IsolationError(
                "The isolated process gave an invalid answer; it may have been compromised."
            ) from None
        yield message


def _listened(process: subprocess.Popen[bytes], limits: Limits, listen: Listener) -> dict[str, Any]:
    """Listen until the process has ended; returns its answer, or raises what it ended with."""
    last: dict[str, Any] | None = None
    for message in _messages(process.stdout) if process.stdout is not None else ():
        match message["kind"]:
            case "answer" | "error":
                last = message
            case "end":
                if last is None or message.get("code") not in (0, 1):
                    raise _loss(message, limits)
            case _:
                listen(message)
    if last is None:
        raise IsolationError("The isolated process ended without an answer; try again.")
    if last["kind"] == "error":
        raise _error(last, limits)
    return last


def _error(message: dict[str, Any], limits: Limits) -> OctavoError:
    """Return the error that the worker speaks of, if it is one of ours; its words are cleaned."""
    from octavo.reporting.text import one_line

    name, words = str(message.get("type")), one_line(message.get("message", ""))
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, OctavoError):
        return kind(words)
    if name == "MemoryError":
        return IsolationError(f"The isolated run needs more memory than its limit, {_gib(limits)}; raise it.")
    return IsolationError(f"The isolated run failed unexpectedly: {one_line(name)}: {words or 'no message'}.")


def _loss(message: dict[str, Any], limits: Limits) -> IsolationError:
    """Return what to say of a worker that has ended without an answer."""
    code = message.get("code")
    if message.get("in_time") is False:
        return IsolationError(
            f"The isolated run was not done after {limits.seconds:g} s and was stopped; raise the limit."
        )
    if not isinstance(code, int) or code >= 0:
        return IsolationError(
            f"The isolated process has ended without an answer, with code {code}; try again."
        )
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if name in ("SIGXCPU", "SIGKILL"):
        why = (
            "it took more processor time than its limit"
            if name == "SIGXCPU"
            else "memory ran out, or it was killed"
        )
        return IsolationError(f"The isolated process was killed ({name}): {why}.")
    return IsolationError(
        f"The isolated process crashed ({name}): the model or the data makes native code fail, or memory ran "
        f"out (the limit is {_gib(limits)}). Do not use this model outside of isolation."
    )


def _gib(limits: Limits) -> str:
    return f"{limits.memory / 2**30:.3g} GiB"
