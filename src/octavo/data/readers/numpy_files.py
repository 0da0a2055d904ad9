"""``.npy`` and ``.npz`` files: one, a folder of them, or an archive of them.

Arrays are mapped wherever they lie uncompressed in a file of their own, so that memory does not grow with the
number of samples. Python objects are never unpickled.
"""

from __future__ import annotations

import bisect
import io
import itertools
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from octavo.core.files import unique
from octavo.data.readers.archives import Member, OpenArchive, is_archive, members, refuse_bomb
from octavo.data.readers.array_samples import Cuts, Shape, cuts, only_input, refuse_unknown
from octavo.data.source import Array, FoundIn, Sample, Specs, in_order, natural, span
from octavo.errors import DataError

_WRONG = (ValueError, OSError, EOFError, KeyError, RuntimeError, NotImplementedError, SyntaxError,
          zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, TypeError,
          AttributeError, OverflowError, MemoryError, SystemError)  # fmt: skip
_MAX_RANK = 32  # of an array; numpy reads no more
_MAPPED_FOR = 32  # samples after which a file is mapped anew, so that the pages read so far leave the memory
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip entry: the lengths of its name and of its extra field


@dataclass(frozen=True, eq=False)
class NumpyFiles:
    """The samples of files, one file after the other.

    ``counts`` says how many each file holds. With ``whole``, a file whose arrays fit the inputs as they
    are is one feed.
    """

    files: tuple[Path | Member, ...]
    specs: Specs
    counts: tuple[int, ...]
    whole: bool
    _ends: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", tuple(itertools.accumulate(self.counts)))

    @property
    def length(self) -> int:
        """Return the number of samples."""
        return self._ends[-1] if self._ends else 0

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give samples by index; only the files that hold them are opened."""
        wanted = span(self.length, first, stop)
        number = bisect.bisect_right(self._ends, first)
        with ExitStack() as stack:
            archive = _archive(self.files, stack)
            while number < len(self.files) and wanted:
                start = self._ends[number] - self.counts[number]
                here = range(wanted.start - start, min(wanted.stop - start, self.counts[number]))
                yield from self._samples(self.files[number], here, archive)
                wanted = wanted[len(here) :]
                number += 1

    def _samples(self, file: Path | Member, wanted: range, archive: OpenArchive | None) -> Iterator[Sample]:
        arrays = load(file, self.specs, archive)
        found = _cuts(arrays, self.specs, file, self.whole)
        mapped = all(isinstance(array, np.memmap) for array in arrays.values())
        for number, index in enumerate(wanted, 1):
            if mapped and number % _MAPPED_FOR == 0:
                arrays = load(file, self.specs, archive)
            yield FoundIn(found.take(arrays, index), str(file))


def _archive(files: tuple[Path | Member, ...], stack: ExitStack) -> OpenArchive | None:
    """Open the archive that the files lie in, if they do, until the stack is unwound."""
    inside = files[0].archive if files and isinstance(files[0], Member) else None
    return stack.enter_context(OpenArchive(inside)) if inside is not None else None


def _cuts(arrays: dict[str, Array], specs: Specs, file: Path | Member, whole: bool) -> Cuts:
    return cuts({name: array.shape for name, array in arrays.items()}, specs, str(file), whole=whole)


def read(data: object, specs: Specs) -> NumpyFiles | None:
    """Return the samples of a file, of the files of a folder, or of those in an archive."""
    if not isinstance(data, Path):
        return None
    if data.is_dir():
        found = in_order(path for path in data.iterdir() if _is_numpy(path) and path.is_file())
        return _counted(tuple(found), specs, whole=True) if found else None
    if (_is_numpy(data) or is_archive(data)) and data.exists() and not data.is_file():
        raise DataError(f"{data} can't be read as numpy data: it is not a regular file.")
    if _is_numpy(data):
        return _counted((data,), specs, whole=False)
    return _archived(data, specs) if is_archive(data) else None


def _is_numpy(file: Path | Member) -> bool:
    return file.suffix.lower() in (".npy", ".npz")


def _archived(path: Path, specs: Specs) -> NumpyFiles:
    """Return the samples of an archive, in the order of a folder (of a ``.tar.gz``: as they come)."""
    found = [member for member in members(path) if _is_numpy(member)]
    if not found:
        raise DataError(f"The archive {path} holds no .npy or .npz file; put the calibration samples there.")
    if path.suffix.lower() not in (".gz", ".tgz"):
        found.sort(key=lambda member: natural(member.name))
    return _counted(tuple(found), specs, whole=True)


def _counted(files: tuple[Path | Member, ...], specs: Specs, *, whole: bool) -> NumpyFiles:
    counts = []
    with ExitStack() as stack:
        archive = _archive(files, stack)
        for file in files:
            shapes = _shapes(file, specs, archive)
            counts.append(cuts(shapes, specs, str(file), whole=whole).length)
    return NumpyFiles(files, tuple(specs), tuple(counts), whole)


def _shapes(file: Path | Member, specs: Specs, archive: OpenArchive | None) -> dict[str, Shape]:
    """Return the shapes of the arrays of a file, from their headers alone."""
    try:
        with _stream(file, archive) as stream:
            if file.suffix.lower() == ".npy":
                name = only_input(specs, str(file))
                return {name: _header(stream, _length(stream))[0]}
            with zipfile.ZipFile(stream) as inner:
                found = {}
                for entry in _entries(inner):
                    refuse_bomb(f"{file}/{entry.filename}", _unpacked(entry), entry.compress_size)
                    with inner.open(entry) as opened:
                        found[entry.filename.removesuffix(".npy")] = _header(opened, entry.file_size)[0]
                return found
    except _WRONG as error:
        raise _unreadable(file, error) from error


def load(file: Path | Member, specs: Specs, archive: OpenArchive | None = None) -> dict[str, Array]:
    """Return the arrays of a file by input name."""
    try:
        if file.suffix.lower() == ".npy":
            name = only_input(specs, str(file))
            if isinstance(file, Path):
                return {name: np.load(file, mmap_mode="r", allow_pickle=False)}
            with _stream(file, archive) as stream:
                return {name: np.load(stream, allow_pickle=False)}
        found = _npz_arrays(file, archive)
    except _WRONG as error:
        raise _unreadable(file, error) from error
    refuse_unknown(found, specs, str(file))
    return found


def _npz_arrays(file: Path | Member, archive: OpenArchive | None) -> dict[str, Array]:
    """Return the arrays of a ``.npz`` file, mapped where they are not compressed."""
    found = _mapped(file) if isinstance(file, Path) else None
    if found is None:
        with _stream(file, archive) as stream, np.load(stream, allow_pickle=False) as inner:
            found = {name: inner[name] for name in inner.files}
    return found


def archive_arrays(path: Path) -> dict[str, Array]:
    """Return all arrays of a ``.npz`` file, whatever they are for; their headers are checked first."""
    _shapes(path, (), None)
    try:
        return _npz_arrays(path, None)
    except _WRONG as error:
        raise _unreadable(path, error) from error


def names_within(path: Path) -> list[str]:
    """Return the names of the arrays of a ``.npz`` file."""
    try:
        with _stream(path, None) as stream, zipfile.ZipFile(stream) as archive:
            return [entry.filename.removesuffix(".npy") for entry in _entries(archive)]
    except _WRONG as error:
        raise _unreadable(path, error) from error


def plain_array(path: Path) -> Array:
    """Return the array of a ``.npy`` file, whatever it is for; its header is checked first."""
    try:
        with _stream(path, None) as stream:
            _header(stream, _length(stream))
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return found
    except _WRONG as error:
        raise _unreadable(path, error) from error


def _stream(file: Path | Member, archive: OpenArchive | None) -> IO[bytes]:
    if isinstance(file, Path):
        if file.exists() and not file.is_file():
            raise ValueError("it is not a regular file")
        return file.open("rb")
    if archive is None:
        raise DataError(f"{file} can't be read: its archive is closed.")
    return io.BytesIO(archive.read(file))


def _unreadable(file: Path | Member, error: Exception) -> DataError:
    if isinstance(error, zipfile.BadZipFile | EOFError):
        return DataError(f"{file} can't be read as numpy data: it is damaged or cut short; write it again.")
    if isinstance(error, OSError) and error.strerror:
        return DataError(f"{file} can't be read: {error.strerror}.")
    return DataError(
        f"{file} can't be read as numpy data: {str(error) or type(error).__name__}. Python objects are "
        "refused; save plain arrays."
    )


def _entries(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the arrays of a ``.npz`` file; which of two of one name counts would be a guess."""
    found = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
    unique([(entry.filename, entry) for entry in found])
    return found


def _length(stream: IO[bytes]) -> int:
    """Return the size of a file that is open at its beginning."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    return size


def _unpacked(entry: zipfile.ZipInfo) -> int:
    """Return the bytes that reading an entry takes: none where it is not compressed, and mapped."""
    return 0 if entry.compress_type == zipfile.ZIP_STORED else entry.file_size


def _header(stream: IO[bytes], size: int) -> tuple[Shape, bool, np.dtype[Any]]:
    """Read shape, Fortran order and type of an array from the beginning of its file of this size."""
    begin = stream.tell()
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        header = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        header = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"its format {version[0]}.{version[1]} is for arrays with named fields")
    if header[2].hasobject:
        raise ValueError("it holds Python objects")
    if header[2].subdtype is not None or header[2].names is not None:
        raise ValueError(f"its elements are not numbers but {header[2]!s}"[:200])
    announced, present = math.prod(header[0]) * header[2].itemsize, size - (stream.tell() - begin)
    if min(header[0], default=0) < 0 or len(header[0]) > _MAX_RANK or announced > present:
        raise ValueError(
            f"its header announces {announced} bytes of shape {header[0][:8]}, and {present} are there"
        )
    return header


def _mapped(path: Path) -> dict[str, Array] | None:
    """Map the arrays of a ``.npz`` file that is not compressed; None for a compressed one."""
    found: dict[str, Array] = {}
    with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        entries = _entries(archive)
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
            return None
        for entry in entries:
            stream.seek(entry.header_offset)
            name_length, extra_length = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
            stream.seek(name_length + extra_length, io.SEEK_CUR)
            shape, fortran, dtype = _header(stream, entry.file_size)
            offset, name = stream.tell(), entry.filename.removesuffix(".npy")
            if 0 in shape:
                found[name] = np.zeros(shape, dtype)
            else:
                order = "F" if fortran else "C"
                found[name] = np.memmap(path, dtype, "r", offset, shape, order)  # type: ignore[call-overload]
    return found
