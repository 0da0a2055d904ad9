"""Replacing files as a whole: new content under a new name, then a rename; on failure nothing has changed.

Runs that write to one folder at the same time take turns while they rename: of two that write the same model
and its weights, one wins whole.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from octavo.core import leftovers, scratch
from octavo.core.leftovers import backup_name
from octavo.core.leftovers import new_name as new_name
from octavo.core.outputs import refuse_special
from octavo.errors import OutputError, closest

# ---- Reading a small file whole, where nobody knows what the path leads to

_PIECE = 1 << 20  # bytes; a small file takes no more memory than it needs
# A pipe without a writer is opened at once, and then refused.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read_bytes(path: str | Path, most: int) -> bytes:
    """Return the content of a regular file of at most so many bytes; anything else is an ``OSError``."""
    content = bytearray()
    with os.fdopen(os.open(path, _FLAGS), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        while piece := file.read(_PIECE):
            content += piece
            if len(content) > most:
                raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB, the most that is read")
    return bytes(content)


class RepeatedNameError(ValueError):
    """A name that is there twice in an object of JSON: which of the two counts would be a guess."""


def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, each name of which is there once (an ``object_pairs_hook``)."""
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise RepeatedNameError(f"{repeated!r} is given twice")
    return found


def read_json(path: str | Path, most: int) -> Any:
    """Return the content of a JSON file of at most so many bytes; nonsense and depth are a ``ValueError``."""
    try:
        return json.loads(read_bytes(path, most).decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_text(data: Any) -> str:
    """Return plain data as JSON that every reader takes: numbers that are not finite become their names."""
    return json.dumps(_finite(data), indent=2, default=str, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


_HEAD = 4096  # bytes of a file that tell whether it is text
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r\f\x1b")  # characters that no text has
_PATIENCE = 30.0  # seconds to wait for another run's renames
_PAUSE = 0.01  # seconds between two looks at whether they are done
_BUFFER = 1 << 16  # bytes; most small models are written at once


def check_room(target: Path, needed: int) -> None:
    """Raise where so many bytes can't find room beside a target, before they are written."""
    try:
        free = shutil.disk_usage(target.parent).free
    except OSError:  # writing will tell
        return
    if free < needed:
        raise OutputError(
            f"{target} can't be written: it takes {_amount(needed)}, and {target.parent} has {_amount(free)} "
            "free; make room, or choose another folder."
        )


def _amount(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _temporary(target: Path) -> Path:
    return target.with_name(new_name("tmp"))


def _create(path: Path) -> BinaryIO:
    """Return a new file, never an existing one and never through a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o666), "w+b", _BUFFER)


@contextlib.contextmanager
def replacing(targets: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """Open one new file per target; when the block ends well they take the targets' places, last first."""
    temporaries = [_temporary(target) for target in targets]
    handles: list[BinaryIO] = []
    swapped = False
    try:
        with contextlib.ExitStack() as stack:
            for target, temporary in zip(targets, temporaries, strict=True):
                refuse_special(target)
                handles.append(stack.enter_context(_create(temporary)))
            yield handles
            for handle in handles:
                handle.flush()
                os.fsync(handle.fileno())
        swap(targets, temporaries)
        swapped = True
    except OSError as error:
        raise OutputError(f"{targets[0]} can't be written: {error.strerror or error}.") from error
    finally:
        for temporary in () if swapped else temporaries:
            with contextlib.suppress(OSError):  # where nothing can be written, nothing can be removed
                temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text as a whole and return its place; a file that holds no text is never replaced by it."""
    target = Path(path).absolute()
    refuse_binary(target)
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise OutputError(
            f"{target} can't be written: {text[error.start]!a} is no character; rename what has it."
        ) from error
    with replacing([target]) as (file,):
        file.write(content)
    return target


def refuse_binary(target: Path, label: str = "") -> None:
    """Raise where a text would replace what is none: a model, arrays, an image."""
    try:
        with os.fdopen(os.open(target, _FLAGS), "rb") as file:
            head = file.read(_HEAD) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except (OSError, ValueError):  # it is not there, or writing will tell
        return
    if not _CONTROLS.isdisjoint(head):
        raise OutputError(
            f"{f'{label} {target}'.strip()} holds no text, and a text would take its place; choose another"
            " output, or remove it first."
        )


def swap(targets: Sequence[Path], temporaries: Sequence[Path]) -> None:
    """Rename each temporary to its target, the last first; on failure put the old files back.

    The first target is renamed last: once that has happened the new files stand, whatever comes after.
    """
    scratch.sweep_once()
    for target in targets:
        refuse_special(target)
    with _turn(targets[0].parent):
        leftovers.sweep(targets[0].parent)
        _swap(targets, temporaries)
        if len(targets) > 1:  # one rename is whole by itself, whatever stops the machine
            _sync_folder(targets[0].parent)


def _swap(targets: Sequence[Path], temporaries: Sequence[Path]) -> None:
    undo = contextlib.ExitStack()
    backups: list[Path] = []
    try:
        for target, temporary in reversed(list(zip(targets, temporaries, strict=True))):
            _keep_mode(target, temporary)
            if target is not targets[0]:
                was_there = _is_there(target)
                kind = "old" if was_there else "new"
                backups.append(target.with_name(backup_name(target, temporaries[0], kind)))
                undo.callback(_restore, backups[-1], target, was_there)
                if was_there:
                    target.rename(backups[-1])
                else:
                    _create(backups[-1]).close()
            temporary.replace(target)
    except BaseException:
        if temporaries[0].exists():
            undo.close()
        raise
    finally:
        for backup in backups:
            backup.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Clear away what runs that were killed have left in a folder."""
    with contextlib.suppress(OutputError), _turn(folder):
        leftovers.sweep(folder)


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which goes with the process; where there are no such locks, go ahead."""
    try:
        import fcntl  # noqa: F401

        descriptor = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    import fcntl

    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise OutputError(
                    f"{folder} has been locked by another run for {_PATIENCE:.0f} s; try again when that has "
                    "ended."
                ) from None
            time.sleep(_PAUSE)
        except OSError:  # a file system without locks
            return


def _is_there(target: Path) -> bool:
    return target.exists() or target.is_symlink()


def _restore(backup: Path, target: Path, was_there: bool) -> None:
    """Put an old file back in its place; where there was none, leave none."""
    if not was_there:
        target.unlink(missing_ok=True)
    elif _is_there(backup):
        backup.replace(target)


def _keep_mode(target: Path, temporary: Path) -> None:
    """Give a new file the permissions of the one that it replaces, unless that is a link."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISLNK(mode) and mode != temporary.stat().st_mode:
        temporary.chmod(mode & 0o7777)


def _sync_folder(folder: Path) -> None:
    """Make the renames durable where the system allows a folder to be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def unreadable(what: str, path: str | Path, error: OSError) -> str:
    """Return a sentence about a file that can't be read; for a missing one, what has nearly the same name."""
    named = f"{what} {path}".strip()
    if isinstance(error, FileNotFoundError):
        hint = similar_file(Path(path))
        return f"{named} does not exist{'; check the path.' if hint == '.' else hint}"
    return f"{named} can't be read: {error.strerror or error}."


def similar_file(path: Path) -> str:
    """Return the end of a sentence about a missing file: what beside it has nearly the same name."""
    if path.is_symlink():
        return ": it is a link to a file that does not exist."
    try:
        beside = sorted(one.name for one in path.parent.iterdir())
    except (OSError, ValueError):
        home = "; write Path('~').expanduser()" if path.parts[:1] == ("~",) else ""
        return f"; there is no folder {path.parent} either{home}."
    return closest(path.name, beside, 1) or "."
