"""Names of files on their way, which say whose they are; and what a killed run left, which the next clears.

::

    .octavo-<system>-<process>-<random>.tmp          new content
    .octavo-<system>-<process>-<random>.dir          a folder of new content
    .octavo-<system>-<process>-<random>.old.<name>   what stood in the place of <name>, during an exchange
    .octavo-<system>-<process>-<random>.new.<name>   a mark that nothing stood there

``system`` stands for this boot of this machine (or container), so that a folder that several machines share
is safe: only what a process of this very system has left, and that process is gone, is cleared away. Where
the system can't be told (anything but Linux) nothing is.

An exchange of several files that was cut off is undone: the old file goes back to its place (or the new one
goes) if the first of the new ones, which is renamed last, is still waiting.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shutil
from pathlib import Path

_OURS = re.compile(
    r"\.octavo-(?P<system>[0-9a-f]{8})-(?P<process>[0-9]{1,10})-(?P<run>[0-9a-f]{16})\.(?P<kind>tmp|dir|old|new)"
    r"(?:\.(?P<target>[^/\0]+))?",
    re.DOTALL,
)
_UNKNOWN = "00000000"
_MAX_NAME_BYTES = 255  # bytes of a file's name


def new_name(kind: str) -> str:
    """Return a hidden name that nothing has, for a file (``tmp``) or a folder (``dir``) of this process."""
    return f".octavo-{system()}-{os.getpid()}-{secrets.token_hex(8)}.{kind}"


def backup_name(target: Path, first: Path, kind: str) -> str:
    """Return a name for what stood in a target's place (``old``), or a mark that nothing did (``new``).

    ``first`` is the first of the new files. A name too long for the target's to be in it is never cleared.
    """
    found = _OURS.fullmatch(first.name) or _OURS.fullmatch(first.parent.name)
    run = found["run"] if found is not None else secrets.token_hex(8)
    name = f".octavo-{system()}-{os.getpid()}-{run}.{kind}.{target.name}"
    return name if len(os.fsencode(name)) <= _MAX_NAME_BYTES else new_name(kind)


def sweep(folder: Path) -> None:
    """Clear away what runs that were killed have left in a folder. Files of others are not touched."""
    if system() == _UNKNOWN:
        return
    try:
        names = os.listdir(folder)  # noqa: PTH208 -- names are all that is needed
    except OSError:
        return
    ours = [found for name in names if name[0] == "." and (found := _OURS.fullmatch(name))]
    gone = [found for found in ours if is_abandoned(found["system"], found["process"])]
    for found in sorted(gone, key=lambda found: found["kind"] not in ("old", "new")):
        with contextlib.suppress(OSError):
            _clear(folder, found)


def _clear(folder: Path, found: re.Match[str]) -> None:
    path = folder / found[0]
    if found["kind"] in ("old", "new"):
        if found["target"] is not None:
            _settle(folder, found)
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _settle(folder: Path, found: re.Match[str]) -> None:
    """Undo an exchange that was cut off; of one that was not, remove the rest."""
    path, target = folder / found[0], folder / found["target"]
    if _is_waiting(folder, found) and found["kind"] == "old":
        path.replace(target)
        return
    if _is_waiting(folder, found):
        target.unlink(missing_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _is_waiting(folder: Path, found: re.Match[str]) -> bool:
    """Whether the first of the new files has not taken its place."""
    stem = f".octavo-{found['system']}-{found['process']}-{found['run']}"
    inside = folder / f"{stem}.dir"
    return (folder / f"{stem}.tmp").exists() or (inside.is_dir() and any(inside.iterdir()))


def is_abandoned(on: str, process: str) -> bool:
    """Whether a process ran on this very system, and is gone."""
    if on != system() or on == _UNKNOWN:
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # somebody else's process, or no number of one
        return False
    return False


@functools.cache
def system() -> str:
    """Eight letters for this boot of this machine, or container; zeros where that can't be told."""
    import hashlib

    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        processes = Path("/proc/self/ns/pid").readlink()
    except (OSError, UnicodeError):
        return _UNKNOWN
    return hashlib.blake2b(f"{boot}{processes}".encode(), digest_size=4).hexdigest()
