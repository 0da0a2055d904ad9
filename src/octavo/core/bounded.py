"""Reading a small file whole, where nobody knows what the path leads to."""

from __future__ import annotations

import errno
from pathlib import Path


def read_bytes(path: str | Path, most: int) -> bytes:
    """The content of a file of at most so many bytes; more is an ``OSError`` that says so."""
    with Path(path).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB, the most that is read")
    return content
