"""A folder that appears whole or not at all: built beside its place under a hidden name, then renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octavo.core import leftovers
from octavo.core.outputs import paths_within
from octavo.errors import OutputError

MANIFEST = "octavo.json"


def check_output(output: Path, source: Path, reads: Any = None) -> None:
    """Raise where a folder may not be written: it is read, or holds what Octavo has not made.

    ``reads`` is whatever else the run reads: data or a tokenizer in an earlier output would go with it.
    """
    place, root = output.resolve(), source.resolve()
    if place == root or place.is_relative_to(root) or root.is_relative_to(place):
        raise OutputError(
            f"{output} and {source}, which is read, lie within each other; choose an output outside of it."
        )
    for path in paths_within(reads):
        if os.path.realpath(path).startswith(f"{place}{os.sep}"):
            raise OutputError(
                f"{output} would be replaced, and {path} in it is read by this run; choose another output."
            )
    if not output.parent.is_dir():
        raise OutputError(f"{output} can't be written: there is no folder {output.parent}; create it first.")
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise OutputError(f"{output} is not a folder; choose another output.")
    if output.is_dir() and any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise OutputError(
            f"{output} holds files and no {MANIFEST}, so Octavo has not made it, and it is left alone; choose"
            " a new folder."
        )


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Give an empty folder to write into; when the block ends well it takes the place of the output.

    What stood there before is removed after that, and put back if anything fails. What a killed run leaves
    behind is settled by the next one (:mod:`octavo.core.leftovers`).
    """
    output = output.absolute()
    leftovers.sweep(output.parent)
    staged = output.with_name(leftovers.new_name("dir"))
    try:
        staged.mkdir(0o700)
        yield staged
        staged.chmod(0o755)
        _exchange(output, staged)
    except OSError as error:
        raise OutputError(f"{output} can't be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _exchange(output: Path, staged: Path) -> None:
    if not output.exists():
        staged.rename(output)
        return
    old = output.with_name(leftovers.backup_name(output, staged, "old"))
    output.rename(old)
    try:
        staged.rename(output)
    except BaseException:
        if not output.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
