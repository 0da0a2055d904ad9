"""Which files a run may write: regular files, and never one that it reads, whatever name leads to it.

Both are checked before any work is done. Files are compared by identity (device and inode), so that links,
other names and files within a folder of data are found.
"""

from __future__ import annotations

import dataclasses
import errno
import glob
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from octavo.errors import OutputError

_MAX_DEPTH = 4  # objects within objects that are looked at: data, batched, adjusted, of a task
_MOST_TEXTS = 100_000  # of a list; a longer one holds texts and not paths

_NEVER_DATA = (".onnx", ".stats", ".html", ".md")  # what no reader of data takes from a folder

Identity = tuple[int, int]
Made = TypeVar("Made")


def refuse_special(target: Path, label: str = "") -> None:
    """Raise where an output is no place for a regular file, or is there and is something else.

    A link to a regular file is replaced by the output, and the file behind it is left alone; but a link such
    as ``/dev/stdout``, which leads to a file that a process has open, belongs to the system.
    """
    name = f"{label} {target}".strip()
    try:
        linked, mode = "", os.lstat(target).st_mode
        if stat.S_ISLNK(mode):
            linked, mode = os.readlink(target), os.stat(target).st_mode  # noqa: PTH115, PTH116 - no new paths
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise OutputError(f"{name} can't be written: {error.strerror}; choose another output.") from error
        return  # writing will tell
    except ValueError:
        return
    if stat.S_ISDIR(mode):
        raise OutputError(f"{name} is a folder; give the path of a file.")
    if not stat.S_ISREG(mode) or linked.startswith("/proc/"):
        raise OutputError(f"{name} is a device, pipe or socket, not a regular file; choose another output.")


def refuse_inputs(outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Raise where an output is a file that the run reads.

    Both map what a user calls something (a flag, a parameter) to it. An output is a path. An input is
    whatever a caller may give: a path, a pattern such as ``calib/*.npz``, ``FILE.py:FUNCTION``, a folder, of
    which every file counts, a list of these, data or a task that hold them, or :class:`Lazy`.
    """
    existing = {
        label: (Path(output), place)
        for label, output in outputs.items()
        if isinstance(output, str | os.PathLike) and (place := _identity(output)) is not None
    }
    for name, source in inputs.items() if existing else ():
        for path in paths_within(source):
            for label, (output, place) in existing.items():
                if _is_part(place, output, path):
                    raise OutputError(
                        f"{label} {output} is read by this run ({name} {path}) and is never overwritten;"
                        " choose another output."
                    )


def paths_within(value: Any) -> Iterator[Path]:
    """Yield every path that a value may mean; it need not exist."""
    for found in _named(value):
        yield from found.paths() if isinstance(found, Lazy) else _written(found)


def _named(value: Any, depth: int = 0) -> Iterator[str | Lazy]:
    """Yield every text in a value that may be a path, and what is still to be looked for."""
    if isinstance(value, str | os.PathLike):
        yield os.fsdecode(os.fspath(value))
    elif depth >= _MAX_DEPTH:
        return
    elif isinstance(value, list | tuple | set | frozenset):
        if len(value) <= _MOST_TEXTS:
            for one in value:
                yield from _named(one, depth + 1)
    elif isinstance(value, Mapping):
        for one in value.values():
            if isinstance(one, str | os.PathLike):
                yield from _named(one, depth + 1)
    elif isinstance(value, Lazy):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            held = getattr(value, field.name, None)
            is_word = isinstance(held, str) and field.name != "data"  # such as the name of a preset
            if not (is_word and _is_folder(Path(str(held)))):
                yield from _named(held, depth + 1)


@dataclasses.dataclass(frozen=True)
class Lazy:
    """Paths that take time to find, and are looked for only where an output exists at all."""

    find: Callable[[Any], list[Path]]
    source: Any

    def paths(self) -> list[Path]:
        """Look for them."""
        return self.find(self.source)


# ---- Which files a run has written; no clock is asked, which may go backwards


def file_states(paths: Iterable[str | os.PathLike[str]]) -> dict[Path, object]:
    """Return what tells each file from the one that takes its place; None where there is none."""
    found: dict[Path, object] = {}
    for path in map(Path, paths):
        try:
            state = path.stat()
            found[path] = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        except (OSError, ValueError):
            found[path] = None
    return found


def changed_files(before: Mapping[Path, object]) -> list[Path]:
    """Return those that are there and were written since."""
    now = file_states(before)
    return [path for path, state in now.items() if state is not None and state != before[path]]


# ---- What a value was made from: saving it never replaces one of these files

_NOTE = "_made_from"


def note_inputs(value: Made, inputs: Mapping[str, Any]) -> Made:
    """Note the files that a value was made from, by what a user calls them; returns the value."""
    known: dict[str, Any] = getattr(value, _NOTE, {})
    found = {name: tuple(_lasting(source)) for name, source in inputs.items()}
    object.__setattr__(value, _NOTE, {**known, **{name: paths for name, paths in found.items() if paths}})
    return value


def note_sources(value: Made, *parts: object) -> Made:
    """Note that a value was made from others, and from what these were made from; returns the value."""
    for part in parts:
        note_inputs(value, getattr(part, _NOTE, {}))
    return value


def refuse_sources(value: object, outputs: Mapping[str, Any]) -> None:
    """Raise where an output of a value is a file that the value was made from."""
    refuse_inputs(outputs, getattr(value, _NOTE, {}))


def _lasting(value: Any) -> Iterator[str | Lazy]:
    """Yield what names files, so that it holds in another working folder too; no model is kept for it."""
    for found in _named(value):
        if isinstance(found, str):
            yield _absolute(found)
        elif isinstance(found.source, str | os.PathLike):
            yield Lazy(found.find, _absolute(os.fspath(found.source)))


def _absolute(text: str) -> str:
    """Return a path from the root; what may be something else, such as ``module:function``, stays."""
    is_path = glob.has_magic(text) or os.path.exists(text)  # noqa: PTH110 - False for names too long
    return os.path.abspath(text) if is_path else text  # noqa: PTH100 - no link is followed


def _written(text: str | bytes) -> Iterator[Path]:
    """Yield the path itself, the files that it matches as a pattern, and the file of a function."""
    name = os.fsdecode(text)
    if not name:
        return
    yield Path(name)
    if glob.has_magic(name) and not os.path.exists(name):  # noqa: PTH110 - False for names too long
        yield from map(Path, glob.iglob(name, recursive=True))  # noqa: PTH207 - any pattern, also absolute
    module, colon, _ = name.rpartition(":")
    if colon:
        yield Path(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long
        return False


def is_same_file(left: Path, right: Path) -> bool:
    """Whether two paths lead to one file; False where either is missing."""
    place = _identity(left)
    return place is not None and place == _identity(right)


def _identity(path: str | os.PathLike[str]) -> Identity | None:
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _is_part(place: Identity, output: Path, source: Path) -> bool:
    """Whether an existing output is the source, or a file in the folder that it is."""
    if _identity(source) == place:
        return True
    try:
        if not source.is_dir():
            return False
        folder, file = source.resolve(), output.resolve()
        is_within = file.suffix.lower() not in _NEVER_DATA and file.is_relative_to(folder)
        return is_within or _is_linked(place, folder, file)
    except (OSError, ValueError):
        return False


def _is_linked(place: Identity, folder: Path, output: Path) -> bool:
    """Whether another name below a folder leads to the output; links to folders are not followed."""
    folders = [str(folder)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                may_be = entry.is_symlink() or entry.inode() == place[1]
                if may_be and _identity(entry.path) == place and Path(entry.path) != output:
                    return True
    return False
