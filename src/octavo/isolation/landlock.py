"""Files that a process gives up writing to: Landlock, of the Linux kernel. Nothing but the standard library.

From then on the process, and what it starts, may make, change and remove files below the given folders alone.
Reading is as before. Other processes of the user can't be traced, and where the kernel knows how, they get no
signals from it, nothing listens and nothing is called over TCP. None of this can be taken back.

Moving a file between folders was learnt with version 2, cutting files short with version 3: older ones would
forbid what has to be allowed, or allow what has to be forbidden, and are not used.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # <asm-generic/unistd.h>
_GIVE_VERSION, _BENEATH = 1, 1  # <linux/landlock.h>
_CHANGES = sum(1 << bit for bit in (1, *range(4, 15)))  # write, remove, make of each kind, move, truncate
_BELOW = sum(1 << bit for bit in (1, 4, 5, 7, 8, 13, 14))  # of these: files and folders, no links or devices
_OF_A_FILE = 1 << 1 | 1 << 14  # write, truncate
_TCP = 0b11  # bind, connect
_SCOPES = 0b11  # abstract sockets, signals
_MIN_VERSION, _WITH_NETWORK, _WITH_SCOPES = 3, 4, 6  # of Landlock: Linux 6.2, 6.7 and 6.12
_DEVICES = ("null", "zero", "nvidia*", "nvidia*/*", "dri", "kfd", "dxg")  # where graphics processors are


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Rule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("place", ctypes.c_int32))


def version() -> int:
    """Return the version that the kernel speaks; 0 where it has none, or keeps it switched off."""
    if sys.platform != "linux":
        return 0
    return max(0, _call(_CREATE_RULESET, None, 0, _GIVE_VERSION))


def keep_writes_below(folders: Iterable[str]) -> bool:
    """Give up writing anywhere else; False, and nothing is given up, where the system can't do that.

    The process must have given up gaining privileges before.
    """
    known = version()
    if known < _MIN_VERSION:
        return False
    wanted = _Ruleset(
        _CHANGES, _TCP if known >= _WITH_NETWORK else 0, _SCOPES if known >= _WITH_SCOPES else 0
    )
    size = 8 * (1 + (known >= _WITH_NETWORK) + (known >= _WITH_SCOPES))
    ruleset = _call(_CREATE_RULESET, ctypes.byref(wanted), size, 0)
    if ruleset < 0:
        return False
    try:
        devices = (str(path) for pattern in _DEVICES for path in Path("/dev").glob(pattern))
        for path in (*folders, *devices):
            _allow(ruleset, path)
        return _call(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str) -> None:
    """Allow files and folders to change below a folder, or a file; what does not exist is left out."""
    with contextlib.suppress(OSError):
        place = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
        try:
            rule = _Rule(_BELOW if Path(path).is_dir() else _OF_A_FILE, place)
            _call(_ADD_RULE, ruleset, _BENEATH, ctypes.byref(rule), 0)
        finally:
            os.close(place)


def _call(number: int, *arguments: object) -> int:
    """Make a system call that the C library has no name for; a number below 0 means that it failed."""
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *given))
