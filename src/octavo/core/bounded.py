"""Reading a small file whole, where nobody knows what the path leads to."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

_PIECE = 1 << 20  # bytes; a small file takes no more memory than it needs
# A pipe without a writer is opened at once, and then refused.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read_bytes(path: str | Path, most: int) -> bytes:
    """The content of a plain file of at most so many bytes; anything else is an ``OSError`` that says so."""
    content = bytearray()
    with os.fdopen(os.open(path, _FLAGS), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        while piece := file.read(_PIECE):
            content += piece
            if len(content) > most:
                raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB, the most that is read")
    return bytes(content)


def read_json(path: str | Path, most: int) -> Any:
    """Return the content of a JSON file of at most so many bytes; nonsense and depth are a ``ValueError``."""
    try:
        return json.loads(read_bytes(path, most).decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
