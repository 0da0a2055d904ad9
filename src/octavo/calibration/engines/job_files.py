"""The files of a job on other machines: written once on each, read by all workers there."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_MARK = "octavo.job"  # the file that says whose files a folder holds, written when they are complete


@dataclass(frozen=True)
class JobFiles:
    """A folder as it was packed, and where the content of its files can be had elsewhere."""

    folder: Path
    token: str
    files: Mapping[str, Any]  # file name → what the store gave for its content

    @classmethod
    def of(cls, folder: Path, token: str, put: Callable[[Any], Any]) -> JobFiles:
        """Put the files of a folder into a store; their content is mapped, not read."""
        files = {
            file.name: put(np.memmap(file, np.uint8, "r") if file.stat().st_size else np.empty(0, np.uint8))
            for file in sorted(folder.iterdir())
        }
        (folder / _MARK).write_text(token)
        return cls(folder, token, files)

    @contextlib.contextmanager
    def open(self, get: Callable[[Any], Any]) -> Iterator[Path]:
        """Give the folder with the files: the packed one where this machine sees it, else a copy."""
        if self._are_in(self.folder):
            yield self.folder
            return
        folder = Path(tempfile.gettempdir()) / f"octavo-{self.token}"
        lock = folder.with_suffix(".lock")
        try:
            with _locked(lock):
                if not self._are_in(folder):
                    self._write(folder, get)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)

    def _are_in(self, folder: Path) -> bool:
        try:
            return (folder / _MARK).read_text() == self.token
        except OSError:
            return False

    def _write(self, folder: Path, get: Callable[[Any], Any]) -> None:
        """Write the files; the mark comes last, so that a folder that has it is complete."""
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, content in self.files.items():
            with (folder / name).open("wb") as file:
                file.write(memoryview(get(content)))
        (folder / _MARK).write_text(self.token)


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Let only one worker of a machine in at a time; the lock goes with its process."""
    try:
        import fcntl
    except ImportError:  # no such locks: workers may write the same content over each other's
        yield
        return
    handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
