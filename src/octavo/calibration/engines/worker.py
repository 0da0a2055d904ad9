"""The other end of :mod:`.processes`: a process that opens a job once and does the shards it is sent.

Frames are a length and a pickle. First comes the job, then shards; for each the answer is the result, or what
was raised. When the parent's end of the pipe closes, the worker ends too.
"""

from __future__ import annotations

import os
import pickle
import queue
import struct
import threading
import time
import traceback
from typing import IO, Any, BinaryIO

from octavo.errors import OctavoError

_GRACE = 3.0  # seconds that a worker may go on without a parent
_LENGTH = struct.Struct("<Q")


class RemoteError(Exception):
    """The traceback of an exception in a worker, shown as the cause of the one that is raised for it."""


def write_frame(pipe: IO[bytes], message: bytes) -> None:
    """Send one message through a pipe."""
    pipe.write(_LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes:
    """Receive one message; EOFError where the other end is gone."""
    return _exactly(pipe, *_LENGTH.unpack(_exactly(pipe, _LENGTH.size)))


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def main() -> None:
    """Serve until the parent closes the pipe."""
    source, target = _own_pipes()
    frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(source, frames), daemon=True).start()
    first = frames.get()
    if first is None:
        return
    try:
        job, threads = _job(first)
        with job.open(threads) as do:
            while (frame := frames.get()) is not None:
                write_frame(target, _answer(do, frame))
    except BrokenPipeError:
        return
    except Exception as error:
        write_frame(target, raised(error))


def _own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the pipes to the parent; a library that prints writes to standard error instead."""
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return source, target


def _receive(source: BinaryIO, frames: queue.SimpleQueue[bytes | None]) -> None:
    try:
        while True:
            frames.put(read_frame(source))
    except (EOFError, OSError):
        frames.put(None)
        time.sleep(_GRACE)
        os._exit(1)


def _job(frame: bytes) -> tuple[Any, int]:
    try:
        job, threads = pickle.loads(frame)
    except Exception as error:
        raise OctavoError(
            f"The work can't be sent to another process ({error}); define its functions in a module that "
            "can be imported, or use the engine 'serial'."
        ) from error
    return job, threads


def _answer(do: Any, frame: bytes) -> bytes:
    try:
        return pickle.dumps((True, do(pickle.loads(frame))), protocol=5)
    except Exception as error:
        return raised(error)


def raised(error: Exception) -> bytes:
    """Return an exception as an answer."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = OctavoError(f"{type(error).__name__}: {error}")
    return pickle.dumps((False, (error, trace)), protocol=5)


def unpacked(answer: bytes) -> Any:
    """Return the result that an answer holds; what was raised is raised again."""
    is_result, content = pickle.loads(answer)
    if is_result:
        return content
    error, trace = content
    raise error from RemoteError(trace)
