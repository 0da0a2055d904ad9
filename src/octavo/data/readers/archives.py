"""Files inside ``.zip``, ``.tar`` and ``.tar.gz`` archives, read in place and never unpacked to the disk."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from octavo.errors import DataError

MAX_BYTES = 2 << 30  # of one file in an archive, unpacked
MAX_MEMBERS = 1_000_000  # files in an archive
BROKEN = (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError,
          RuntimeError, NotImplementedError, LookupError, ValueError, OverflowError, MemoryError)  # fmt: skip
_UNCHECKED_BYTES = 256 << 20  # that may come out of any file, however small
_MAX_RATIO = 200  # of unpacked to packed bytes, beyond that


@dataclass(frozen=True)
class Member:
    """A file inside an archive, and where its content lies (in a tar, after decompression)."""

    archive: Path
    name: str
    size: int
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.archive}/{self.name}"

    @property
    def suffix(self) -> str:
        """Return the ending of the name."""
        return Path(self.name).suffix.lower()


def is_archive(path: Path) -> bool:
    """Return whether the name is that of an archive."""
    return is_zip(path) or path.suffix.lower() in (".tar", ".tgz") or path.name.lower().endswith(".tar.gz")


def is_zip(path: Path) -> bool:
    """Return whether the name is that of a zip archive."""
    return path.suffix.lower() == ".zip"


def members(path: Path) -> list[Member]:
    """Return the regular files of an archive."""
    try:
        return _in_zip(path) if is_zip(path) else _in_tar(path)
    except BROKEN as error:
        raise DataError(f"{path} can't be read as an archive: {error}.") from error


def refuse_bomb(name: object, size: int, packed: int) -> None:
    """Raise for a file that would take too much memory, or that is nearly all repetition."""
    if size > MAX_BYTES:
        raise DataError(
            f"{name} would take {size / 2**30:.1f} GiB of memory; unpack the archive and give the folder, "
            "whose files are mapped."
        )
    if size > _UNCHECKED_BYTES and size > _MAX_RATIO * packed:
        raise DataError(
            f"{name} grows from {packed} to {size} bytes when it is unpacked, which real samples don't; save "
            "it uncompressed if it is what you want."
        )


def _in_zip(path: Path) -> list[Member]:
    with zipfile.ZipFile(path) as archive:
        found = []
        for info in archive.infolist()[: MAX_MEMBERS + 1]:
            if not info.is_dir():
                found.append(Member(path, info.filename, info.file_size))
                refuse_bomb(found[-1], info.file_size, info.compress_size)
    _refuse_many(found, path)
    return found


def _in_tar(path: Path) -> list[Member]:
    packed, total = path.stat().st_size, 0
    found: list[Member] = []
    with tarfile.open(path, "r:" if path.suffix.lower() == ".tar" else "r:gz") as archive:
        for info in archive:  # going on to the next member unpacks this one
            total += info.size
            refuse_bomb(f"{path}/{info.name}", info.size, packed)
            refuse_bomb(path, min(total, MAX_BYTES), packed)
            if info.isreg() and not info.issparse():
                found.append(Member(path, info.name, info.size, info.offset_data))
                _refuse_many(found, path)
    return found


def _refuse_many(found: list[Member], path: Path) -> None:
    if len(found) > MAX_MEMBERS:
        raise DataError(f"{path} holds more than {MAX_MEMBERS} files; give a folder of fewer.")


class OpenArchive:
    """An archive that stays open while its members are read; a ``.tar.gz`` is best read forward."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._zip: zipfile.ZipFile | None = None
        self._stream: IO[bytes] | gzip.GzipFile | None = None

    def __enter__(self) -> OpenArchive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in (self._zip, self._stream):
            if handle is not None:
                handle.close()

    def read(self, member: Member) -> bytes:
        """Return the content of a member."""
        try:
            content = self._from_zip(member) if is_zip(self._path) else self._from_tar(member)
        except BROKEN as error:
            raise DataError(f"{member} can't be read: {error}.") from error
        if len(content) != member.size:
            raise DataError(f"{member} is not whole; the archive is cut short or damaged.")
        return content

    def _from_zip(self, member: Member) -> bytes:
        if self._zip is None:
            self._zip = zipfile.ZipFile(self._path)
        with self._zip.open(member.name) as stream:
            return stream.read(member.size)

    def _from_tar(self, member: Member) -> bytes:
        if self._stream is None:
            plain = self._path.suffix.lower() == ".tar"
            self._stream = self._path.open("rb") if plain else gzip.GzipFile(self._path)
        self._stream.seek(member.offset)
        return self._stream.read(member.size)
