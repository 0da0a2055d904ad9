"""What a process gives up before it reads anything untrusted. Nothing but the standard library.

Everything here is of the Linux kernel, or of POSIX, and where a part of it is not to be had the others hold;
what could not be had is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from pathlib import Path

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # <linux/sched.h>
_SUBREAPER, _NO_NEW_PRIVILEGES = 36, 38  # <linux/prctl.h>
_CAPABILITIES_3 = 0x20080522  # <linux/capability.h>


def give_up_network() -> bool:
    """Move to a network of its own, which has nothing in it; False where the system does not allow it."""
    unshare = getattr(_libc(), "unshare", None)
    if unshare is None:
        return False
    user, group = os.getuid(), os.getgid()
    if unshare(_NEW_NET) == 0:
        return True
    if unshare(_NEW_USER | _NEW_NET) != 0:
        return False
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _drop_capabilities()
    return True


def give_up_privileges() -> None:
    """No program that is started from here on gains rights that this process does not have."""
    _switch_on(_NO_NEW_PRIVILEGES)


def adopt_orphans() -> None:
    """Become the parent of processes below this one whose own parent has ended, so that none gets away."""
    _switch_on(_SUBREAPER)


def limit(memory: int, seconds: float, file_size: int) -> None:
    """Bound memory, processor time, files; leave no image of memory behind on a crash.

    Memory is what a process may write to: weights that are mapped from a file do not count. Processor time
    is a second line behind the watcher's clock, for as many threads as there are cores. Python writes no
    compiled modules from here on: one that is cut off at the limit of file size would be kept, and no
    process could import that module again.
    """
    sys.dont_write_bytecode = True
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    _lower(kind, memory)
    _lower(resource.RLIMIT_CPU, int(seconds * (os.cpu_count() or 1)) + 1)
    _lower(resource.RLIMIT_FSIZE, file_size)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(kind: int, value: int) -> None:
    """Set a limit that can't be raised again; one that was lower already stays."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (value, value))


def _drop_capabilities() -> None:
    """Give back the rights over the new namespaces that come with making them."""
    capset = getattr(_libc(), "capset", None)
    if capset is not None:
        head = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
        capset(head, (ctypes.c_uint32 * 6)())


def _switch_on(option: int) -> None:
    prctl = getattr(_libc(), "prctl", None)
    if prctl is not None:
        prctl(option, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
