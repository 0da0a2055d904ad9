"""The order of files: numbers inside names count as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts ``s10`` after ``s9``."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Paths by their names."""
    return sorted(paths, key=lambda path: natural(path.as_posix()))
