"""Folders for work in progress, in the system's folder for temporary files; what killed runs left there goes.

::

    octavo-<system>-<process>-<random>

``system`` and ``process`` are those of :mod:`octavo.core.leftovers`. A later run clears a folder away if its
name has this form, it is a folder and no link, it belongs to the same user, and the process that made it on
this very system is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile

from octavo.core import leftovers

_OURS = re.compile(r"octavo-(?P<system>[0-9a-f]{8})-(?P<process>[0-9]{1,10})-[a-z0-9_]{8}")
_swept: set[tuple[int, str]] = set()  # process and folder


def folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder of this process, for a ``with`` block; it is gone with the block."""
    sweep_once()
    return tempfile.TemporaryDirectory(prefix=_prefix())


def lasting_folder() -> str:
    """Return a new folder that the caller removes."""
    sweep_once()
    return tempfile.mkdtemp(prefix=_prefix())


def sweep_once() -> None:
    """Clear away what killed runs left, the first time that this process asks."""
    with contextlib.suppress(OSError):  # no such folder: who needs one will tell
        place = (os.getpid(), tempfile.gettempdir())
        if place not in _swept:
            _swept.add(place)
            sweep(place[1])


def sweep(place: str) -> None:
    """Clear away what killed runs of this user have left in a folder for temporary files."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            found = _OURS.fullmatch(entry.name)
            if found is not None and leftovers.is_abandoned(found["system"], found["process"]):
                _remove(entry)


def _remove(entry: os.DirEntry[str]) -> None:
    """Remove a folder of this user's, with what is in it; links in it go, not what they lead to."""
    with contextlib.suppress(OSError):
        info = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid():
            shutil.rmtree(entry.path, ignore_errors=True)


def _prefix() -> str:
    return f"octavo-{leftovers.system()}-{os.getpid()}-"
