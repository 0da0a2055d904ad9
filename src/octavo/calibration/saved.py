"""Statistics in files, and the checkpoint of a run: what is finished is not done again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from octavo.calibration.statistics import KINDS
from octavo.core.files import read_bytes, replacing, unreadable
from octavo.core.origin import Origin
from octavo.core.requests import Request
from octavo.core.stats import Stats
from octavo.errors import TableError

INTERVAL = 5.0  # seconds between checkpoints, at least
_MIN_WORK = 20  # a checkpoint is due when the work since the last took this many times as long as writing it
_MAX_BYTES = 16 << 30  # of statistics, which are read whole
_MAX_FILES = 10_000  # of a folder, whose names and sizes identify the data


def load(path: str | Path) -> Stats:
    """Return the statistics of a file."""
    try:
        return Stats.from_bytes(read_bytes(path, _MAX_BYTES), KINDS)
    except OSError as error:
        raise TableError(unreadable("The file of statistics", path, error)) from error
    except TableError as error:
        raise TableError(f"{path}: {error}") from error


def save(stats: Stats, path: str | Path) -> Path:
    """Write statistics to a file, which appears complete or not at all."""
    target = Path(path).absolute()
    with replacing([target]) as (handle,):
        handle.write(stats.to_bytes())
    return target


def checkpoint_of(output: str | Path) -> Path:
    """Return the checkpoint of a run that writes to this file."""
    return Path(f"{output}.checkpoint")


def name_of(data: Any) -> str:
    """Return a name for data in files: that of the path, and a digest of the names and sizes in it."""
    if is_dataclass(data) and not isinstance(data, type):
        parts = [name_of(getattr(data, entry.name)) for entry in fields(data)]
        return " ".join(part for part in parts if part)
    if not isinstance(data, str | os.PathLike) or not Path(data).exists():
        return data if isinstance(data, str) else ""
    path = Path(data)
    found = hashlib.blake2b(digest_size=8)
    if path.is_file():
        found.update(str(path.stat().st_size).encode())
        return f"{path.name}:{found.hexdigest()}"
    files = sorted(str(Path(top, name)) for top, _, names in os.walk(path) for name in names)
    found.update(str(len(files)).encode())
    for file in files[:_MAX_FILES]:
        found.update(f"{Path(file).relative_to(path)}:{_size(file)};".encode("utf-8", "surrogateescape"))
    return f"{path.resolve().name}:{found.hexdigest()}"


def _size(file: str) -> int:
    """Return the size of a file; a link that leads nowhere has none."""
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0


def check_requests(stats: Stats, requests: Mapping[str, Request]) -> Stats:
    """Return the statistics; raise an error that says what they lack of the requested ones."""
    if stats.origin is None:
        return stats
    for tensor, request in requests.items():
        recorded = stats.origin.needs.get(tensor)
        lacking = [word for word in str(request).split() if word not in (recorded or "").split()]
        lacking = [word for word in lacking if word != "minmax"]  # every record has the extremes
        if recorded is None or lacking:
            what = f" ({', '.join(lacking)})" if recorded is not None else ""
            raise TableError(
                f"The statistics lack what is needed of {tensor!r}{what}; calibrate again with this recipe."
            )
    return stats


class Checkpoint:
    """What a run has finished, in a file that is replaced from time to time and read when it starts again."""

    def __init__(self, path: str | Path | None) -> None:
        self._path = Path(path).absolute() if path is not None else None
        self._written = time.monotonic()
        self._pause = INTERVAL

    def load(self, expected: Origin, first: int, stop: int | None) -> Stats | None:
        """Return the finished part of this very run; a checkpoint of anything else is refused."""
        if self._path is None or not self._path.exists():
            return None
        found = load(self._path)
        what = _difference(found.origin, expected, first, stop)
        if what:
            raise TableError(
                f"{self._path} is the checkpoint of a calibration of {what}; remove it to start afresh, or "
                "choose another output."
            )
        return found

    def is_due(self) -> bool:
        """Return whether it is time to write."""
        return self._path is not None and time.monotonic() - self._written > self._pause

    def write(self, stats: Stats) -> None:
        """Replace the checkpoint; one that was cut off by a crash is never taken for complete."""
        if self._path is None:
            return
        begun = time.monotonic()
        save(stats, self._path)
        self._written = time.monotonic()
        self._pause = max(INTERVAL, _MIN_WORK * (self._written - begun))

    def remove(self) -> None:
        """Remove the checkpoint of a run that is over."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _difference(origin: Origin | None, expected: Origin, first: int, stop: int | None) -> str:
    """Return what another run was of, empty where it was this one."""
    if origin is None or (origin.model, origin.prepare) != (expected.model, expected.prepare):
        return "another model"
    if origin.needs != expected.needs:
        return "another recipe"
    if origin.source != expected.source:
        return "other data"
    if any(a < first or (stop is not None and b > stop) for a, b in origin.spans):
        return "other samples"
    return ""
