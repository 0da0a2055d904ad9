"""Replacing files as a whole: new content under a new name, then a rename; on failure nothing has changed."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from octavo.errors import OutputError


def _temporary(target: Path) -> Path:
    return target.with_name(f".octavo-{secrets.token_hex(8)}.tmp")


def _create(path: Path) -> BinaryIO:
    """A new file, never an existing one and never through a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o666), "w+b")


@contextlib.contextmanager
def replacing(targets: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """Open one new file per target; when the block ends well they take the targets' places, last first."""
    temporaries = [_temporary(target) for target in targets]
    handles: list[BinaryIO] = []
    try:
        with contextlib.ExitStack() as stack:
            for target, temporary in zip(targets, temporaries, strict=True):
                if target.is_dir():
                    raise OutputError(f"{target} is a folder; give the path of a file.")
                handles.append(stack.enter_context(_create(temporary)))
            yield handles
            for handle in handles:
                handle.flush()
                os.fsync(handle.fileno())
        swap(targets, temporaries)
    except OSError as error:
        raise OutputError(f"{targets[0]} can't be written: {error.strerror or error}.") from error
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


def swap(targets: Sequence[Path], temporaries: Sequence[Path]) -> None:
    """Rename each temporary to its target, the last first; on failure put the old files back.

    The first target is renamed last: once that has happened the new files stand, whatever comes after.
    """
    undo = contextlib.ExitStack()
    backups: list[Path] = []
    try:
        for target, temporary in reversed(list(zip(targets, temporaries, strict=True))):
            _keep_mode(target, temporary)
            if target is not targets[0]:
                backups.append(_temporary(target))
                undo.callback(_restore, backups[-1], target, _is_there(target))
                if _is_there(target):
                    target.rename(backups[-1])
            temporary.replace(target)
    except BaseException:
        if temporaries[0].exists():
            undo.close()
        raise
    finally:
        for backup in backups:
            backup.unlink(missing_ok=True)
    _sync_folder(targets[0].parent)


def _is_there(target: Path) -> bool:
    return target.exists() or target.is_symlink()


def _restore(backup: Path, target: Path, was_there: bool) -> None:
    """Put an old file back in its place; where there was none, leave none."""
    if _is_there(backup):
        backup.replace(target)
    elif not was_there:
        target.unlink(missing_ok=True)


def _keep_mode(target: Path, temporary: Path) -> None:
    if target.exists() and not target.is_symlink():
        temporary.chmod(target.stat().st_mode & 0o7777)


def _sync_folder(folder: Path) -> None:
    """Make the renames durable where the system allows a folder to be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
