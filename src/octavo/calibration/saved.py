"""Statistics in files, and the checkpoint of a run: what is finished is not done again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from octavo.calibration.observers import KINDS
from octavo.core.origin import Origin
from octavo.core.stats import Need, Stats
from octavo.errors import TableError
from octavo.model.files import replacing

EVERY = 5.0  # seconds between checkpoints, at least
_SHARE = 20  # a checkpoint is due when the work since the last took this many times as long as writing it
_LISTED = 10_000  # files of a folder that are looked at to name the data


def load(path: str | Path) -> Stats:
    """The statistics of a file."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise TableError("it is no regular file; give a file that 'octavo calibrate' wrote.")
        return Stats.from_bytes(Path(path).read_bytes(), KINDS)
    except OSError as error:
        raise TableError(f"The statistics {path} can't be read: {error.strerror or error}.") from error
    except TableError as error:
        raise TableError(f"{path}: {error}") from error


def save(stats: Stats, path: str | Path) -> Path:
    """Write statistics as a whole."""
    target = Path(path).absolute()
    with replacing([target]) as (handle,):
        handle.write(stats.to_bytes())
    return target


def checkpoint_of(output: str | Path) -> Path:
    """Where the checkpoint of a run lies that writes to this file."""
    return Path(f"{output}.checkpoint")


def name_of(data: Any) -> str:
    """A name for data that lies in files: that of the path, and a digest of the names and sizes in it."""
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
    for file in files[:_LISTED]:
        size = Path(file).stat().st_size
        found.update(f"{Path(file).relative_to(path)}:{size};".encode("utf-8", "surrogateescape"))
    return f"{path.resolve().name}:{found.hexdigest()}"


def asked(needs: Mapping[str, Need]) -> dict[str, str]:
    """What is asked of each tensor, in words."""
    return {
        tensor: " ".join(
            key if value is True else f"{key}={value}"
            for key, value in asdict(need).items()
            if value is not None and value is not False
        )
        or "minmax"
        for tensor, need in needs.items()
    }


def known(stats: Stats, needs: Mapping[str, Need]) -> Stats:
    """The statistics, where they hold what is needed; else an error that says what they lack."""
    if stats.origin is not None:
        for tensor, words in asked(needs).items():
            there = stats.origin.needs.get(tensor)
            lacking = [
                word for word in words.split() if word != "minmax" and word not in (there or "").split()
            ]
            if there is None or lacking:
                what = f" ({', '.join(lacking)})" if there is not None else ""
                raise TableError(
                    f"The statistics say nothing of {tensor!r}{what}, which has to be known here; calibrate "
                    "again with this recipe."
                )
    return stats


class Checkpoint:
    """What a run has finished, in a file that is replaced from time to time and read when it starts again."""

    def __init__(self, path: str | Path | None) -> None:
        self._path = Path(path).absolute() if path is not None else None
        self._written = time.monotonic()
        self._pause = EVERY

    def load(self, wanted: Origin, first: int, stop: int | None) -> Stats | None:
        """The finished part of this very run; a checkpoint of anything else is refused."""
        if self._path is None or not self._path.exists():
            return None
        found = load(self._path)
        self._check(found, wanted, first, stop)
        return found

    def _check(self, found: Stats, wanted: Origin, first: int, stop: int | None) -> None:
        origin = found.origin
        what = ""
        if origin is None or (origin.model, origin.prepare) != (wanted.model, wanted.prepare):
            what = "another model"
        elif origin.needs != wanted.needs:
            what = "another recipe"
        elif origin.source != wanted.source:
            what = "other data"
        elif any(a < first or (stop is not None and b > stop) for a, b in origin.spans):
            what = "other samples"
        if what:
            raise TableError(
                f"{self._path} is the checkpoint of a calibration of {what}; remove it to start afresh, or "
                "choose another output."
            )

    def due(self) -> bool:
        """Whether it is time to write."""
        return self._path is not None and time.monotonic() - self._written > self._pause

    def write(self, stats: Stats) -> None:
        """Replace the checkpoint; one that was cut off by a crash is never taken for whole."""
        if self._path is None:
            return
        begun = time.monotonic()
        save(stats, self._path)
        self._written = time.monotonic()
        self._pause = max(EVERY, _SHARE * (self._written - begun))

    def remove(self) -> None:
        """The run is over."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
