"""Reading a small file whole, where nobody knows what the path leads to."""

from __future__ import annotations

import errno
from pathlib import Path

_PIECE = 1 << 20  # bytes; a small file takes no more memory than it needs


def read_bytes(path: str | Path, most: int) -> bytes:
    """The content of a file of at most so many bytes; more is an ``OSError`` that says so."""
    content = bytearray()
    with Path(path).open("rb") as file:
        while piece := file.read(_PIECE):
            content += piece
            if len(content) > most:
                raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB, the most that is read")
    return bytes(content)
